"""Many updates as columns are what they are one by one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from scalescope_server.rules.stretch import Stretch, stretch_of
from scalescope_server.rules.ticks import Tick

from tests.random_rules import ticks


def told(updates: list[Tick]) -> str:
    """Without what was not told, which may be absent or None. NaN is unequal to itself and reads as itself."""
    return repr([_told(tick) for tick in updates])


def _told(tick: Tick) -> tuple[object, ...]:
    values = sorted((name, value) for name, value in tick.values.items() if value is not None)
    by_rank = ((name, rank, value) for name, by in tick.ranks.items() for rank, value in by.items())
    ranks = sorted(row for row in by_rank if row[2] is not None)
    return tick.segment, tick.step, tick.at, values, tick.layers, ranks, sorted(tick.findings)


@settings(max_examples=40, deadline=None)
@given(ticks())
def test_columns_give_the_updates_that_they_were_made_of(updates: list[Tick]) -> None:
    assert told(list(stretch_of(updates).ticks())) == told(updates)


@settings(max_examples=40, deadline=None)
@given(ticks(), st.data())
def test_a_part_holds_what_the_whole_holds_there(updates: list[Tick], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(updates)))
    stop = data.draw(st.integers(start, len(updates)))
    part: Stretch = stretch_of(updates).part(start, stop)
    assert len(part) == stop - start
    assert told(list(part.ticks())) == told(updates[start:stop])


def test_a_finding_is_open_from_an_index_on_till_the_next() -> None:
    whole = stretch_of([Tick(0, step, 0.0, {}) for step in range(6)])
    opened = ((1, frozenset({"A"})), (4, frozenset[str]()))
    some = Stretch(whole.segment, whole.step, whole.at, {}, findings=opened)
    assert ["".join(tick.findings) for tick in some.ticks()] == ["", "A", "A", "A", "", ""]
    assert ["".join(tick.findings) for tick in some.part(2, 5).ticks()] == ["A", "A", ""]
