"""The end of the process: at exit, and by an exception that nobody caught."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from types import TracebackType

from scalescope.wire import ByeReason

# wire.Text holds 16,384 characters; a traceback's end says more than its beginning.
_MAX_DETAIL = 16_000

Close = Callable[[ByeReason, str], None]
Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


class ProcessTap:
    """Calls ``close`` once, when this process ends. A child that was forked off does not count as its end."""

    def __init__(self, close: Close) -> None:
        self._close = close
        self._pid = os.getpid()
        self._previous: Hook = sys.excepthook
        self._hook: Hook = self._uncaught
        sys.excepthook = self._hook
        atexit.register(self._at_exit)

    def remove(self) -> None:
        """Stop listening. A hook that was put over ours keeps calling it, to no effect but the one below's."""
        atexit.unregister(self._at_exit)
        if sys.excepthook is self._hook:
            sys.excepthook = self._previous

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:
            self._close("finished", "")

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # First what the user waits for: delivery may take seconds.
        self._previous(kind, error, trace)
        if os.getpid() == self._pid:
            self._close("crashed", crash_text(error))


def crash_text(error: BaseException) -> str:
    """The traceback of ``error``, its end if it is long."""
    return "".join(traceback.format_exception(error))[-_MAX_DETAIL:]
