"""One attempted update as the taps hand it over, and the records that tell it.

The taps fill an :class:`Update` in the training thread with what they have, some of it still on its way from
a device. The records are made later, in the link's thread: everything here below the two types is a pure
function of an update whose numbers have arrived.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope.numerics.exponents import BINS, Histograms
from scalescope.numerics.measure import Measurement
from scalescope.packing import pack
from scalescope.readback import Value, number, ready
from scalescope.wire import Column, Event, EventKind, Layout, Sample, Steps, column

# One row of a measurement in memory: the counts and five numbers, eight bytes each.
ROW_BYTES = (BINS + 5) * 8
NOT_STEPPED = "not stepped"
# wire.Text holds 16,384 characters; the rest of a skip's data needs less than the difference.
_NONFINITE_CHARS = 14_000


@dataclass(frozen=True, slots=True)
class Measured:
    """Gradients measured at one moment: row i of the measurement is parameter ``indexes[i]``."""

    indexes: tuple[int, ...]
    measurement: Measurement


class OptimizerVerdict(NamedTuple):
    """What the scaler found for one optimizer: it overflowed if any of ``found`` (one a device) is above 0."""

    optimizer: str
    found: Sequence[Value]
    stepped: bool = True

    def overflowed(self) -> bool:
        return any(number(value) > 0 for value in self.found)

    def skipped(self) -> bool:
        """Whether the update was not applied to it: it overflowed, or was unscaled and never stepped."""
        return not self.stepped or self.overflowed()


@dataclass(slots=True, eq=False)
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
        micro_batches: backward passes in the window; None where not known.
        blind: why the culprit of a skip cannot be named, where nothing was measured.
        values: the columns of its row. The user's values are added until the update is finished.
        tokens: what was logged as tokens; the row has the sum.
    """

    step: int
    at: float
    periodic: bool = False
    scale: Value | None = None
    next_scale: Value | None = None
    scale_was_set: bool = False
    verdicts: Sequence[OptimizerVerdict] = ()
    measured: Sequence[Measured] = ()
    micro_batches: int | None = None
    blind: str = ""
    values: dict[str, Value] = field(default_factory=dict)
    tokens: list[Value] = field(default_factory=list)

    def ready(self) -> bool:
        """Whether every number of it, those of a late log apart, is on the host."""
        numbers = [value for verdict in self.verdicts for value in verdict.found]
        numbers += [value for value in (self.scale, self.next_scale) if value is not None]
        return all(map(ready, numbers)) and all(part.measurement.ready() for part in self.measured)

    def row_ready(self) -> bool:
        """Whether its row can be told. Only for a finished update, to which nothing is added any more."""
        return all(map(ready, self.values.values())) and all(map(ready, self.tokens))

    @property
    def skipped(self) -> bool:
        return any(verdict.skipped() for verdict in self.verdicts)

    @property
    def sample_bytes(self) -> int:
        return ROW_BYTES * sum(len(part.indexes) for part in self.measured)


@dataclass(frozen=True, slots=True)
class ScaleSet:
    """The trainer set the scale between two updates."""

    step: int
    at: float
    scale: Value | None
    next_scale: Value | None

    def ready(self) -> bool:
        return all(ready(value) for value in (self.scale, self.next_scale) if value is not None)


def events_of(update: Update, before: float | None, layout: Layout, table: Histograms) -> list[Event]:
    """What happened at ``update``, in order.

    Args:
        before: the scale as the update before left it; None when that is not known.
        layout: names and backward order of the parameters.
        table: the rows of ``update.measured`` under one another.
    """
    if update.scale is None or update.next_scale is None:
        return []
    scale, after = number(update.scale), number(update.next_scale)
    events = []
    if before is not None and _differ(before, scale):
        events.append(_scale_event("scale_set", update.step, update.at, before, scale))
    if update.skipped:
        data = {"scale": _json(scale), "next_scale": _json(after), **_blame(update, layout, table)}
        events.append(_event("skip", update.step, update.at, data))
    if _differ(scale, after):
        kind: EventKind = "scale_set" if update.scale_was_set else "growth" if after > scale else "backoff"
        events.append(_scale_event(kind, update.step, update.at, scale, after))
    return events


