"""The application: joins the rooms of one server and owns them from start to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from functools import partial

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from scalescope.version import __version__
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from scalescope_server import (
    api,
    api_alerts,
    api_channels,
    api_rules,
    auth,
    charts,
    downloads,
    health,
    ingest,
    live,
    measurements,
    pages,
)
from scalescope_server.answers import ErrorAnswer, ErrorBody, error_answer, json_answer
from scalescope_server.delivery.announcing import Announced, announced
from scalescope_server.delivery.courier import Courier
from scalescope_server.delivery.sending import Sender
from scalescope_server.edge import MAX_BODY_BYTES, BodyLimit, RootPath, SecurityHeaders
from scalescope_server.errors import InvalidError, ServerError, from_store
from scalescope_server.judge import ONLY, Judge
from scalescope_server.live import Hub
from scalescope_server.metrics import Metrics
from scalescope_server.neighbours import Neighbours
from scalescope_server.openapi import describe, errors
from scalescope_server.rooms import ReadingRoom, Rooms
from scalescope_server.settings import Settings
from scalescope_server.sockets import SmallFramesFirst
from scalescope_server.store.engine import Store
from scalescope_server.store.errors import StoreError
from scalescope_server.store.marks import Mark
from scalescope_server.store.records import RunId, RunSummary
from scalescope_server.tasks import first_to_end
from scalescope_server.upkeep import Upkeep

logger = logging.getLogger("scalescope.server")

# Open sockets are told to go and given this long; what was received is committed within it.
STOP_WITHIN_S = 5
# A frame of 16 MiB on a slow line may stand before the pong.
PONG_WITHIN_S = 60
MAX_EXPECTED = 200
# Rules that are tried on the past or wait to be: one at a time, and each takes seconds of the machine.
MAX_TRIALS = 8

# What the framework raises by itself.
_HTTP_ERRORS = {
    404: ("not_found", "there is nothing at this address"),
    405: ("method_not_allowed", "this address does not take this method"),
    413: ("too_large", f"expected a body of at most {MAX_BODY_BYTES} bytes"),
}


def create_app(settings: Settings, store: Store, *, clock: Callable[[], float] = time.time) -> FastAPI:
    """The application over ``store``, which it owns from the start of its lifespan and closes at the end."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_rooms(settings, store, clock) as rooms:
            app.state.rooms = rooms
            app.state.trainers = ingest.Trainers()
            yield

    app = FastAPI(
        title="Scalescope",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # Both pages of FastAPI load their scripts from elsewhere.
        redoc_url=None,
        redirect_slashes=False,
        responses=errors(),
        middleware=[
            Middleware(RootPath, settings.root_path),
            Middleware(SecurityHeaders),
            Middleware(auth.Guard, settings),
            Middleware(BodyLimit),
        ],
        exception_handlers={
            ServerError: _told,
            StoreError: _told,
            HTTPException: _told_http,
            RequestValidationError: _told_invalid,
            Exception: _told_failure,
        },
    )
    rooms = (
        health,
        api,
        api_rules,
        api_alerts,
        api_channels,
        measurements,
        downloads,
        charts,
        ingest,
        live,
        auth,
        pages,
    )
    for room in rooms:
        app.include_router(room.router)
    describe(app)
    return app


