"""What is stored, as ranges: whatever comes in whatever order, and however often."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from scalescope.ledger import Ledger


@settings(deadline=None)
@given(st.lists(st.integers(0, 60)))
def test_a_ledger_holds_what_was_entered_and_counts_it(entered: list[int]) -> None:
    ledger = Ledger()
    for sequence in entered:
        ledger = ledger.add(sequence)
    assert {n for n in range(70) if n in ledger} == set(entered)
    assert ledger.received == len(set(entered))
    assert ledger.highest == max(entered, default=-1)
    assert ledger.missing == ledger.highest + 1 - ledger.received
    gap = next(n for n in range(100) if n not in set(entered))
    assert ledger.contiguous == gap - 1
    assert all(one[1] + 1 < other[0] for one, other in zip(ledger.ranges, ledger.ranges[1:], strict=False))


@settings(deadline=None)
@given(st.lists(st.integers(0, 60)), st.integers(0, 60), st.integers(0, 20))
def test_a_range_is_entered_as_its_numbers_would_be(entered: list[int], first: int, more: int) -> None:
    ledger = Ledger()
    for sequence in entered:
        ledger = ledger.add(sequence)
    one_by_one = ledger
    for sequence in range(first, first + more + 1):
        one_by_one = one_by_one.add(sequence)
    assert ledger.add_range(first, first + more) == one_by_one
