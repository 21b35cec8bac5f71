"""One batch's path: stored, counted, told to the pages, handed to the judge; only then acknowledged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from scalescope_server.app import open_rooms
from scalescope_server.flow import accept
from scalescope_server.news import News
from scalescope_server.rooms import Rooms
from scalescope_server.settings import Settings
from scalescope_server.store.delivery import Batch
from scalescope_server.store.engine import open_store
from scalescope_server.store.errors import BadRecord
from scalescope_server.store.records import RunId

from tests.serving import DEADLINE_S, hello, layout, skip, steps


@asynccontextmanager
async def rooms_over(database: str) -> AsyncIterator[Rooms]:
    settings = Settings(database=database)
    async with open_rooms(settings, open_store(database), time.time) as rooms:
        yield rooms


def batch(*records: object) -> Batch:
    return Batch(hello(), tuple(records), 1_700_000_000.0, 100)  # type: ignore[arg-type]


async def test_an_accepted_batch_is_stored_counted_and_told(database: str) -> None:
    async with rooms_over(database) as rooms:
        page = rooms.hub.open(RunId("run-1"))
        receipt = await accept(rooms, batch(layout(0), steps(1, 0, 3), skip(2, 1)))
        assert (receipt.durable, receipt.stored, receipt.steps, receipt.events) == (2, 3, (0, 3), 1)
        assert rooms.store.reader.latest(RunId("run-1")).attempted == 3
        told = await page.take(DEADLINE_S)
        assert isinstance(told, News)
        assert (told.run, told.attempted) == ("run-1", 3)
        assert (rooms.metrics.records_stored, rooms.metrics.commits) == (3, 1)


async def test_a_batch_that_comes_twice_is_stored_once(database: str) -> None:
    async with rooms_over(database) as rooms:
        await accept(rooms, batch(layout(0), steps(1, 0, 3)))
        receipt = await accept(rooms, batch(layout(0), steps(1, 0, 3), steps(2, 3)))
        assert (receipt.stored, receipt.duplicates, receipt.durable) == (1, 2, 2)
        assert rooms.store.reader.latest(RunId("run-1")).attempted == 4
        assert rooms.metrics.records_duplicate == 2


async def test_a_batch_that_is_refused_leaves_nothing_and_tells_no_one(database: str) -> None:
    async with rooms_over(database) as rooms:
        with pytest.raises(BadRecord):
            await accept(rooms, batch(layout(0), steps(1, 0, 3, scale=[1.0])))
        assert rooms.store.reader.runs() == ([], None)
        assert rooms.metrics.commits == 0


async def test_what_was_handed_to_the_store_is_stored_although_the_connection_ended(database: str) -> None:
    async with rooms_over(database) as rooms:
        accepting = asyncio.create_task(accept(rooms, batch(layout(0), steps(1, 0, 3))))
        await asyncio.sleep(0)
        accepting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await accepting
        admission = await asyncio.wrap_future(rooms.store.writer.admit(hello(), 1.0))
        assert admission.ledger.received == 2
