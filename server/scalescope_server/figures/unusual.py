"""Windows in which something was wrong, in words: what, in which updates, and by which factor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from scalescope_server.figures.unusual_kinds import KINDS, Kind, Severity
from scalescope_server.figures.windows import length, parts_of
from scalescope_server.store.records import FactsRow

# A list of stretches beyond this is for the API, which has all of them.
MOST_STRETCHES = 50


class Unusual(Struct, frozen=True, kw_only=True):
    """One thing that was unusual of ``updates`` updates, in ``stretches`` (first, last), the first ones of them."""

    kind: str
    severity: Severity
    title: str
    sentence: str
    updates: int
    first: int
    last: int
    stretches: list[tuple[int, int]]


@dataclass(slots=True)
class _Seen:
    found: dict[tuple[object, ...], None] = field(default_factory=dict)
    updates: int = 0
    stretches: list[tuple[int, int]] = field(default_factory=list)

    def add(self, item: FactsRow, found: Iterable[tuple[object, ...]]) -> None:
        self.found.update(dict.fromkeys(found))
        self.updates += length(item)
        if self.stretches and self.stretches[-1][1] + 1 == item.first_step:
            self.stretches[-1] = (self.stretches[-1][0], item.last_step)
        else:
            self.stretches.append((item.first_step, item.last_step))


def told_apart(items: Sequence[FactsRow]) -> tuple[list[Unusual], list[FactsRow]]:
    """What was unusual of the windows, the worst first, and those in which nothing was wrong."""
    seen, usual = [_Seen() for _ in KINDS], []
    for item in items:
        parts, wrong = [part for _, part in parts_of(item.facts)], False
        for kind, of_kind in zip(KINDS, seen, strict=True):
            if found := [each for part in parts for each in kind.read(part)]:
                of_kind.add(item, found)
                wrong = wrong or kind.severity != "info"
        if not wrong:
            usual.append(item)
    return [_told(kind, of_kind) for kind, of_kind in zip(KINDS, seen, strict=True) if of_kind.updates], usual


def _told(kind: Kind, seen: _Seen) -> Unusual:
    return Unusual(
        kind=kind.name,
        severity=kind.severity,
        title=kind.title,
        sentence=kind.tell(list(seen.found)),
        updates=seen.updates,
        first=seen.stretches[0][0],
        last=seen.stretches[-1][1],
        stretches=seen.stretches[:MOST_STRETCHES],
    )
