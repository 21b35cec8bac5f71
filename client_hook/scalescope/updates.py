"""One attempted update as the taps hand it over, and its sample and row.

The taps fill an :class:`Update` in the training thread with what they have, some of it still on its way from
a device. The records are made later, in the link's thread, by pure functions of an update whose numbers have
arrived: those below, and in ``events``.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from scalescope.numerics.exponents import BINS, Histograms
from scalescope.numerics.guarded import Guarded
from scalescope.numerics.measure import Measurement
from scalescope.packing import pack
from scalescope.readback import Value, number, ready
from scalescope.rows import column
from scalescope.wire import Column, Layout, Probe, Record, Sample, SampleReason, Setup, Steps, Window

# One row of a measurement in memory: the counts and five numbers, eight bytes each.
ROW_BYTES = (BINS + 5) * 8


# Records that are whole when the taps hand them over.
Known = Layout | Probe | Setup

# What is known of an update by its end, as it was read: what it took of the training thread, when it closed and when
# the one before did (None: there was none), in nanoseconds of one clock; the growth tracker before it; the rate.
Closing = tuple[int, int, int | None, Value | None, Value | None]


@dataclass(frozen=True, slots=True)
class Measured:
    """Gradients measured at one moment: row i of the measurement is parameter ``indexes[i]``."""

    indexes: tuple[int, ...]
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class Counted:
    """What of the gradients of one optimizer was not finite: count i is that of parameter ``indexes[i]``."""

    indexes: Sequence[int]
    guarded: Guarded


class OptimizerVerdict(NamedTuple):
    """What the scaler found for one optimizer: it overflowed if any of ``found`` (one a device) is above 0.

    ``counted``: where only its device knew that, what was counted there, by device.
    """

    optimizer: str
    found: Sequence[Value]
    stepped: bool = True
    counted: Sequence[Counted] = ()

    def overflowed(self) -> bool:
        return any(number(value) > 0 for value in self.found)

    def skipped(self) -> bool:
        """Whether the update was not applied to it: it overflowed, or was unscaled and never stepped."""
        return not self.stepped or self.overflowed()


class Extra(Protocol):
    """Something else that was measured at an update, and becomes records of its own."""

    @property
    def nbytes(self) -> int:
        """What it holds in memory, about."""

    def ready(self) -> bool:
        """Whether all of it is on the host. Asks, never waits."""

    def records(self, update: Update) -> list[Record]:
        """The records of it, sequences 0. Only when :meth:`ready`."""


class Facts(Protocol):
    """What was found of an update's window: how it was put together, scaled, clipped and stepped."""

    def ready(self) -> bool:
        """Whether all of it is on the host. Asks, never waits."""

    def told(self) -> dict[str, object]:
        """The facts by name, as JSON can hold them. Only when :meth:`ready`."""


class Late(Protocol):
    """What is only known of an update once the next one's backward has begun."""

    def finish(self, update: Update) -> None:
        """Enter it. All numbers of ``update`` are here."""


@dataclass(eq=False)
class Update:
    """One attempted update.

    Attributes:
        step: its number in the segment, from 0.
        at: when it closed, seconds since the epoch.
        periodic: whether it was sampled because its turn had come.
        scale, next_scale: the loss scale before and after it; None without a scaler.
        scale_was_set: the trainer set ``next_scale`` itself.
        verdicts: one for each optimizer that the scaler looked at; empty without a scaler.
        measured: the gradients that were measured, scaled; empty where nothing was.
        extras: what else was measured.
        facts: what its window was like; None where nothing listens for that.
        micro_batches: backward passes in the window; None where not known.
        blind: why the culprit of a skip cannot be named, where nothing was measured.
        closing: what was known by its end, for columns of its row.
        values: the others. The user's values are added until the update is finished.
        tokens: what was logged as tokens, None for nothing; the row has the sum.
        scheduled: how often each scheduler stepped in it, by a key of ``schedules``, which enters ``schedule``.
    """

    step: int
    at: float = 0.0
    periodic: bool = False
    scale: Value | None = None
    next_scale: Value | None = None
    scale_was_set: bool = False
    verdicts: Sequence[OptimizerVerdict] = ()
    measured: Sequence[Measured] = ()
    extras: Sequence[Extra] = ()
    facts: Facts | None = None
    micro_batches: int | None = None
    blind: str = ""
    closing: Closing | None = None
    values: dict[str, Value] = field(default_factory=dict)
    tokens: list[Value] | None = None
    scheduled: dict[int, int] | None = None
    schedules: Late | None = None
    schedule: dict[str, object] | None = None

    @staticmethod
    def begun(step: int) -> Update:
        """The one that begins: in few assignments, for what is not known of it yet is what the class says."""
        update = Update.__new__(Update)
        update.step, update.values = step, {}
        return update

    def ready(self) -> bool:
        """Whether every number of it, those of a late log apart, is on the host."""
        numbers = [value for verdict in self.verdicts for value in verdict.found]
        numbers += [value for value in (self.scale, self.next_scale) if value is not None]
        here = all(map(ready, numbers)) and all(part.measurement.ready() for part in self.measured)
        here = here and all(part.guarded.ready() for verdict in self.verdicts for part in verdict.counted)
        return here and all(extra.ready() for extra in self.extras) and (self.facts is None or self.facts.ready())

    def row_ready(self) -> bool:
        """Whether its row can be told. Only for a finished update, to which nothing is added any more."""
        *_, growth_tracker, rate = self.closing or (None, None)
        known = [value for value in (growth_tracker, rate) if value is not None]
        return all(map(ready, (*self.values.values(), *(self.tokens or ()), *known)))

    @property
    def skipped(self) -> bool:
        return any(verdict.skipped() for verdict in self.verdicts)

    @property
    def sample_bytes(self) -> int:
        rows = sum(len(part.indexes) for part in self.measured)
        return ROW_BYTES * rows + sum(extra.nbytes for extra in self.extras)


