"""The reading room: the event loop goes on while threads wait for the database, and the wait is bounded."""

from __future__ import annotations

import asyncio
import threading

import pytest
from scalescope_server.errors import UnavailableError
from scalescope_server.rooms import MAX_WAITING_READS, ReadingRoom


async def test_a_read_runs_in_another_thread_and_its_answer_comes_back() -> None:
    reading = ReadingRoom(1)

    def multiply(number: int, *, by: int) -> tuple[int, int]:
        return threading.get_ident(), number * by

    thread, doubled = await reading.read(multiply, 21, by=2)
    assert doubled == 42
    assert thread != threading.get_ident()
    reading.close()


async def test_what_a_read_raises_is_raised_where_it_was_asked_for() -> None:
    reading = ReadingRoom(1)
    with pytest.raises(ZeroDivisionError):
        await reading.read(lambda: 1 // 0)
    reading.close()


async def test_a_read_whose_caller_gave_up_counts_until_it_ends() -> None:
    reading = ReadingRoom(1)
    begun, locked = threading.Event(), threading.Event()

    def linger() -> None:
        begun.set()
        locked.wait(20.0)

    first = asyncio.create_task(reading.read(linger))
    await asyncio.to_thread(begun.wait)
    for _ in range(MAX_WAITING_READS - 1):
        # The pool's one thread is taken, so these wait; who asks no longer, takes its read out of the line.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await reading.read(locked.wait, 20.0)
    assert reading.waiting == 1
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert reading.waiting == 1
    locked.set()
    assert await reading.read(lambda: "again") == "again"
    reading.close()


async def test_more_waiting_reads_than_the_bound_are_refused_at_once() -> None:
    reading = ReadingRoom(1)
    locked = threading.Event()
    waiting = [asyncio.create_task(reading.read(locked.wait, 20.0)) for _ in range(MAX_WAITING_READS)]
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="too many requests"):
        await reading.read(lambda: None)
    locked.set()
    assert all(await asyncio.gather(*waiting))
    assert await reading.read(lambda: "again") == "again"
    reading.close()
