"""The edge between training and telemetry: what a tap does runs through here, is timed, and never raises."""

from __future__ import annotations

import logging
import statistics
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import torch

# Enough for a steady median, little enough that it follows a change within minutes.
_REMEMBERED = 512

# The threads that are at a work of ours.
_ASIDE: set[int] = set()

logger = logging.getLogger("scalescope")

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cost:
    """What the hook took of the training thread per update, in microseconds; None before the first."""

    last_us: float | None
    median_us: float | None
    updates: int


def eager(function: Callable[P, T]) -> Callable[P, T]:
    """``function`` as it is to be called by torch: run where a caller is compiled, never traced into its graph.

    Where torch can mark the code itself, it is marked, with all that it calls: a wrapper around it, as
    ``torch.compiler.disable`` makes, takes longer in every call than most of what we do there.
    """
    if not _marked(function):
        return cast("Callable[P, T]", torch.compiler.disable(function))
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001 - what disable() sets too
    return function


def traceable(function: Callable[P, T]) -> Callable[P, T]:
    """As :func:`eager`, but what compiles a caller may trace it: it asks, and does nothing there.

    So a graph that must be whole stays whole, where a call that cannot be traced would break it.
    """
    _marked(function)
    return function


def _marked(function: Callable[P, T]) -> bool:
    """Mark the code as never to be compiled by itself, with all that it calls. False where torch has no such mark."""
    dynamo: Any = torch._C._dynamo.eval_frame  # noqa: SLF001 - what is used of it is detected
    if not hasattr(dynamo, "set_code_exec_strategy"):
        return False
    skip = dynamo._FrameAction.SKIP  # noqa: SLF001 - came with the function above
    dynamo.set_code_exec_strategy(function.__code__, dynamo._FrameExecStrategy(skip, skip))  # noqa: SLF001
    return True


class Removable(Protocol):
    """A tap that can be taken off."""

    def remove(self) -> None: ...


class _Costs:
    """What updates of a kind took, in ns: the last of them, and how many there were."""

    __slots__ = ("last", "updates")

    def __init__(self) -> None:
        self.last: deque[int] = deque(maxlen=_REMEMBERED)
        self.updates = 0


class Edge:
    """Runs the taps of one scope. ``errors`` counts what went wrong in them; ``silent`` taps do nothing.

    ``spent_ns`` is what they took since the last :meth:`charge`, calls that have not ended left out.

    ``tap`` is what runs here: through the edge it hangs on what is watched, and so lives as long as that does.
    """

    def __init__(self) -> None:
        self.errors = 0
        self.silent = False
        self.tap: Removable | None = None
        self._told = False
        self.spent_ns = 0
        # The same since the beginning, at the last charge.
        self.total_ns = 0
        self._ordinary, self._sampled = _Costs(), _Costs()

    def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """The result of ``work``, or None where it failed: training goes on whatever telemetry does."""
        if self.silent or (_ASIDE and threading.get_ident() in _ASIDE):
            return None
        start = perf_counter_ns()
        try:
            return work(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a tap: whatever fails here must not reach the training loop
            self._report(error)
            return None
        finally:
            self.spent_ns += perf_counter_ns() - start

    def aside(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Exception:
        """The result of ``work``, or what it raised: a work of ours that runs the model, which no tap is to hear.

        Those of this scope hear nothing of any thread (a device's backward has its own), those of others nothing
        of this one. It was asked for, so its time is no cost of an update.
        """
        thread, silent = threading.get_ident(), self.silent
        outermost = thread not in _ASIDE
        self.silent = True
        _ASIDE.add(thread)
        try:
            return work(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a tap, and the user's own function in it
            return error
        finally:
            self.silent = silent
            if outermost:
                _ASIDE.discard(thread)

    def guard(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """As :meth:`call` within a call, whose time this is."""
        try:
            return work(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a tap, as above
            self._report(error)
            return None

    def detach(self) -> None:
        """Take the tap off, and let go of it. Again: nothing."""
        tap, self.tap = self.tap, None
        if tap is not None:
            tap.remove()

    def charge(self, *, sampled: bool) -> int:
        """Enter what was spent since the last charge as the cost of one update, and answer it, in ns."""
        spent, self.spent_ns = self.spent_ns, 0
        self.total_ns += spent
        costs = self._sampled if sampled else self._ordinary
        costs.last.append(spent)
        costs.updates += 1
        return spent

    def cost(self, *, sampled: bool) -> Cost:
        """The cost of updates at which gradients were measured, or of those at which none were."""
        costs = self._sampled if sampled else self._ordinary
        spent = list(costs.last)
        if not spent:
            return Cost(None, None, 0)
        return Cost(spent[-1] / 1e3, statistics.median(spent) / 1e3, costs.updates)

    def _report(self, error: Exception) -> None:
        self.errors += 1
        if not self._told:
            self._told = True
            logger.warning(
                "scalescope: a tap failed and training goes on; later failures are only counted", exc_info=error
            )
