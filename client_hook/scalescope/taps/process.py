"""The end of the process: at exit, and by an exception that nobody caught."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

from scalescope.taps.facts import sendable
from scalescope.wire import ByeReason

# wire.Text holds 16,384 characters; a traceback's end says more than its beginning.
_MAX_DETAIL = 16_000

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


class Ending(NamedTuple):
    """How a training ended, as the wire tells it."""

    reason: ByeReason
    detail: str


Close = Callable[[Ending], None]

FINISHED = Ending("finished", "")


class ProcessTap:
    """Calls ``close`` once, when this process ends. A child that was forked off does not count as its end."""

    def __init__(self, close: Close) -> None:
        self._close: Close | None = close
        self._pid = os.getpid()
        self._hook = _ExceptHook.installed()
        self._hook.taps.append(self)
        atexit.register(self._at_exit)

    def remove(self) -> None:
        """Stop listening, and let go of ``close``. Again: nothing."""
        if self._close is not None:
            self._close = None
            atexit.unregister(self._at_exit)
            self._hook.leave(self)

    def hear(self, ending: Ending) -> None:
        if self._close is not None and os.getpid() == self._pid:
            self._close(ending)

    def _at_exit(self) -> None:
        self.hear(FINISHED)


class _ExceptHook:
    """Stands in ``sys.excepthook`` for all taps together, so that they may leave in any order."""

    def __init__(self, below: Hook) -> None:
        self.taps: list[ProcessTap] = []
        self._below = below

    @classmethod
    def installed(cls) -> _ExceptHook:
        """The one that stands there, or a new one over whatever does."""
        if not isinstance(sys.excepthook, cls):
            sys.excepthook = cls(sys.excepthook)
        return sys.excepthook

    def leave(self, tap: ProcessTap) -> None:
        """A hook that was put over ours keeps calling it, to no effect but the one below's."""
        self.taps.remove(tap)
        if not self.taps and sys.excepthook is self:
            sys.excepthook = self._below

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # First what the user waits for: delivery may take seconds.
        self._below(kind, error, trace)
        for tap in list(self.taps):
            tap.hear(ending_by(error))


def ending_by(error: BaseException | None) -> Ending:
    """How a training ends that ``error`` leaves, None for nothing.

    Leaving by ``sys.exit()`` is an ordinary end, with a code that says otherwise it is not.
    """
    if error is None or isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and not error.code):
        return FINISHED
    return Ending("crashed", crash_text(error))


def crash_text(error: BaseException) -> str:
    """The traceback of ``error`` as the wire can carry it, its end if it is long."""
    return sendable("".join(traceback.format_exception(error)))[-_MAX_DETAIL:]
