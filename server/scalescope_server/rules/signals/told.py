"""The leaves: what a run tells of itself as a whole."""

from __future__ import annotations

import numpy as np

from scalescope_server.rules.signals.signal import (
    HOLD_UPDATES,
    Column,
    Evidence,
    Now,
    Signal,
    Span,
    unbounded,
)
from scalescope_server.rules.ticks import RunState


class NumberSignal(Signal):
    """Always the same, never told; it has moved at the first update, so that what rests on it is worked out once."""

    __slots__ = ()

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value
        self.moved = True

    def tick(self, now: Now) -> None:
        """Nothing moves it."""

    def over(self, span: Span) -> None:
        self.column = self.stretch(span)

    def stretch(self, span: Span) -> Column:
        length = len(span)
        always = np.ones(length, np.bool_)
        return Column(np.full(length, self.value, np.float64), always, ~always, unbounded(length))


class SeriesSignal(Signal):
    """The latest value that was told."""

    __slots__ = ("_name", "_told_at")

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._told_at = 0

    def tick(self, now: Now) -> None:
        value = now.values.get(self._name) if now.is_update else None
        self.fresh = value is not None
        self.moved = self.fresh and value != self.value
        if value is not None:
            self.value, self._told_at = float(value), now.place
        elif self.value is not None and now.place - self._told_at >= HOLD_UPDATES:
            self.value, self.moved = None, True

    def stretch(self, span: Span) -> Column:
        column = span.stretch.values.get(self._name)
        if column is None:
            values, told = np.zeros(len(span)), np.zeros(len(span), np.bool_)
        else:
            values, told = column.values, column.told
        if told.all():
            self._told_at = int(span.place[-1])
            return Column(values, told, told, unbounded(len(span)))
        newest = np.maximum.accumulate(np.where(told, np.arange(len(span)), -1))
        before = newest < 0
        held = np.where(before, np.nan if self.value is None else self.value, values[newest])
        told_at = np.where(before, self._told_at, span.place[newest])
        known = (span.place - told_at < HOLD_UPDATES) & ~(before & (self.value is None))
        self._told_at = int(told_at[-1])
        return Column(held, known, told, unbounded(len(span)))


class FindingSignal(Signal):
    """Whether a finding is open: known from the first update on."""

    __slots__ = ("_code",)

    def __init__(self, code: str) -> None:
        super().__init__()
        self._code = code

    def tick(self, now: Now) -> None:
        self.fresh = now.is_update
        held = self._code in now.findings if now.is_update else self.value
        self.moved = held is not self.value
        self.value = held

    def stretch(self, span: Span) -> Column:
        held = np.zeros(len(span), np.bool_)
        for index, codes in span.stretch.findings:
            held[index:] = self._code in codes
        always = np.ones(len(span), np.bool_)
        return Column(held, always, always, unbounded(len(span)))

    def evidence(self, index: int | None) -> Evidence:
        return None, self._code


class RunIsSignal(Signal):
    """Whether the run is in this state; an update tells that it is running."""

    __slots__ = ("_state",)

    def __init__(self, state: RunState) -> None:
        super().__init__()
        self._state = state

    def tick(self, now: Now) -> None:
        value = now.state == self._state
        self.fresh = now.is_update
        self.moved = self.fresh or value is not self.value
        self.value = value

    def stretch(self, span: Span) -> Column:
        always = np.ones(len(span), np.bool_)
        return Column(np.full(len(span), self._state == "running"), always, always, unbounded(len(span)))

    def evidence(self, index: int | None) -> Evidence:
        return None, None


class NoUpdateSignal(Signal):
    """Whether the last update of a run that is not finished is so many seconds ago; not known before the first."""

    __slots__ = ("_silent_s", "_within_s")

    def __init__(self, within_s: float) -> None:
        super().__init__()
        self._within_s = within_s
        self._silent_s: float | None = None

    def tick(self, now: Now) -> None:
        silent_s = self._silent_s = 0.0 if now.is_update else now.silent_s
        self.fresh, self.moved = now.is_update, True
        self.value = None if silent_s is None else silent_s >= self._within_s and now.state != "finished"

    def stretch(self, span: Span) -> Column:
        always = np.ones(len(span), np.bool_)
        self._silent_s = 0.0
        return Column(~always, always, always, unbounded(len(span)))

    def evidence(self, index: int | None) -> Evidence:
        return self._silent_s, None
