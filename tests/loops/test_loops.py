"""Every loop of the catalogue, with the hook and without: the same bits, and recorded as it was."""

from __future__ import annotations

import pytest

from tests.loops.catalogue import Entry, outcome
from tests.loops.families import FAMILIES
from tests.loops.table import PAGE, page

ENTRIES = [entry for family in FAMILIES for entry in family.entries]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.family}: {entry.name}")
def test_a_loop_trains_to_the_same_bits_and_is_recorded_as_it_was(entry: Entry) -> None:
    assert outcome(entry)


def test_no_two_loops_share_a_name() -> None:
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)


def test_the_page_of_loops_is_what_they_have_shown() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.loops.table"
