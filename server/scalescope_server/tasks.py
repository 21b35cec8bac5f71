"""Tasks that belong together: each has an owner, and none outlives it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first_to_end(*works: Coroutine[object, object, None]) -> None:
    """Run ``works`` until one of them ends, then cancel the others and wait until they have stopped.

    Raises:
        Exception: what the first to end raised.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def may_fail_unheard(future: asyncio.Future[Any]) -> None:
    """Whoever waits for ``future`` may have ended before it does: then its failure is nobody's, and not logged."""
    future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
