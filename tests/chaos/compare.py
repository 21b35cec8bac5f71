"""What a training wrote down itself against what the store holds of it, row for row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalescope.numerics.exponents import MIN_EXPONENT
from scalescope.packing import unpack
from scalescope_server.store import tables
from scalescope_server.store.entry import OF_SCALER
from scalescope_server.store.folding import positions_of
from scalescope_server.store.origin import ledger_of
from scalescope_server.store.sample_rollup import packed_of
from sqlalchemy import Connection, select

from tests.chaos.training import EVERY, Update
from tests.fresh_folds import stale_levels

SHOWN = 3


@dataclass(frozen=True, slots=True)
class Told:
    """One start of a training: its own record, and up to which of the hook's records it was told they are durable.

    ``killed``: its end may be missing, though nothing that was acknowledged. ``drops``: what was given up and counted
    may be missing.
    """

    updates: Sequence[Update]
    durable: int = -1
    killed: bool = False
    drops: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The result: how many rows were compared, what was told twice or given up, and each discrepancy in a sentence."""

    rows: int
    repeated: int
    dropped: int
    wrong: tuple[str, ...]


def compare(connection: Connection, run: str, starts: Sequence[Told]) -> Found:
    """Hold the starts of one run, in their order, against everything that is stored of it."""
    segments = connection.execute(
        select(tables.segment).join(tables.run).where(tables.run.c.id == run).order_by(tables.segment.c.ordinal)
    ).all()
    if len(segments) != len(starts):
        return Found(0, 0, 0, (f"expected {len(starts)} segments of {run}, got {len(segments)}",))
    rows, repeated, dropped, wrong = 0, 0, 0, []
    for segment, told in zip(segments, starts, strict=True):
        ledger = connection.execute(select(tables.ledger).where(tables.ledger.c.segment == segment.key)).one()
        repeated, dropped = repeated + ledger.duplicate, dropped + ledger.dropped_numbers
        compared = _Segment(connection, segment, ledger, told)
        rows += len(compared.steps)
        wrong += [f"segment {segment.ordinal}: {sentence}" for sentence in compared.wrong()]
    wrong += _totals(connection, run, rows)
    wrong += stale_levels(connection, run)[:SHOWN]
    return Found(rows, repeated, dropped, tuple(wrong))


def _totals(connection: Connection, run: str, rows: int) -> Iterator[str]:
    row = connection.execute(select(tables.run).where(tables.run.c.id == run)).one()
    if row.attempted != rows:
        yield f"expected {rows} updates in the list of runs, got {row.attempted}"


