"""The courier over a real database and real sockets: at least once, one key each, retried, given up, never invented."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import msgspec
import pytest
from scalescope_server.delivery.addresses import parse_network
from scalescope_server.delivery.backoff import Backoff
from scalescope_server.delivery.courier import Courier
from scalescope_server.delivery.grouping import plan
from scalescope_server.delivery.notice import notice_key
from scalescope_server.delivery.sending import Sender
from scalescope_server.store import tables
from scalescope_server.store.alert_records import DeliveryRow
from scalescope_server.store.channels import ChannelRow
from scalescope_server.store.engine import Store, backend_of, open_store
from scalescope_server.store.errors import Unavailable
from scalescope_server.store.notices import enter_deliveries
from sqlalchemy import Engine, select

from tests.batches import Dictation, batch, hello
from tests.notices import notice
from tests.receiving import DEADLINE_S, SECRET, Receiver, receiving

QUICK = Backoff(first_s=0.02, longest_s=0.05, attempts=4)
SENDER = Sender(allowed=(parse_network("127.0.0.0/8"),))


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with closing(open_store(database)) as store:
        store.writer.append(batch(hello(), Dictation().steps(0, 5))).result()
        yield store


@pytest.fixture
def engine(database: str, store: Store) -> Iterator[Engine]:
    engine = backend_of(database).writing()
    yield engine
    engine.dispose()


def enter(engine: Engine, *firings: int, channel: str = "chat") -> list[str]:
    """Their keys."""
    told = [notice(firing=firing) for firing in firings]
    keys = [notice_key(one, channel) for one in told]
    with engine.begin() as connection:
        run = connection.execute(select(tables.run.c.key)).scalar_one()
        rows = [
            DeliveryRow(
                id=key,
                channel=channel,
                rule=one.rule,
                firing=one.firing,
                happened=one.happened,
                notice=msgspec.to_builtins(one),
                at=one.at,
            )
            for key, one in zip(keys, told, strict=True)
        ]
        enter_deliveries(connection, run, rows)
    return keys


def webhook(store: Store, receiver: Receiver, name: str = "chat") -> None:
    config = {"url": receiver.url, "secret": SECRET}
    row = ChannelRow(name=name, kind="webhook", config=config, enabled=True, created_at=1.0)
    assert store.writer.add_channel(row).result()


@asynccontextmanager
async def at_work(store: Store, *, holder: str = "one", backoff: Backoff = QUICK) -> AsyncIterator[Courier]:
    courier = Courier(store, SENDER, holder=holder, public_url="https://scale.example.com", backoff=backoff)
    task = asyncio.create_task(courier.run())
    try:
        yield courier
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def states(engine: Engine) -> list[tuple[Any, ...]]:
    row = tables.delivery.c
    with engine.begin() as connection:
        found = connection.execute(select(row.firing, row.state, row.attempts, row.error).order_by(row.key))
        return [tuple(one) for one in found]


async def until_settled(engine: Engine) -> list[tuple[Any, ...]]:
    """Once nothing waits any more."""
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(1000):
            if all(state != "waiting" for _, state, *_ in states(engine)):
                break
            await asyncio.sleep(0.02)
    return states(engine)


@pytest.mark.both_engines
async def test_what_was_entered_before_and_while_it_works_arrives_and_is_noted(store: Store, engine: Engine) -> None:
    with receiving() as receiver, receiving() as other:
        webhook(store, receiver)
        webhook(store, other, "pager")
        (first,) = enter(engine, 1)
        async with at_work(store) as courier:
            (received,) = await asyncio.to_thread(receiver.wait, 1)
            assert (received.key, received.is_signed) == (first, True)
            assert received.message["url"] == "https://scale.example.com/runs/run-1?from=790&to=1201"
            (second,) = enter(engine, 1, channel="pager")
            courier.wake()
            assert (await asyncio.to_thread(other.wait, 1))[0].key == second
            assert await until_settled(engine) == [(1, "delivered", 1, None)] * 2


async def test_a_storm_is_one_message(store: Store, engine: Engine) -> None:
    with receiving() as receiver:
        webhook(store, receiver)
        keys = enter(engine, *range(1, 31))
        async with at_work(store):
            (received,) = await asyncio.to_thread(receiver.wait, 1)
            await until_settled(engine)
        assert len(receiver.received) == 1
    assert [alert["key"] for alert in received.message["alerts"]] == keys
    assert received.message["title"] == "30 alerts on small gpt (demo): 30 warning"


async def test_what_fails_is_sent_again_under_the_same_key_until_it_arrives(
    store: Store, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with receiving(500, 503) as receiver, caplog.at_level(logging.WARNING, "scalescope.server"):
        webhook(store, receiver)
        enter(engine, 1, 2)
        async with at_work(store):
            received = await asyncio.to_thread(receiver.wait, 3)
            assert await until_settled(engine) == [(1, "delivered", 3, None), (2, "delivered", 3, None)]
    assert len({one.key for one in received}) == 1
    assert len({one.body for one in received}) == 1
    assert "attempt 1: the receiver answered 500; again in" in caplog.text
    assert "whsec" not in caplog.text


async def test_what_never_arrives_is_given_up_and_that_is_seen(
    store: Store, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with receiving(*[500] * 20) as receiver, caplog.at_level(logging.WARNING, "scalescope.server"):
        webhook(store, receiver)
        enter(engine, 1)
        async with at_work(store):
            assert await until_settled(engine) == [(1, "failed", 4, "the receiver answered 500")]
        assert len(receiver.received) == 4
    assert "given up after attempt 4" in caplog.text


async def test_a_channel_that_is_gone_or_off_fails_at_once_and_says_so(store: Store, engine: Engine) -> None:
    with receiving() as receiver:
        webhook(store, receiver, "off")
        store.writer.switch_channel("off", enabled=False).result()
        enter(engine, 1, channel="off")
        enter(engine, 2, channel="gone")
        async with at_work(store):
            found = await until_settled(engine)
        assert receiver.received == []
    assert found == [
        (1, "failed", 1, "the channel 'off' is switched off"),
        (2, "failed", 1, "there is no channel 'gone' any more"),
    ]


async def test_a_channel_that_hangs_keeps_no_other_waiting(store: Store, engine: Engine) -> None:
    with receiving() as hangs, receiving() as receiver:
        hangs.hold.clear()
        webhook(store, hangs, "hangs")
        webhook(store, receiver)
        enter(engine, 1, channel="hangs")
        async with at_work(store) as courier:
            await asyncio.to_thread(hangs.wait, 1)
            enter(engine, 2)
            courier.wake()
            await asyncio.to_thread(receiver.wait, 1)
            hangs.hold.set()
            assert await until_settled(engine) == [(1, "delivered", 1, None), (2, "delivered", 1, None)]


async def test_a_server_that_stops_lets_what_is_on_its_way_arrive(store: Store, engine: Engine) -> None:
    with receiving() as receiver:
        receiver.hold.clear()
        webhook(store, receiver)
        enter(engine, 1)
        async with at_work(store):
            await asyncio.to_thread(receiver.wait, 1)
            asyncio.get_running_loop().call_later(0.1, receiver.hold.set)
        assert states(engine) == [(1, "delivered", 1, None)]


async def test_what_its_predecessor_of_the_same_name_held_is_sent_at_once(store: Store, engine: Engine) -> None:
    with receiving() as receiver:
        webhook(store, receiver)
        keys = enter(engine, 1)
        # It died here: taken, and perhaps sent.
        (taken,) = store.writer.take_deliveries("one", plan).result()
        async with at_work(store):
            (received,) = await asyncio.to_thread(receiver.wait, 1)
    assert received.key == taken.message == keys[0]


async def test_what_no_server_lives_to_send_is_given_up(store: Store, engine: Engine) -> None:
    enter(engine, 1)
    with engine.begin() as connection:
        connection.execute(tables.delivery.update().values(attempts=QUICK.attempts))
    async with at_work(store):
        ((_, state, _, error),) = await until_settled(engine)
    assert (state, error) == ("failed", "each server that tried to send it ended before it was done")


async def test_a_database_that_is_away_is_told_of_once_and_waited_for(
    store: Store, engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    there = store.reader.deliveries_due_in

    def away() -> float | None:
        nonlocal asked
        asked += 1
        if asked <= 3:
            raise Unavailable("the database does not answer: locked")
        return there()

    monkeypatch.setattr(store.reader, "deliveries_due_in", away)
    monkeypatch.setattr("scalescope_server.delivery.courier.RETRY_S", 0.01)
    with receiving() as receiver:
        webhook(store, receiver)
        enter(engine, 1)
        async with at_work(store):
            await asyncio.to_thread(receiver.wait, 1)
            await until_settled(engine)
    assert caplog.text.count("delivery waits for the database") == 1
