"""The set-up of a training: told whole, when something changed, and never too long."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scalescope.taps.edge import Edge
from scalescope.taps.setup.setups import Setups, setup_text
from scalescope.updates import Update
from scalescope.wire import Setup


class Told:
    """Set-ups with what they sent."""

    def __init__(self) -> None:
        self.records: list[Setup] = []
        self.edge = Edge()
        self.setups = Setups(self.records.append, self.edge)

    def close(self, step: int, *, sampled: bool = False) -> None:
        self.setups.closing(Update(step, float(step), periodic=sampled))

    def sent(self) -> list[tuple[int, dict[str, Any]]]:
        return [(record.step, json.loads(record.data)) for record in self.records]


def test_a_set_up_is_told_whole_when_the_first_part_of_it_is_known() -> None:
    told = Told()
    told.close(0)
    told.setups.tell("flags", {"tf32": False})
    told.setups.tell("autocast", {"cpu": "bf16"})
    told.close(1)
    assert told.sent() == [(1, {"flags": {"tf32": False}, "autocast": {"cpu": "bf16"}})]


def test_what_has_not_changed_is_not_told_again() -> None:
    told = Told()
    for step in range(300):
        told.setups.tell("flags", {"tf32": False})
        told.close(step)
    told.setups.remove()
    assert [step for step, _ in told.sent()] == [0]


def test_what_changes_all_the_time_is_told_now_and_then_and_at_the_end() -> None:
    told = Told()
    for step in range(200):
        told.setups.tell("bytes", {"peak": step})
        told.close(step)
    told.setups.remove()
    assert told.sent() == [(step, {"bytes": {"peak": step}}) for step in (0, 64, 128, 192, 199)]


def test_a_part_that_is_taken_away_is_gone_from_the_next() -> None:
    told = Told()
    told.setups.tell("without_gradient", ["head.weight"])
    told.setups.tell("flags", {})
    told.close(0)
    told.setups.tell("without_gradient", None)
    told.close(64)
    assert told.sent()[-1] == (64, {"flags": {}})


def test_a_part_is_read_at_sampled_updates_and_a_costly_one_ever_more_seldom() -> None:
    told = Told()
    often: list[int] = []
    seldom: list[int] = []
    told.setups.read("flags", lambda: often.append(1))
    told.setups.read("bytes", lambda: seldom.append(len(often)), now_and_then=True)
    for step in range(400):
        told.close(step, sampled=step % 2 == 0)
    assert len(often) == 200
    assert seldom == [1, 2, 4, 8, 16, 32, 64, 128, 192]


def test_a_part_that_cannot_be_read_takes_no_other_with_it() -> None:
    told = Told()

    def refuse() -> object:
        raise RuntimeError("no")

    told.setups.read("flags", refuse)
    told.setups.read("bytes", lambda: {"peak": 1})
    told.close(0, sampled=True)
    assert told.sent() == [(0, {"bytes": {"peak": 1}})]
    assert told.edge.errors == 1


def test_a_long_part_is_cut_and_says_how_much_is_left_out_while_the_short_ones_stay_whole() -> None:
    names = [f"layers.{number}.weight" for number in range(2000)]
    text = setup_text({"without_gradient": names, "flags": {"tf32": True}, "modules": dict.fromkeys(names, "fp16")})
    told = json.loads(text)
    assert 15_000 < len(text) <= 16_000
    assert told["flags"] == {"tf32": True}
    assert told["without_gradient"] == names[: 2000 - told["left_out"]["without_gradient"]]
    assert list(told["modules"]) == names[: 2000 - told["left_out"]["modules"]]


parts = st.sampled_from(["flags", "bytes", "tied", "modules"])
values = st.recursive(st.text(max_size=40) | st.integers(), lambda one: st.lists(one) | st.dictionaries(st.text(), one))


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(parts, values), st.integers(200, 600))
def test_a_text_is_never_longer_than_its_room(parts: dict[str, object], room: int) -> None:
    text = setup_text(parts, room=room)
    told = json.loads(text)
    assert len(text) <= room
    assert told == parts or sum(told["left_out"].values()) > 0


def test_a_number_that_json_lacks_is_refused_where_it_is_told() -> None:
    with pytest.raises(ValueError, match="JSON"):
        setup_text({"eps": float("nan")})
