"""Tasks that end together."""

from __future__ import annotations

import asyncio
import gc

import pytest
from scalescope_server.tasks import first_to_end, may_fail_unheard


async def test_the_others_are_cancelled_and_have_stopped_when_one_ends() -> None:
    stopped = []

    async def lasting() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    async def short() -> None:
        await asyncio.sleep(0)

    await first_to_end(lasting(), short(), lasting())
    assert stopped == [True, True]


async def test_what_the_first_raises_is_raised() -> None:
    async def failing() -> None:
        raise LookupError("first")

    with pytest.raises(LookupError, match="first"):
        await first_to_end(asyncio.Event().wait(), failing())  # type: ignore[arg-type]


async def test_cancelling_the_whole_cancels_each() -> None:
    stopped = []

    async def lasting() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    whole = asyncio.create_task(first_to_end(lasting(), lasting()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    whole.cancel()
    with pytest.raises(asyncio.CancelledError):
        await whole
    assert stopped == [True, True]


async def test_a_failure_that_nobody_waits_for_any_more_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    # What tests before have left is none of this.
    gc.collect()
    caplog.clear()
    for unheard in (True, False):
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if unheard:
            may_fail_unheard(future)
        future.set_exception(LookupError(f"unheard: {unheard}"))
        await asyncio.sleep(0)
        del future
        gc.collect()
    assert [str(record.exc_info and record.exc_info[1]) for record in caplog.records] == ["unheard: False"]
