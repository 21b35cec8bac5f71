"""What monitoring asks: is the server alive, is it ready, and how is it doing."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response
from scalescope.version import __version__

from scalescope_server.answers import HealthAnswer, json_answer
from scalescope_server.errors import UnavailableError
from scalescope_server.metrics import CONTENT_TYPE
from scalescope_server.openapi import answers
from scalescope_server.rooms import Rooms, RoomsHere
from scalescope_server.store.errors import StoreError

# Those who ask wait a second or two themselves.
ANSWER_WITHIN_S = 1.0

router = APIRouter(tags=["monitoring"])


@router.get("/healthz", responses=answers(HealthAnswer, "The server lives."))
async def healthz() -> Response:
    """Answers as long as the event loop runs; touches nothing else."""
    return json_answer(HealthAnswer("ok", __version__))


@router.get("/readyz", responses=answers(HealthAnswer, "The database answers."))
async def readyz(rooms: RoomsHere) -> Response:
    """Whether the database can be read now. Its schema was made current before the server began to listen."""
    await _runs(rooms)
    return json_answer(HealthAnswer("ready", __version__))


@router.get("/metrics", response_class=Response)
async def metrics(rooms: RoomsHere) -> Response:
    """Prometheus text. Without the runs when the database does not answer now: the rest still counts."""
    try:
        runs = await _runs(rooms)
    except UnavailableError:
        runs = {}
    return Response(rooms.metrics.exposition(runs=runs, pages=rooms.hub.pages), media_type=CONTENT_TYPE)


async def _runs(rooms: Rooms) -> dict[str, int]:
    """How many runs are in each state. Raises :class:`UnavailableError` if the database does not answer soon."""
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return await rooms.reading.read(rooms.store.reader.run_counts)
    except (TimeoutError, StoreError) as error:
        raise UnavailableError("the database does not answer") from error
