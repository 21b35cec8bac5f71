"""Where values turned non-finite first, in words: of an update on the scale's chart, and of the whole run."""

from __future__ import annotations

from collections.abc import Sequence

from scalescope_server.figures.unusual import MOST_STRETCHES, Unusual
from scalescope_server.figures.unusual_kinds import Severity
from scalescope_server.store.records import EventRow

_NAME_ROOM = 80

# In the order of diagnosis: what comes first brings about what follows. A backward that overflows is what a loss
# scaler is there for, and says nothing by itself.
_SEVERITIES: dict[str, Severity] = {
    "input": "warning",
    "buffer": "critical",
    "parameter": "critical",
    "forward": "warning",
    "loss": "warning",
    "backward": "info",
}
_PLACES = {
    "input": "the input of {name}",
    "buffer": "the buffer {name}",
    "parameter": "the parameter {name}",
    "forward": "the forward of {name}",
    "loss": "the loss",
    "backward": "the backward of {name}",
}


def first_of_each(events: Sequence[EventRow]) -> dict[int, EventRow]:
    """Step -> where it turned non-finite first, of several ranks that tell it: that brought about the rest."""
    found: dict[int, EventRow] = {}
    for event in sorted(events, key=_order, reverse=True):
        found[event.step] = event
    return dict(sorted(found.items()))


def origins(events: Sequence[EventRow]) -> list[Unusual]:
    """The places that were the first of an update to turn non-finite, the worst first; ``events`` are in order."""
    found: dict[tuple[str, str], list[EventRow]] = {}
    for event in first_of_each(events).values():
        found.setdefault((str(event.data.get("where")), str(event.data.get("name", ""))), []).append(event)
    told = [_told(where, group) for (where, _), group in found.items()]
    return sorted(told, key=lambda each: _place_of(each.kind))


def origin_text(event: EventRow) -> str:
    """Such as "the forward of block.1.norm (896 values)", not marked up."""
    count = event.data.get("count")
    values = f" ({count:,} value{'s' if count != 1 else ''})" if isinstance(count, int) else ""
    return place(event.data) + values


def place(data: dict[str, object]) -> str:
    name = " ".join(str(data.get("name") or "").split())
    short = f"{name[: _NAME_ROOM // 3]}…{name[-_NAME_ROOM * 2 // 3 :]}" if len(name) > _NAME_ROOM else name
    # A name may hold braces of its own: it is put in, not formatted.
    return _PLACES.get(str(data.get("where")), "{name}").replace("{name}", short or "the model")


def _order(event: EventRow) -> tuple[int, int, int]:
    return _place_of(str(event.data.get("where"))), event.rank, event.id


def _place_of(where: str) -> int:
    order = list(_SEVERITIES)
    return order.index(where) if where in order else len(order)


def _told(where: str, group: Sequence[EventRow]) -> Unusual:
    first, more = group[0], len(group) - 1
    again = f", and {more:,} more time{'s' if more > 1 else ''} up to update {group[-1].step:,}" if more else ""
    said = origin_text(first)
    return Unusual(
        kind=where,
        severity=_SEVERITIES.get(where, "warning"),
        title="First to turn non-finite",
        sentence=f"{said[:1].upper()}{said[1:]} was the first to turn non-finite at update {first.step:,}{again}.",
        updates=len({event.step for event in group}),
        first=first.step,
        last=group[-1].step,
        stretches=[(event.step, event.step) for event in group[:MOST_STRETCHES]],
    )
