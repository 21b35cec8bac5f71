"""Who asked may leave before the answer is there: a page whose user types on asks anew, and nobody reads the rest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from fastapi import Request

# Whether who asked has left. Any thread.
Left: TypeAlias = Callable[[], bool]

Answer = TypeVar("Answer")


async def while_attended(request: Request, work: Callable[[Left], Coroutine[Any, Any, Answer]]) -> Answer | None:
    """What ``work`` comes to; None where who asked leaves before.

    It is cancelled then, and what it has begun in a thread looks itself whether anybody waits for it. The body of
    ``request`` has been read.
    """
    left = threading.Event()
    working, leaving = asyncio.create_task(work(left.is_set)), asyncio.create_task(_leave(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        left.set()
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _leave(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
