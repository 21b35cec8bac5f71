"""The outbox in a real database: taken by one, sent under one key, tried again, taken over from the dead."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import msgspec
import pytest
from scalescope_server.delivery.backoff import Backoff
from scalescope_server.delivery.grouping import MOST_TO_ONE, plan
from scalescope_server.delivery.notice import notice_key
from scalescope_server.store import tables
from scalescope_server.store.alert_records import DeliveryRow
from scalescope_server.store.channels import ChannelRow, Traffic
from scalescope_server.store.damping import SUPERSEDED, WITHIN_S
from scalescope_server.store.engine import Store, backend_of, open_store
from scalescope_server.store.leases import clock_of
from scalescope_server.store.notices import enter_deliveries
from scalescope_server.store.outbox import (
    BROWSER,
    FARTHEST_S,
    LEASE_S,
    MOST_OF_ONE,
    WINDOW_S,
    Ending,
    Plan,
    Taken,
    _has_turn,
    due_in,
    let_go,
    settle_at,
    take_at,
)
from scalescope_server.watching.notices import deliveries_of
from sqlalchemy import Connection, Engine, func, select

from tests.batches import Dictation, batch, hello
from tests.notices import notice
from tests.postgres import Cluster

pytestmark = pytest.mark.both_engines


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    """A database with one run."""
    with closing(open_store(database)) as store:
        store.writer.append(batch(hello(), Dictation().steps(0, 5))).result()
        engine = backend_of(database).writing()
        yield engine
        engine.dispose()


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    """One write transaction, so that a test may say what time it is."""
    with engine.begin() as connection:
        yield connection


def enter(connection: Connection, *firings: int, channel: str = "chat", **changes: Any) -> float:
    """Put the notices of these firings into the outbox; the answer is when they are due."""
    run = connection.execute(select(tables.run.c.key)).scalar_one()
    rows = []
    for firing in firings:
        told = notice(firing=firing, **changes)
        rows.append(
            DeliveryRow(
                id=notice_key(told, channel),
                channel=channel,
                rule=told.rule,
                firing=firing,
                happened=told.happened,
                notice=msgspec.to_builtins(told),
                at=told.at,
            )
        )
    enter_deliveries(connection, run, rows)
    return clock_of(connection)


def firings(taken: list[Taken]) -> list[list[int]]:
    return [[told["firing"] for told in one.notices] for one in taken]


def rows(connection: Connection) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(select(tables.delivery).order_by(tables.delivery.c.key)).mappings()]


def test_what_is_due_is_taken_once_and_noted_when_it_has_arrived(connection: Connection) -> None:
    now = enter(connection, 1)
    (taken,) = take_at(connection, "one", plan, now)
    assert (taken.channel, taken.attempt, taken.notices[0]["culprit"]) == ("chat", 1, "blocks.0.attn.weight")
    assert take_at(connection, "two", plan, now + 1) == []
    settle_at(connection, "one", [Ending(taken.message, 0.25)], now + 1)
    (row,) = rows(connection)
    assert (row["state"], row["attempts"], row["took_s"], row["error"]) == ("delivered", 1, 0.25, None)
    assert take_at(connection, "two", plan, now + 1000) == []
    assert due_in(connection) is None


def test_the_same_turn_entered_again_is_not_told_again(connection: Connection) -> None:
    now = enter(connection, 1)
    enter(connection, 1)
    assert firings(take_at(connection, "one", plan, now + 1)) == [[1]]


def test_an_attempt_that_failed_is_made_again_with_its_key_and_content(connection: Connection) -> None:
    now = enter(connection, 1, 2)
    (first,) = take_at(connection, "one", plan, now)
    settle_at(connection, "one", [Ending(first.message, 0.1, "no", retry_in_s=30.0)], now)
    enter(connection, 3)
    assert take_at(connection, "one", plan, now + 5) == []
    # What is new goes before what is tried again.
    new, second = take_at(connection, "two", plan, now + 31)
    assert firings([new, second]) == [[3], [1, 2]]
    assert (second.message, second.attempt, second.notices) == (first.message, 2, first.notices)


def test_what_comes_soon_after_an_attempt_waits_for_the_rest_of_it(connection: Connection) -> None:
    now = enter(connection, 1)
    (first,) = take_at(connection, "one", plan, now)
    enter(connection, 2)
    # While the first is on its way, and after it has arrived.
    assert take_at(connection, "one", plan, now + 1) == []
    settle_at(connection, "one", [Ending(first.message, 2.0)], now + 2)
    enter(connection, 3)
    assert take_at(connection, "one", plan, now + 3) == []
    assert firings(take_at(connection, "one", plan, now + 2 + WINDOW_S)) == [[2, 3]]


def test_other_channels_do_not_wait(connection: Connection) -> None:
    now = enter(connection, 1)
    take_at(connection, "one", plan, now)
    enter(connection, 1, channel="pager")
    assert [one.channel for one in take_at(connection, "one", plan, now + 1)] == ["pager"]


def test_what_a_server_that_died_had_taken_is_sent_by_another_under_the_same_key(connection: Connection) -> None:
    now = enter(connection, 1)
    (first,) = take_at(connection, "one", plan, now)
    assert take_at(connection, "two", plan, now + LEASE_S - 0.1) == []
    (second,) = take_at(connection, "two", plan, now + LEASE_S)
    assert (second.message, second.attempt) == (first.message, 2)
    # The first was only slow: what it found does not count any more.
    settle_at(connection, "one", [Ending(first.message, 25.0, "no")], now + LEASE_S + 1)
    assert rows(connection)[0]["state"] == "waiting"
    settle_at(connection, "two", [Ending(second.message, 0.1)], now + LEASE_S + 2)
    assert rows(connection)[0]["state"] == "delivered"


def test_what_a_server_lets_go_is_taken_at_once(connection: Connection) -> None:
    now = enter(connection, 1)
    (first,) = take_at(connection, "one", plan, now)
    let_go(connection, "two")
    assert take_at(connection, "two", plan, now + 1) == []
    let_go(connection, "one")
    assert take_at(connection, "two", plan, now + 1)[0].message == first.message


def test_a_lease_of_a_clock_that_was_set_back_binds_nobody(connection: Connection) -> None:
    now = enter(connection, 1)
    take_at(connection, "one", plan, now)
    assert len(take_at(connection, "two", plan, now)) == 0
    connection.execute(tables.delivery.update().values(leased_until=now + 1e6))
    assert len(take_at(connection, "two", plan, now)) == 1


def test_what_is_given_up_stays_with_its_reason_and_is_not_taken_again(connection: Connection) -> None:
    now = enter(connection, 1)
    (taken,) = take_at(connection, "one", plan, now)
    settle_at(connection, "one", [Ending(taken.message, 0.1, "the receiver answered 410")], now)
    (row,) = rows(connection)
    assert (row["state"], row["error"]) == ("failed", "the receiver answered 410")
    assert take_at(connection, "one", plan, now + 1e6) == []


def test_what_is_not_to_be_told_is_never_taken(connection: Connection) -> None:
    now = enter(connection, 1)
    connection.execute(tables.delivery.update().values(state="suppressed"))
    assert take_at(connection, "one", plan, now + 1) == []
    assert due_in(connection) is None


def test_when_there_will_be_something_to_take_is_known(connection: Connection) -> None:
    assert due_in(connection) is None
    now = enter(connection, 1)
    assert (due_in(connection) or 0.0) <= 0.0
    (taken,) = take_at(connection, "one", plan, now)
    assert due_in(connection) == pytest.approx(LEASE_S, abs=1.0)
    settle_at(connection, "one", [Ending(taken.message, 0.1, "no", retry_in_s=5.0)], now)
    assert due_in(connection) == pytest.approx(5.0, abs=1.0)


@contextmanager
def stored(database: str) -> Iterator[Store]:
    with closing(open_store(database)) as store:
        yield store


def test_two_servers_never_take_the_same(database: str, engine: Engine) -> None:
    with engine.begin() as connection:
        for channel in range(20):
            enter(connection, *range(5), channel=f"channel {channel}")
    with stored(database) as one, stored(database) as two:
        taken: list[Taken] = []

        def take_all(store: Store, holder: str) -> None:
            for _ in range(20):
                taken.extend(store.writer.take_deliveries(holder, plan).result())

        threads = [threading.Thread(target=take_all, args=args) for args in ((one, "one"), (two, "two"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(one.channel for one in taken) == sorted(f"channel {n}" for n in range(20))
    assert all(len(one.notices) == 5 for one in taken)


def test_a_server_has_no_turn_while_another_takes(postgres: Cluster) -> None:
    engine = backend_of(postgres.new(postgres.template)).writing()
    with engine.begin() as one, engine.begin() as two:
        assert _has_turn(one)
        assert not _has_turn(two)
    engine.dispose()


def channel(name: str, **changes: Any) -> ChannelRow:
    fields: dict[str, Any] = {"kind": "apprise", "config": {"url": "slack://t"}, "enabled": True, "created_at": 1.0}
    return ChannelRow(name=name, **(fields | changes))


def test_channels_are_kept_by_name_with_what_sending_needs(database: str) -> None:
    with stored(database) as store:
        writer = store.writer
        assert writer.add_channel(channel("b")).result()
        assert writer.add_channel(channel("a", kind="webhook", config={"url": "u", "secret": "s"})).result()
        assert not writer.add_channel(channel("a")).result()
        assert [(row.name, row.config) for row in store.reader.channels()] == [
            ("a", {"url": "u", "secret": "s"}),
            ("b", {"url": "slack://t"}),
        ]
        assert "slack" not in repr(store.reader.channels())
        assert writer.switch_channel("a", enabled=False).result()
        assert not writer.switch_channel("c", enabled=False).result()
        assert [row.enabled for row in store.reader.channels()] == [False, True]
        assert (writer.delete_channel("a").result(), writer.delete_channel("a").result()) == (True, False)


def test_what_became_of_a_channels_messages_is_counted_with_the_last_trouble(database: str, engine: Engine) -> None:
    with engine.begin() as connection:
        now = enter(connection, 1)
        (first,) = take_at(connection, "one", plan, now)
        settle_at(connection, "one", [Ending(first.message, 0.1, "the receiver answered 410")], now)
        enter(connection, 2)
        (second,) = take_at(connection, "one", plan, now + 1)
        settle_at(connection, "one", [Ending(second.message, 0.1)], now + 1)
        enter(connection, 3)
        tried = connection.execute(select(func.max(tables.delivery.c.tried_at))).scalar_one()
    with stored(database) as store:
        assert store.reader.traffic() == {"chat": Traffic(1, 1, 1, "the receiver answered 410", tried, True)}


def owned(connection: Connection, *turns: tuple[str, int], alert: int = 7, channel: str = "chat") -> float:
    """Put turns of one alert ((what happened, of which firing)) into the outbox; the answer is when they are due."""
    rows = []
    for happened, firing in turns:
        told = notice(happened=happened, firing=firing, rule=f"rule {alert}")
        rows += deliveries_of(told, [channel])
    enter_deliveries(connection, connection.execute(select(tables.run.c.key)).scalar_one(), rows, alert)
    return clock_of(connection)


def turns(taken: list[Taken]) -> list[list[tuple[str, int]]]:
    return [[(told["happened"], told["firing"]) for told in one.notices] for one in taken]


def test_that_it_is_over_waits_for_another_attempt_to_say_that_it_fires(connection: Connection) -> None:
    now = owned(connection, ("fired", 1))
    (first,) = take_at(connection, "one", plan, now)
    settle_at(connection, "one", [Ending(first.message, 0.1, "no", retry_in_s=60.0)], now)
    owned(connection, ("resolved", 1))
    owned(connection, ("fired", 1), alert=8)
    # Another alert, and another channel, go on.
    owned(connection, ("fired", 1), channel="pager")
    others = take_at(connection, "one", plan, now + 30)
    assert turns(others) == [[("fired", 1)], [("fired", 1)]]
    settle_at(connection, "one", [Ending(one.message, 0.1) for one in others], now + 30)
    assert take_at(connection, "one", plan, now + 45) == []
    (again,) = take_at(connection, "one", plan, now + 60)
    assert (again.message, turns([again])) == (first.message, [[("fired", 1)]])
    settle_at(connection, "one", [Ending(again.message, 0.1)], now + 60)
    assert turns(take_at(connection, "one", plan, now + 60 + WINDOW_S)) == [[("resolved", 1)]]


def test_what_waits_for_its_turn_does_not_call_the_courier(connection: Connection) -> None:
    now = owned(connection, ("fired", 1))
    (first,) = take_at(connection, "one", plan, now)
    settle_at(connection, "one", [Ending(first.message, 0.1, "no", retry_in_s=500.0)], now)
    owned(connection, ("resolved", 1))
    assert due_in(connection) == pytest.approx(500.0, abs=20.0)


def test_a_rule_made_again_under_its_name_is_told_of_anew(connection: Connection) -> None:
    enter_deliveries(connection, 1, deliveries_of(notice(), ["chat"]), 1)
    enter_deliveries(connection, 1, deliveries_of(notice(), ["chat"]), 2)
    # The same turn of the same alert is entered once.
    enter_deliveries(connection, 1, deliveries_of(notice(), ["chat"]), 2)
    assert [row["alert"] for row in rows(connection)] == [1, 2]
    assert len({row["id"] for row in rows(connection)}) == 2


def test_a_time_that_is_too_far_away_is_of_a_clock_that_was_set_back(connection: Connection) -> None:
    now = owned(connection, ("fired", 1))
    connection.execute(tables.delivery.update().values(due_at=now + 2 * FARTHEST_S))
    assert due_in(connection) == 0.0
    assert turns(take_at(connection, "one", plan, now)) == [[("fired", 1)]]
    assert Backoff().longest_s + WINDOW_S < FARTHEST_S
    assert WITHIN_S + WINDOW_S < FARTHEST_S


def test_a_channel_with_very_much_to_tell_keeps_no_other_from_being_looked_at(connection: Connection) -> None:
    now = enter(connection, *range(MOST_OF_ONE + 50), channel="hangs")
    connection.execute(tables.delivery.update().values(message=tables.delivery.c.id, due_at=now - 100))
    enter(connection, 1, channel="chat")
    taken = take_at(connection, "one", plan, now + 1)
    assert Counter(one.channel for one in taken) == {"hangs": MOST_TO_ONE, "chat": 1}


def test_what_was_taken_back_since_it_was_read_is_not_sent(connection: Connection) -> None:
    now = owned(connection, ("fired", 1))

    def acknowledged_meanwhile(*known: Any) -> Plan:
        planned = plan(*known)
        connection.execute(tables.delivery.update().values(state="suppressed"))
        return planned

    assert take_at(connection, "one", acknowledged_meanwhile, now) == []
    assert rows(connection)[0]["message"] is None


def test_of_an_alert_that_flaps_three_firings_are_told_and_then_the_newest_for_all(connection: Connection) -> None:
    now = clock_of(connection)
    for firing in range(1, 4):
        owned(connection, ("fired", firing), ("resolved", firing))
        told = take_at(connection, "one", plan, now + firing * WINDOW_S)
        assert turns(told) == [[("fired", firing), ("resolved", firing)]]
        settle_at(connection, "one", [Ending(told[0].message, 0.1)], now)
    connection.execute(tables.delivery.update().values(tried_at=now))
    for firing in range(4, 9):
        owned(connection, ("fired", firing), ("resolved", firing))
    owned(connection, ("fired", 9))
    owned(connection, ("fired", 1), alert=8)
    later = now + WITHIN_S
    # Another alert is told at once, and how this one stands when three firings are long enough ago.
    assert turns(take_at(connection, "one", plan, later - 1)) == [[("fired", 1)]]
    (taken,) = take_at(connection, "one", plan, later + WINDOW_S)
    assert turns([taken]) == [[("fired", 9)]]
    assert taken.notices[0]["unsaid"] == 5
    states = Counter((row["state"], row["error"]) for row in rows(connection) if row["firing"] in range(4, 9))
    assert states == {("suppressed", SUPERSEDED): 10}


def test_of_an_alert_that_flaps_pages_are_told_three_times_and_not_later(connection: Connection) -> None:
    for firing in range(1, 7):
        owned(connection, ("fired", firing), ("resolved", firing), channel=BROWSER)
    found = [(row["happened"], row["state"]) for row in rows(connection)]
    assert (
        found
        == [("fired", "delivered"), ("resolved", "delivered")] * 3
        + [
            ("fired", "suppressed"),
            ("resolved", "suppressed"),
        ]
        * 3
    )


def test_what_a_target_has_got_is_known_at_the_next_attempt(connection: Connection) -> None:
    now = owned(connection, ("fired", 1))
    (taken,) = take_at(connection, "one", plan, now)
    assert taken.reached == frozenset()
    reached = frozenset({"a", "b"})
    settle_at(connection, "one", [Ending(taken.message, 0.1, "no", 5.0, reached)], now)
    (again,) = take_at(connection, "one", plan, now + 5)
    assert again.reached == reached