@dataclass(frozen=True, slots=True)
class ScaleSet:
    """The trainer set the scale between two updates."""

    step: int
    at: float
    scale: Value | None
    next_scale: Value | None

    def ready(self) -> bool:
        return all(ready(value) for value in (self.scale, self.next_scale) if value is not None)


def sample_of(update: Update, table: Histograms) -> Sample:
    """The sample of ``update``, whose measured rows are ``table``.

    Its reason is ``periodic`` when its turn had come, even where the update was skipped as well: averages
    over time rest on the periodic samples, and leaving out the skipped ones would bias them.
    """
    return Sample(
        sequence=0,
        step=update.step,
        at=update.at,
        kind="grad",
        reason=reason_of(update),
        scale=None if update.scale is None else number(update.scale),
        micro_batches=update.micro_batches,
        parameters=np.asarray(indexes_of(update), "<i4").tobytes(),
        table=pack(table),
    )


def reason_of(update: Update) -> SampleReason:
    """Why ``update`` was looked at; ``request`` where it was because of trouble before it."""
    return "periodic" if update.periodic else "skip" if update.skipped else "request"


def table_of(parts: Iterable[Measured]) -> Histograms:
    """All measured rows under one another, in the order of ``parts``."""
    blocks = [part.measurement.result() for part in parts]
    return Histograms.stack(blocks) if blocks else Histograms.empty(0)


def steps_of(updates: Sequence[Update]) -> Steps:
    """The batch of consecutive ``updates``, all finished."""
    rows = [_row(update) for update in updates]
    names = dict.fromkeys(name for row in rows for name in row)
    at = np.asarray([update.at for update in updates], "<f8")
    columns = {name: _column(name, rows) for name in names}
    return Steps(
        sequence=0,
        first=updates[0].step,
        count=len(updates),
        at=at.tobytes(),
        columns=columns,
        windows=_windows(updates),
    )


def _windows(updates: Sequence[Update]) -> list[Window]:
    """The facts of the updates, those of equal neighbours told once."""
    told = [json.dumps(_told(update), allow_nan=False) for update in updates]
    runs = [Window(len(list(alike)), data) for data, alike in itertools.groupby(told)]
    return [] if all(run.data == "{}" for run in runs) else runs


def _told(update: Update) -> dict[str, object]:
    told = {} if update.facts is None else update.facts.told()
    return told if update.schedule is None else told | {"scheduler": update.schedule}


def _row(update: Update) -> dict[str, float]:
    # Who logs a rate knows better, a schedule may be elsewhere.
    row = _closed(update) | {name: number(value) for name, value in update.values.items()}
    row["skipped"] = float(update.skipped)
    if update.scale is not None:
        row["scale"] = number(update.scale)
    if update.tokens:
        row["tokens"] = math.fsum(map(number, update.tokens))
    return row


def _closed(update: Update) -> dict[str, float]:
    """The columns of what was known by its end."""
    if update.closing is None:
        return {}
    spent_ns, closed_ns, before_ns, growth_tracker, rate = update.closing
    row = {"hook_ms": spent_ns / 1e6}
    if before_ns is not None:
        row["step_ms"] = (closed_ns - before_ns) / 1e6
    known = {"growth_tracker": growth_tracker, "learning_rate": rate}
    return row | {name: number(value) for name, value in known.items() if value is not None}


def _column(name: str, rows: Sequence[dict[str, float]]) -> Column:
    present = [index for index, row in enumerate(rows) if name in row]
    return column(np.asarray(present, "<u4"), np.asarray([rows[index][name] for index in present], "<f8"))


def indexes_of(update: Update) -> list[int]:
    return [index for part in update.measured for index in part.indexes]
