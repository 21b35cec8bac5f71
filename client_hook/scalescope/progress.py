"""How far long work is: a line that is rewritten on a terminal, plain lines now and then on a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

TERMINAL_EVERY_S = 0.1
PIPE_EVERY_S = 5.0
BAR_WIDTH = 20


@dataclass(slots=True)
class ProgressLine:
    """The state of one piece of work of ``total`` parts, told to ``out``; ``unit`` names the parts.

    Without a ``total`` there is no bar: what has come so far, and how fast.
    """

    out: TextIO
    total: int | None
    unit: str
    clock: Callable[[], float] = time.monotonic
    _began: float | None = None
    _shown: float = 0.0

    def show(self, done: int, text: str = "") -> None:
        """Tell that ``done`` parts are, and ``text`` about them, unless that was told a moment ago."""
        now = self.clock()
        if self._began is None:
            self._began = self._shown = now
        elif now - self._shown < (TERMINAL_EVERY_S if self.out.isatty() else PIPE_EVERY_S):
            return
        elif not self.out.isatty():
            print(self._line(done, now, text), file=self.out, flush=True)
        if self.out.isatty():
            bar = "" if self.total is None else f"[{_bar(done, self.total)}] "
            self.out.write(f"\r\x1b[K{bar}{self._line(done, now, text)}")
            self.out.flush()
        self._shown = now

    def finish(self, text: str) -> None:
        """Put the result in the line's place."""
        start = "\r\x1b[K" if self.out.isatty() else ""
        print(start + text, file=self.out, flush=True)

    def _line(self, done: int, now: float, text: str) -> str:
        rate = done / max(now - (self._began or now), 1e-3) if done else 0.0
        parts = f"{done}" if self.total is None else f"{done}/{self.total}"
        return f"{parts} {self.unit}, {rate:.0f}/s" + (f", {text}" if text else "")


class Stages:
    """Long work of several sorts, one after the other, each with a line of its own in the same place."""

    def __init__(self, out: TextIO) -> None:
        self._line = ProgressLine(out, None, "")

    def show(self, unit: str, done: int, total: int) -> None:
        """Tell that ``done`` of ``total`` of the parts called ``unit`` are."""
        if self._line.unit != unit:
            self._line = ProgressLine(self._line.out, total, unit)
        self._line.show(done)

    def finish(self, text: str) -> None:
        """Put the result in the line's place."""
        self._line.finish(text)


def _bar(done: int, total: int) -> str:
    return ("#" * (BAR_WIDTH * done // max(total, 1))).ljust(BAR_WIDTH)