class _Segment:
    """One start, as it is stored: its rows by the trainer's own count of updates."""

    def __init__(self, connection: Connection, segment: Any, ledger: Any, told: Told) -> None:
        self._connection, self._segment, self._ledger, self._told = connection, segment, ledger, told
        self._updates = {update.step: update for update in told.updates}
        self.steps = [(row.step - segment.first_step, row) for row in self._rows(tables.step)]

    def wrong(self) -> list[str]:
        checks = {
            "updates": self._wrong_updates(),
            "own values": self._wrong_own(),
            "events": self._wrong_events(),
            "samples": self._wrong_samples(),
            "delivery": self._wrong_delivery(),
        }
        return [f"{what}: {_shortened(list(sentences))}" for what, found in checks.items() if (sentences := [*found])]

    def _rows(self, table: Any) -> Sequence[Any]:
        return self._connection.execute(
            select(table).where(table.c.run == self._segment.run, table.c.segment == self._segment.key)
        ).all()

    def _is_last(self, step: int) -> bool:
        """Whether it was cut off there: its values may have come apart from the update."""
        return self._told.killed and step == max(found for found, _ in self.steps)

    def _wrong_updates(self) -> Iterator[str]:
        found = [step for step, _ in self.steps]
        expected = range(len(found) if self._told.killed else len(self._updates))
        if not self._told.drops and found != list(expected):
            yield f"expected updates 0 to {len(expected) - 1}, got {_ranges(found)}"
        for step, row in self.steps:
            update = self._updates.get(step)
            if update is None:
                yield f"update {step} never was"
                continue
            loss = row.loss if self._is_last(step) and row.loss is None else update.loss
            told = (update.scale, int(update.skipped), loss)
            if (row.scale, row.skipped, row.loss) != told and not self._told.drops:
                yield f"update {step}: expected {told}, got {(row.scale, row.skipped, row.loss)}"

    def _wrong_own(self) -> Iterator[str]:
        own = (
            select(tables.scalar)
            .join(tables.series, tables.series.c.key == tables.scalar.c.series)
            .where(tables.series.c.name == "own")
        )
        of_segment = own.where(tables.series.c.run == self._segment.run, tables.scalar.c.segment == self._segment.key)
        found = {row.step - self._segment.first_step: row.value for row in self._connection.execute(of_segment)}
        for step, _ in self.steps:
            expected = self._updates[step].own if step in self._updates else None
            if found.get(step) != expected and not (self._is_last(step) or self._told.drops):
                yield f"update {step}: expected {expected}, got {found.get(step)}"
        yield from (f"value at update {step}, which is not there" for step in found.keys() - {s for s, _ in self.steps})

    def _wrong_events(self) -> Iterator[str]:
        events = self._rows(tables.event)
        counted = Counter((row.step - self._segment.first_step, row.kind, _told(row.data)) for row in events)
        yield from (f"{count} times {event}" for event, count in counted.items() if count > 1)
        # What the scale became after its last update the trainer's record does not tell.
        last = max(self._updates, default=-1)
        found = {event for event in counted if event[1] in OF_SCALER and (event[1] == "skip" or event[0] < last)}
        happened = set(self._happened())
        # They are records of their own, which may be there before their update is.
        yield from (f"has {event}, which never was" for event in sorted(found - happened, key=repr))
        stored = {step for step, _ in self.steps if not (self._told.drops or self._is_last(step))}
        yield from (f"lacks {event}" for event in sorted(happened - found, key=repr) if event[0] in stored)

    def _happened(self) -> Iterator[tuple[int, str, object]]:
        """The events of the scaler, by the trainer's own record."""
        for step, update in self._updates.items():
            after = self._updates[step + 1].scale if step + 1 in self._updates else None
            if update.skipped:
                yield step, "skip", _nonfinite(update)
            if after is not None and after != update.scale:
                yield step, "growth" if after > update.scale else "backoff", (update.scale, after)

    def _wrong_samples(self) -> Iterator[str]:
        samples = [row for row in self._rows(tables.sample) if row.kind == "grad"]
        names = self._names()
        counted = Counter(row.step - self._segment.first_step for row in samples)
        yield from (f"{count} samples of update {step}" for step, count in counted.items() if count > 1)
        due = {step for step, _ in self.steps if step % EVERY == 0 and not self._is_last(step)}
        if lacking := due - counted.keys():
            yield from (f"none of update {step}" for step in lacking if not self._told.drops)
        for row in samples:
            update = self._updates.get(row.step - self._segment.first_step)
            found = _gradients(row, names)
            if update is None or found != {name: update.gradients.get(name) for name in found}:
                yield f"update {row.step}: expected {update and update.gradients}, got {found}"

    def _names(self) -> Mapping[int, str]:
        of_run = select(tables.parameter.c.position, tables.parameter.c.name)
        found = self._connection.execute(of_run.where(tables.parameter.c.run == self._segment.run))
        return {row.position: row.name for row in found}

    def _wrong_delivery(self) -> Iterator[str]:
        ledger = ledger_of(self._ledger.ranges)
        # With the disk full and the server away to the end, the farewell is given up as well, and what counts what was
        # given up: all that is missing is shown as lost then, of a run without an end.
        speechless = self._told.drops and self._ledger.ending is None
        # What was given up on its way may have arrived all the same.
        if ledger.missing > self._ledger.dropped_numbers and not speechless:
            yield f"{ledger.missing} records are missing, {self._ledger.dropped_numbers} were given up and counted"
        if not self._told.drops and self._ledger.dropped_numbers:
            yield f"{self._ledger.dropped_numbers} records were given up"
        if ledger.highest < self._told.durable:
            yield f"expected all records up to {self._told.durable}, which was acknowledged, got {ledger.ranges}"
        ending = None if self._told.killed else "finished"
        if self._ledger.ending != ending and not speechless:
            yield f"expected that it is {ending or 'open'}, got {self._ledger.ending}"


def _gradients(row: Any, names: Mapping[int, str]) -> dict[str, dict[str, int]]:
    """A stored sample as a training writes it down."""
    table = unpack(packed_of(row))
    found = {}
    for i, position in enumerate(positions_of(row.positions, row.rows).tolist()):
        counts = {str(int(bin_ + MIN_EXPONENT)): int(table.counts[i, bin_]) for bin_ in table.counts[i].nonzero()[0]}
        counts |= {"zero": int(table.zero[i]), "inf": int(table.inf[i]), "nan": int(table.nan[i])}
        found[names[position]] = {name: count for name, count in counts.items() if count}
    return found


def _told(data: Mapping[str, Any]) -> object:
    """What is compared of an event."""
    if "nonfinite" in data:
        return tuple(sorted(data["nonfinite"].items()))
    return (data["scale"], data["next_scale"]) if "next_scale" in data else repr(data)


def _nonfinite(update: Update) -> tuple[tuple[str, int], ...]:
    counted = {name: counts.get("inf", 0) + counts.get("nan", 0) for name, counts in update.gradients.items()}
    return tuple(sorted((name, count) for name, count in counted.items() if count))


def _shortened(sentences: Sequence[str]) -> str:
    more = f"; and {len(sentences) - SHOWN} more" if len(sentences) > SHOWN else ""
    return "; ".join(sentences[:SHOWN]) + more


def _ranges(steps: Sequence[int]) -> str:
    """Where the row breaks off and goes on, in words: "0 to 9, 12 to 20"."""
    found: list[list[int]] = []
    for step in sorted(steps):
        if found and step - found[-1][-1] <= 1:
            found[-1].append(step)
        else:
            found.append([step])
    return ", ".join(f"{run[0]} to {run[-1]}" for run in found[:SHOWN]) or "none"