def create_server(app: FastAPI, *, log_level: str = "warning") -> uvicorn.Server:
    """A server for ``app``, to be run on a socket that listens already."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            loop="uvloop" if sys.platform != "win32" else "asyncio",
            http="httptools",
            ws=SmallFramesFirst,
            ws_per_message_deflate=False,  # It costs 21 to 40 times what it saves here.
            ws_ping_timeout=PONG_WITHIN_S,
            lifespan="on",
            access_log=False,  # The login address holds the token.
            server_header=False,
            log_level=log_level,
            timeout_graceful_shutdown=STOP_WITHIN_S,
        )
    )


@contextlib.asynccontextmanager
async def open_rooms(settings: Settings, store: Store, clock: Callable[[], float]) -> AsyncIterator[Rooms]:
    """The rooms of one server, at work; at the end the judge stops, then the store writes what waits and closes."""
    reading, monitoring = ReadingRoom(settings.readers), ReadingRoom(1)
    trying = ReadingRoom(1, MAX_TRIALS, "many rules are being tried on the past already: try again in a while")

    async def latest(run: RunId) -> RunSummary:
        return await reading.read(store.reader.latest, run)

    async def marks(runs: Collection[RunId]) -> Mapping[RunId, Mark]:
        return await reading.read(store.reader.marks, runs)

    async def alerts(run: RunId) -> list[Announced]:
        found = await reading.read(store.reader.announced, run)
        told = [announced(one.id, one.notice, settings.root_path) for one in found]
        return [one for one in told if one is not None]

    name, telegraph = _own_name(), store.telegraph()
    hub = Hub(latest, silent_after_s=settings.silent_after_s, clock=clock, telegraph=telegraph, announced=alerts)
    holder = f"{name}/{secrets.token_hex(4)}" if store.shared else ONLY
    sender = Sender(settings.delivery.allow_targets, settings.delivery.commands, clock)
    courier = Courier(store, sender, holder=holder, public_url=settings.public_url)
    judge = Judge(store, hub, holder=holder, now=clock, outbox=courier.wake)
    works = [hub.run()]
    if store.shared:
        works.append(Neighbours(telegraph, hub, judge, marks).run())
    telling, delivering = asyncio.create_task(first_to_end(*works)), asyncio.create_task(courier.run())
    telling.add_done_callback(partial(_tell_failure, "pages get no news any more"))
    delivering.add_done_callback(partial(_tell_failure, "alerts are not delivered any more"))
    upkeep = Upkeep(store, prune_older_than_s=settings.prune_older_than_s, clock=clock)
    judge.start()
    upkeep.start()
    await _expect_running(hub, reading, store)
    try:
        yield Rooms(
            settings,
            store,
            hub,
            judge,
            reading,
            monitoring,
            trying,
            Metrics(name),
            clock,
            telegraph,
            telling,
            upkeep,
            sender,
            delivering,
        )
    finally:
        # All wait for threads that may be in the middle of a transaction. What the judge still tells is passed on.
        await asyncio.to_thread(upkeep.stop)
        await asyncio.to_thread(judge.stop)
        for task in (telling, delivering):
            task.cancel()
        await asyncio.gather(telling, delivering, return_exceptions=True)
        await asyncio.to_thread(store.close)
        for room in (reading, monitoring, trying):
            room.close()


def _own_name() -> str:
    """What people call this process among the servers of one database: containers have a host name each."""
    return f"{socket.gethostname()[:64]}:{os.getpid()}"


async def _expect_running(hub: Hub, reading: ReadingRoom, store: Store) -> None:
    """Let the hub notice when a trainer does not come back after our restart."""
    with contextlib.suppress(StoreError):
        running, _ = await reading.read(store.reader.runs, state="running", limit=MAX_EXPECTED)
        for run in running:
            hub.expect(RunId(run.id), run.last_seen_at)


def _tell_failure(what: str, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s: restart the server", what, exc_info=error)


async def _told(_: Request, error: Exception) -> Response:
    if isinstance(error, StoreError):
        error = from_store(error)
    assert isinstance(error, ServerError)
    return error_answer(error)


async def _told_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code, message = _HTTP_ERRORS.get(error.status_code, ("http", str(error.detail)))
    answer = json_answer(ErrorAnswer(ErrorBody(code, message, None)), error.status_code)
    answer.headers.update(error.headers or {})
    return answer


async def _told_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    # ("query", "points") or ("body", "tags", 3); a body that is no JSON has only a position: ("body", 17).
    named = first["loc"][1:] if all(isinstance(part, str) for part in first["loc"][:2]) else ()
    field = ".".join(map(str, named)) or None
    return error_answer(InvalidError(f"{field or 'body'}: {first['msg']}", field=field))


async def _told_failure(_: Request, __: Exception) -> Response:
    # The server's log has the trace; the caller gets a sentence.
    return error_answer(ServerError("the server failed to answer; its log says why"))
