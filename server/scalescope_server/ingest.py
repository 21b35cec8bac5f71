"""The trainers' socket, ``WS /api/ingest``: Hello, then records until the trainer leaves.

Two tasks share a connection. One reads frames and lets records gather; the other stores what has gathered
since its last commit as one batch, and acknowledges it. So a fast trainer gets large commits and an idle one
small delays. When a trainer sends faster than the database takes, reading stops and TCP tells it.

A client that sends nonsense, or leaves, is normal: it gets a sentence, and the log one line.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import msgspec
from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from scalescope.session import ServerSession, SessionError, ack
from scalescope.version import __version__
from scalescope.wire import Heartbeat, Hello, Record, RefusalCode, Refused, encode

from scalescope_server.flow import accept
from scalescope_server.gathering import Gathering
from scalescope_server.rooms import Rooms, rooms_of
from scalescope_server.sockets import sending, take_large_frames
from scalescope_server.store.delivery import Admission, Batch, Receipt
from scalescope_server.store.errors import BadRecord, Busy, Gone, StoreError, Superseded
from scalescope_server.store.records import RunId
from scalescope_server.store.weight import weight_of
from scalescope_server.tasks import first_to_end, may_fail_unheard

MAX_CONNECTIONS = 4096
# Of the time after which a silent trainer's connection is closed it may be so much more.
PATIENT_SHARE = 1 / 16
BUSY_WAIT_S = 0.05
BUSY_TRIES = 100

POLICY_VIOLATION = 1008
TRY_AGAIN_LATER = 1013

logger = logging.getLogger("scalescope.server")
router = APIRouter()

Rank = tuple[str, str, int]


class Trainers:
    """Who is connected to this server: one connection for each (run, segment, rank), the latest.

    Of connections to other servers the store tells, when something is to be entered (see ``store.delivery``).
    """

    def __init__(self) -> None:
        self._present: dict[Rank, asyncio.Event] = {}

    def enter(self, rank: Rank, superseded: asyncio.Event) -> None:
        """Take the place of ``rank``. The event is set once a later connection has taken it."""
        if earlier := self._present.get(rank):
            earlier.set()
        self._present[rank] = superseded

    def leave(self, rank: Rank, superseded: asyncio.Event) -> None:
        if self._present.get(rank) is superseded:
            del self._present[rank]


class Conversation:
    """One connection of a trainer."""

    def __init__(self, socket: WebSocket, rooms: Rooms, trainers: Trainers) -> None:
        self._socket = socket
        self._rooms = rooms
        self._trainers = trainers
        self._session = ServerSession()
        self._gathering = Gathering()
        self._superseded = asyncio.Event()
        self._connection: int | None = None
        # The first frame after Hello, on its way while the Hello is being answered.
        self._coming: asyncio.Task[bytes] | None = None

    async def run(self) -> None:
        """Talk until the trainer leaves. Raises :class:`SessionError` with the refusal to send."""
        hello = await self._greeted()
        take_large_frames(self._socket)
        rank = (hello.run, hello.segment, hello.rank)
        self._trainers.enter(rank, self._superseded)
        self._coming = coming = asyncio.create_task(_frame(self._socket))
        try:
            admission = await self._admitted(hello, coming)
            self._connection = admission.connection
            await _send(self._socket, self._session.welcome(admission.ledger, __version__))
            await first_to_end(self._talk(hello), _until(self._superseded))
        except StoreError as error:
            raise _refusal_for(error) from error
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
            self._trainers.leave(rank, self._superseded)

    async def _admitted(self, hello: Hello, coming: asyncio.Task[bytes]) -> Admission:
        """The answer to Hello. A trainer that has left is not let in: it may have called another server meanwhile."""
        admitting = asyncio.wrap_future(self._rooms.store.writer.admit(hello, self._rooms.clock()))
        may_fail_unheard(admitting)
        either: tuple[asyncio.Future[Any], ...] = (admitting, coming)
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not admitting.done() and coming.exception() is not None:
            admitting.cancel()
            await coming
        return await admitting

    async def _greeted(self) -> Hello:
        within = self._rooms.settings.hello_within_s
        try:
            async with asyncio.timeout(within):
                message = self._session.receive(await _frame(self._socket))
        except TimeoutError as error:
            raise _refusal("protocol", f"expected Hello within {within:g} s", retry=True) from error
        assert isinstance(message, Hello)  # the session refuses anything else as the first message
        return message

    async def _talk(self, hello: Hello) -> None:
        receiving = asyncio.create_task(self._receive_all(hello))
        storing = asyncio.create_task(self._store_all(hello))
        try:
            await asyncio.wait({receiving, storing}, return_when=asyncio.FIRST_COMPLETED)
            # However the receiving ended, what had come by then is stored first.
            await storing
            await receiving
        finally:
            receiving.cancel()
            storing.cancel()
            await asyncio.gather(receiving, storing, return_exceptions=True)

    async def _receive_all(self, hello: Hello) -> None:
        quiet_s, now, due = self._rooms.settings.quiet_after_s, asyncio.get_running_loop().time, 0.0
        try:
            async with asyncio.timeout(None) as patience:
                while True:
                    # A timer for each frame would cost as much as the frame.
                    if now() >= due:
                        due = now() + PATIENT_SHARE * quiet_s
                        patience.reschedule(due + quiet_s)
                    frame = await self._next_frame()
                    message = self._session.receive(frame)
                    if isinstance(message, Heartbeat):
                        self._note(hello, message)
                    elif isinstance(message, Record):
                        self._gathering.add(message, weight_of(message, len(frame)))
                    if self._gathering.is_full:
                        # Until there is room it is not the trainer who is silent.
                        patience.reschedule(None)
                        await self._gathering.room()
                        due = 0.0
        finally:
            self._gathering.end()

    async def _next_frame(self) -> bytes:
        coming, self._coming = self._coming, None
        return await (coming or _frame(self._socket))

    async def _store_all(self, hello: Hello) -> None:
        while True:
            records, weight = await self._gathering.take()
            if not records:
                return
            await self._store(Batch(hello, records, self._rooms.clock(), weight, self._connection))

    async def _store(self, batch: Batch) -> None:
        try:
            receipt = await self._accepted(batch)
        except BadRecord as error:
            if error.sequence is None and len(batch.records) > 1:
                # Only the database knows which it is: those before it are stored.
                middle = len(batch.records) // 2
                for records in (batch.records[:middle], batch.records[middle:]):
                    await self._store(msgspec.structs.replace(batch, records=records))
                return
            good = tuple(r for r in batch.records if error.sequence is not None and r.sequence < error.sequence)
            if good:
                await self._store(msgspec.structs.replace(batch, records=good))
            raise
        # A trainer that left does not need to know; the rest of what it sent is stored all the same.
        with suppress(WebSocketDisconnect):
            await _send(self._socket, ack(receipt.durable))

    async def _accepted(self, batch: Batch) -> Receipt:
        """Accept ``batch``, in a while when the writer's line is full: meanwhile nothing more is read."""
        for _ in range(BUSY_TRIES):
            with suppress(Busy):
                return await accept(self._rooms, batch)
            await asyncio.sleep(BUSY_WAIT_S)
        return await accept(self._rooms, batch)

    def _note(self, hello: Hello, heartbeat: Heartbeat) -> None:
        now = self._rooms.clock()
        entered = self._rooms.store.writer.heartbeat(hello, heartbeat, now, self._connection)
        entered.add_done_callback(functools.partial(self._heed, asyncio.get_running_loop()))
        self._rooms.hub.seen(RunId(hello.run), now)

    def _heed(self, loop: asyncio.AbstractEventLoop, entered: Future[None]) -> None:
        """Learn of a later connection that is with another server. In the writer's thread."""
        if not entered.cancelled() and isinstance(entered.exception(), Superseded):
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._superseded.set)


