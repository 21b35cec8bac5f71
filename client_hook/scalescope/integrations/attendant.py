"""Attends the trainings of one framework's callback: a scope for each, and nothing that fails reaches the framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

from scalescope.integrations.options import Known, Options, check, watch_known
from scalescope.scope import Scope
from scalescope.taps.edge import Edge

P = ParamSpec("P")


class Attendant:
    """Watches one training after the other. ``scope`` is that of the latest; off before the first.

    Raises:
        TypeError, SettingError: for options that cannot be used; later nothing is raised.
    """

    def __init__(self, options: Options) -> None:
        check(options)
        self.options = options
        self.scope = Scope()
        self._edge = Edge()

    def guard(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Do ``work``. What a framework says may be otherwise than we know it: it trains all the same."""
        self._edge.call(work, *args, **kwargs)

    def begin(self, known: Known) -> None:
        """A training begins. One that is still recorded has come to its end."""
        self.scope.close()
        self.scope = watch_known(known, self.options)

    def end(self, error: BaseException | None = None) -> None:
        """The training is over, by ``error`` or as it should be. Again: nothing."""
        if error is None:
            self.scope.close()
        else:
            self.scope.__exit__(type(error), error, error.__traceback__)


def missing(integration: str, package: str) -> ImportError:
    """What to raise where a framework is not there: it says what to install."""
    return ImportError(f"scalescope.integrations.{integration} needs {package}: pip install {package}")