def scale_set_event(change: ScaleSet) -> list[Event]:
    """The event of ``change``; none when it changed nothing."""
    if change.scale is None or change.next_scale is None:
        return []
    scale, after = number(change.scale), number(change.next_scale)
    return [_scale_event("scale_set", change.step, change.at, scale, after)] if _differ(scale, after) else []


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
        reason="periodic" if update.periodic else "skip",
        scale=None if update.scale is None else number(update.scale),
        micro_batches=update.micro_batches,
        parameters=np.asarray(_indexes(update), "<i4").tobytes(),
        table=pack(table),
    )


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
    return Steps(sequence=0, first=updates[0].step, count=len(updates), at=at.tobytes(), columns=columns)


def _row(update: Update) -> dict[str, float]:
    row = {name: number(value) for name, value in update.values.items()}
    row["skipped"] = float(update.skipped)
    if update.scale is not None:
        row["scale"] = number(update.scale)
    if update.tokens:
        row["tokens"] = math.fsum(map(number, update.tokens))
    return row


def _column(name: str, rows: Sequence[dict[str, float]]) -> Column:
    present = [index for index, row in enumerate(rows) if name in row]
    return column(np.asarray(present, "<u4"), np.asarray([rows[index][name] for index in present], "<f8"))


def _blame(update: Update, layout: Layout, table: Histograms) -> dict[str, object]:
    """Who overflowed: the first parameter in backward order with a non-finite gradient, and all counts."""
    overflowed = [verdict.optimizer for verdict in update.verdicts if verdict.overflowed()]
    if not overflowed:
        idle = [verdict.optimizer for verdict in update.verdicts if not verdict.stepped]
        return {
            "parameter": None,
            "reason": NOT_STEPPED,
            "nonfinite": {},
            "order": layout.order,
            "optimizers": idle[:64],
        }
    counts: NDArray[np.int64] = table.nonfinite
    place = {index: position for position, index in enumerate(layout.backward)}
    indexes = _indexes(update)
    rows = [int(row) for row in np.flatnonzero(counts)]
    # What has no place comes after all that has.
    rows.sort(key=lambda row: place.get(indexes[row], len(place) + len(layout.parameters) - indexes[row]))
    named = [(layout.parameters[indexes[row]].name, int(counts[row])) for row in rows]
    data = _culprit(update, named, ordered=all(indexes[row] in place for row in rows))
    kept = _fitting(named)
    data |= {"nonfinite": dict(kept), "order": layout.order}
    if len(kept) < len(named):
        data["left_out"] = len(named) - len(kept)
    return data | {"optimizers": overflowed[:64]}


def _culprit(update: Update, named: Sequence[tuple[str, int]], *, ordered: bool) -> dict[str, object]:
    """The first of ``named``, or why it is not known: a wrong name is worse than none."""
    if not named:
        reason = update.blind or "no watched parameter of this rank had a non-finite gradient"
        return {"parameter": None, "reason": reason}
    if len(named) > 1 and not ordered:
        return {"parameter": None, "reason": "the order in which their gradients are produced is not known"}
    return {"parameter": named[0][0]}


def _fitting(named: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The first of ``named`` that fit into an event: a skip that spread may name thousands."""
    kept, chars = [], 0
    for name, count in named:
        chars += len(json.dumps(name)) + 24
        if chars > _NONFINITE_CHARS:
            break
        kept.append((name, count))
    return kept


def _indexes(update: Update) -> list[int]:
    return [index for part in update.measured for index in part.indexes]


def _scale_event(kind: EventKind, step: int, at: float, scale: float, after: float) -> Event:
    return _event(kind, step, at, {"scale": _json(scale), "next_scale": _json(after)})


def _event(kind: EventKind, step: int, at: float, data: dict[str, object]) -> Event:
    return Event(sequence=0, step=step, at=at, kind=kind, data=json.dumps(data, allow_nan=False))


def _json(value: float) -> float | str:
    """JSON has no NaN or Infinity: they are told as "nan", "inf", "-inf"."""
    return value if math.isfinite(value) else str(value)


def _differ(one: float, other: float) -> bool:
    return one != other and not (math.isnan(one) and math.isnan(other))