@router.websocket("/api/ingest")
async def ingest(socket: WebSocket) -> None:
    """Take a trainer's records in until it leaves."""
    rooms = rooms_of(socket)
    trainers: Trainers = socket.app.state.trainers
    await socket.accept()
    rooms.metrics.connections += 1
    try:
        _check_room(rooms)
        await Conversation(socket, rooms, trainers).run()
    except SessionError as error:
        rooms.metrics.refused += 1
        await _refuse(socket, error.refusal)
    except (WebSocketDisconnect, TimeoutError):
        pass  # It left, or fell silent: the ledger knows where to go on.
    except Exception:
        logger.exception("a trainer's connection failed")
        await _refuse(socket, Refused(code="unavailable", message="the server failed; its log says why", retry=True))
    finally:
        rooms.metrics.connections -= 1


def _check_room(rooms: Rooms) -> None:
    if rooms.metrics.connections > MAX_CONNECTIONS:
        raise _refusal("unavailable", f"{MAX_CONNECTIONS} trainers are connected already", retry=True)


async def _refuse(socket: WebSocket, refused: Refused) -> None:
    logger.info("refused a trainer: %s: %r", refused.code, refused.message)
    with suppress(WebSocketDisconnect, TimeoutError):
        async with sending(socket):
            await socket.send_bytes(encode(refused))
            await socket.close(TRY_AGAIN_LATER if refused.retry else POLICY_VIOLATION)


async def _until(superseded: asyncio.Event) -> None:
    await superseded.wait()
    raise Superseded


async def _frame(socket: WebSocket) -> bytes:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1006))
    data = message.get("bytes")
    if not isinstance(data, bytes):
        raise _refusal("malformed", "expected a binary frame, got text")
    return data


async def _send(socket: WebSocket, frame: bytes) -> None:
    async with sending(socket):
        await socket.send_bytes(frame)


def _refusal_for(error: StoreError) -> SessionError:
    if isinstance(error, Superseded):
        return _refusal("superseded", str(error))
    if isinstance(error, BadRecord):
        return _refusal("malformed", str(error))
    if isinstance(error, Gone):
        return _refusal("unavailable", str(error))
    return _refusal("unavailable", f"the database cannot take this now: {error}", retry=True)


def _refusal(code: RefusalCode, message: str, *, retry: bool = False) -> SessionError:
    return SessionError(Refused(code=code, message=message, retry=retry))
