"""The events of an update: skips with their culprit, and changes of the scale."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np

from scalescope.numerics.exponents import Counts, Histograms
from scalescope.readback import number
from scalescope.updates import ScaleSet, Update, indexes_of
from scalescope.wire import NOT_STEPPED, Event, EventKind, Layout

_NOWHERE = "no watched parameter had a non-finite gradient"
# A skip of one rank is a skip of all.
_ELSEWHERE = "nothing that this rank reports was non-finite: another rank names what was"
# wire.Text holds 16,384 characters; the rest of a skip's data needs less than the difference.
_NONFINITE_CHARS = 14_000


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
        data = {"scale": json_number(scale), "next_scale": json_number(after), **_blame(update, layout, table)}
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


def json_number(value: float) -> float | str:
    """JSON has no NaN or Infinity: they are told as "nan", "inf", "-inf"."""
    return value if math.isfinite(value) else str(value)


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
    counts = _nonfinite(update, table)
    place = {index: position for position, index in enumerate(layout.backward)}
    # What has no place comes after all that has.
    indexes = sorted(counts, key=lambda index: place.get(index, len(place) + len(layout.parameters) - index))
    named = [(layout.parameters[index].name, counts[index]) for index in indexes]
    data = _culprit(update, named, ordered=all(index in place for index in counts), among_ranks=bool(layout.parts))
    kept = _fitting(named)
    data |= {"nonfinite": dict(kept), "order": layout.order}
    if len(kept) < len(named):
        data["left_out"] = len(named) - len(kept)
    return data | {"optimizers": overflowed[:64]}


def _nonfinite(update: Update, table: Histograms) -> dict[int, int]:
    """Index -> how many values of the gradient are not finite, where some are: as measured, or else as counted."""
    parts: list[tuple[Sequence[int], Counts]] = [(indexes_of(update), table.nonfinite)]
    for part in (part for verdict in update.verdicts for part in verdict.counted):
        counts = part.guarded.nonfinite()
        if counts is not None:
            parts.append((part.indexes, counts))
    found: dict[int, int] = {}
    for indexes, counts in parts:
        for row in np.flatnonzero(counts).tolist():
            found.setdefault(indexes[row], int(counts[row]))
    return found


def _culprit(
    update: Update, named: Sequence[tuple[str, int]], *, ordered: bool, among_ranks: bool
) -> dict[str, object]:
    """The first of ``named``, or why it is not known: a wrong name is worse than none."""
    if not named:
        return {"parameter": None, "reason": update.blind or (_ELSEWHERE if among_ranks else _NOWHERE)}
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


def _scale_event(kind: EventKind, step: int, at: float, scale: float, after: float) -> Event:
    return _event(kind, step, at, {"scale": json_number(scale), "next_scale": json_number(after)})


def _event(kind: EventKind, step: int, at: float, data: dict[str, object]) -> Event:
    return Event(sequence=0, step=step, at=at, kind=kind, data=json.dumps(data, allow_nan=False))


def _differ(one: float, other: float) -> bool:
    return one != other and not (math.isnan(one) and math.isnan(other))
