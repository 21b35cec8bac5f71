"""What monitoring asks: is the server alive, is it ready, and how is it doing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from scalescope.version import __version__

from scalescope_server.answers import HealthAnswer, json_answer
from scalescope_server.errors import UnavailableError
from scalescope_server.metrics import CONTENT_TYPE
from scalescope_server.openapi import answers
from scalescope_server.rooms import Rooms, RoomsHere
from scalescope_server.store.errors import StoreError

# Those who ask wait a second or two themselves.
ANSWER_WITHIN_S = 1.0

Answer = TypeVar("Answer")

router = APIRouter(tags=["monitoring"])


@router.get("/healthz", responses=answers(HealthAnswer, "The server lives."))
async def healthz() -> Response:
    """Answers as long as the event loop runs; touches nothing else."""
    return json_answer(HealthAnswer("ok", __version__))


@router.get(
    "/readyz", responses=answers(HealthAnswer, "The database answers and takes writes, and its schema is current.")
)
async def readyz(rooms: RoomsHere) -> Response:
    """Whether the server can serve now; 503 while it cannot read or write its database, or a part of it has failed."""
    for task, what in ((rooms.telling, "pages get no news"), (rooms.delivering, "alerts are not delivered")):
        if task.done():
            raise UnavailableError(f"{what} any more; the server's log says why: restart it")
    if not await _soon(rooms, rooms.store.is_ready):
        raise UnavailableError(
            "the database's schema is not the one of this server: an older one is brought up by 'scalescope migrate', "
            "for a newer one start the version that belongs to it"
        )
    if (trouble := await _trouble(rooms)) is not None:
        raise UnavailableError(f"nothing can be written: {trouble}")
    return json_answer(HealthAnswer("ready", __version__))


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(rooms: RoomsHere) -> Response:
    """Prometheus text. Without the runs when the database does not answer now: the rest still counts."""
    try:
        runs = await _soon(rooms, rooms.store.reader.states)
    except UnavailableError:
        runs = {}
    text = rooms.metrics.exposition(
        runs=runs,
        pages=rooms.hub.pages,
        judged=rooms.judge.holding(),
        failing=rooms.judge.failing(),
        hears=rooms.telegraph.listening,
    )
    return Response(text, media_type=CONTENT_TYPE)


async def _trouble(rooms: Rooms) -> str | None:
    """Why nothing can be written: what the last write met, unless it is over."""
    writer = rooms.store.writer
    if writer.trouble() is not None:
        with contextlib.suppress(TimeoutError, StoreError):
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await asyncio.shield(asyncio.wrap_future(writer.touch()))
    return writer.trouble()


async def _soon(rooms: Rooms, call: Callable[[], Answer]) -> Answer:
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return await rooms.monitoring.read(call)
    except (TimeoutError, StoreError) as error:
        raise UnavailableError("the database does not answer now") from error
