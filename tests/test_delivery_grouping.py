"""What goes out as one message: first at once, the rest of a storm together, and never another content under a key."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from scalescope_server.delivery.grouping import MOST_AT_ONCE, MOST_IN_ONE, MOST_TO_ONE, plan
from scalescope_server.store.outbox import WINDOW_S, Waiting

NOW = 1000.0


def row(key: int, run: int = 1, channel: str = "chat", message: str | None = None) -> Waiting:
    return Waiting(key, run, channel, f"id-{key}", message)


def test_a_single_one_goes_at_once_under_its_own_key() -> None:
    (parcel,) = plan([row(1)], {}, NOW).parcels
    assert (parcel.message, parcel.channel, parcel.rows) == ("id-1", "chat", (1,))


def test_all_that_a_run_has_for_a_channel_is_one_message_and_other_runs_and_channels_have_theirs() -> None:
    planned = plan([row(1), row(2), row(3, run=2), row(4, channel="pager")], {}, NOW)
    # Each channel has its turn.
    assert [parcel.rows for parcel in planned.parcels] == [(1, 2), (4,), (3,)]
    assert planned.later == {}


def test_what_comes_soon_after_waits_until_the_window_is_over() -> None:
    planned = plan([row(1), row(2), row(3, run=2)], {(1, "chat"): NOW + 4}, NOW)
    assert [parcel.rows for parcel in planned.parcels] == [(3,)]
    assert planned.later == {1: NOW + 4, 2: NOW + 4}
    assert [parcel.rows for parcel in plan([row(1), row(2)], {(1, "chat"): NOW}, NOW).parcels] == [(1, 2)]


def test_a_clock_that_was_set_back_keeps_nothing_for_longer_than_a_window() -> None:
    assert len(plan([row(1)], {(1, "chat"): NOW + WINDOW_S + 1}, NOW).parcels) == 1


def test_an_attempt_that_is_made_again_has_its_key_and_content_whatever_has_come_meanwhile() -> None:
    (first,) = plan([row(1), row(2)], {}, NOW).parcels
    tried = [row(1, message=first.message), row(2, message=first.message)]
    planned = plan([*tried, row(3)], {(1, "chat"): NOW + 5}, NOW)
    assert planned.parcels == (first,)
    assert planned.later == {3: NOW + 5}


def test_a_storm_without_an_end_is_messages_with_one() -> None:
    planned = plan([row(key) for key in range(MOST_IN_ONE + 5)], {}, NOW)
    assert [len(parcel.rows) for parcel in planned.parcels] == [MOST_IN_ONE]
    assert set(planned.later.values()) == {NOW + WINDOW_S}
    assert len(planned.later) == 5


def test_a_channel_that_hangs_takes_only_its_own_room() -> None:
    rows = [row(key, run=key, channel="hangs") for key in range(100)] + [row(200, channel="chat")]
    planned = plan(rows, {}, NOW)
    assert Counter(parcel.channel for parcel in planned.parcels) == {"hangs": MOST_TO_ONE, "chat": 1}
    assert planned.later == {}
    assert [p.channel for p in plan(rows, {}, NOW, sending={"hangs": MOST_TO_ONE}).parcels] == ["chat"]
    assert plan(rows, {}, NOW, sending={"others": MOST_AT_ONCE}).parcels == ()


def test_four_channels_that_hang_leave_half_of_the_room_to_others() -> None:
    names = ["a", "b", "c", "d"]
    rows = [row(10 * key + n, run=10 * key + n, channel=name) for key, name in enumerate(names) for n in range(9)]
    hanging = Counter(parcel.channel for parcel in plan(rows, {}, NOW).parcels)
    assert hanging == dict.fromkeys(names, 2)
    others = [row(100 + n, run=n, channel=f"other {n}") for n in range(20)]
    sent = [parcel.channel for parcel in plan([*rows, *others], {}, NOW, sending=hanging).parcels]
    assert sent == [f"other {n}" for n in range(MOST_AT_ONCE - hanging.total())]


def test_what_is_new_gets_room_before_what_has_failed() -> None:
    tried = [row(n, run=n, channel=f"tried {n}", message=f"m{n}") for n in range(30)]
    planned = plan([*tried, row(100, channel="new")], {}, NOW)
    assert planned.parcels[0].channel == "new"
    assert len(planned.parcels) == MOST_AT_ONCE


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from("ab"), st.sampled_from([None, "m1", "m2"])), max_size=30))
def test_in_whatever_order_rows_come_each_is_sent_or_put_off_or_left_once(
    given_rows: list[tuple[int, str, str | None]],
) -> None:
    # What went into one message is of one run and channel.
    rows = [
        row(key, run, channel) if message is None else row(key, int(message[1]), "a", message)
        for key, (run, channel, message) in enumerate(given_rows)
    ]
    planned = plan(rows, {(1, "a"): NOW + 1}, NOW)
    used = [key for parcel in planned.parcels for key in parcel.rows] + list(planned.later)
    assert len(used) == len(set(used)) <= len(rows)
    shuffled = random.Random(0).sample(rows, len(rows))
    again = plan(shuffled, {(1, "a"): NOW + 1}, NOW)
    assert {parcel.message for parcel in again.parcels} == {parcel.message for parcel in planned.parcels}
