"""The conversation between a trainer and the server, without sockets: numbering, acknowledgement, resume.

Both ends are small state machines that take frames and give frames. Delivery is exactly once because records
are numbered within (run, segment, rank), sent again until acknowledged, acknowledged only when durable, and
entered once in the :class:`~scalescope.ledger.Ledger` that the server keeps beside the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from scalescope.ledger import Ledger
from scalescope.wire import (
    PROTOCOL,
    Ack,
    FromTrainer,
    Hello,
    Record,
    RefusalCode,
    Refused,
    Welcome,
    WireError,
    decode_from_server,
    decode_from_trainer,
    encode,
)

# What may be on its way without an acknowledgement. Enough to fill a link of 200 ms, little enough that a
# server that accepts and never answers holds no memory of ours to speak of.
WINDOW_BYTES = 4 * 1024 * 1024


class State(Enum):
    NEW = "new"
    GREETING = "greeting"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Frame:
    """A numbered record, encoded. ``droppable``: may be given up first when memory and disk are full."""

    sequence: int
    data: bytes
    droppable: bool = False


class SessionError(Exception):
    """The other end broke the conversation; ``refusal`` says how, for the other end too."""

    def __init__(self, refusal: Refused) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(slots=True)
class TrainerSession:
    """The trainer's end of one connection.

    ``cursor`` is the last sequence sent on it (or known to be durable), ``durable`` the last acknowledged. Where it is
    ``full``, nothing more may go before the next acknowledgement.
    """

    hello: Hello
    state: State = State.NEW
    cursor: int = -1
    durable: int = -1
    full: bool = False
    _in_flight: dict[int, int] = field(default_factory=dict)

    def open(self) -> bytes:
        """The first frame to send."""
        self._expect(State.NEW)
        self.state = State.GREETING
        return encode(self.hello)

    def receive(self, data: bytes) -> int:
        """Take a frame from the server; the answer is the last durable sequence.

        Raises:
            SessionError: if the server refused, or said something out of turn.
        """
        try:
            message = decode_from_server(data)
        except WireError as error:
            raise self._broken(str(error)) from error
        if isinstance(message, Refused):
            self.state = State.CLOSED
            raise SessionError(message)
        if isinstance(message, Welcome) is not (self.state is State.GREETING):
            raise self._broken(f"expected {'Welcome' if self.state is State.GREETING else 'Ack'}, got {message!r}")
        self.state = State.OPEN
        self.durable = max(self.durable, message.durable)
        self.cursor = max(self.cursor, self.durable)
        self._in_flight = {s: size for s, size in self._in_flight.items() if s > self.durable}
        self.full = False
        return self.durable

    def sendable(self, waiting: Iterable[Frame]) -> list[bytes]:
        """Those of ``waiting`` (rising sequences) that may go out now, in order; each only once."""
        # Nobody looks through thousands that are on their way, at each news, for one that may not go.
        if self.state is not State.OPEN or self.full:
            return []
        chosen = []
        room = WINDOW_BYTES - sum(self._in_flight.values())
        for frame in waiting:
            if frame.sequence <= self.cursor:
                continue
            # One frame may always travel alone, however large it is.
            if len(frame.data) > room and self._in_flight:
                self.full = True
                break
            self._in_flight[frame.sequence] = len(frame.data)
            room -= len(frame.data)
            self.cursor = frame.sequence
            chosen.append(frame.data)
        return chosen

    def _expect(self, state: State) -> None:
        if self.state is not state:
            raise RuntimeError(f"expected a session that is {state.value}, got one that is {self.state.value}")

    def _broken(self, message: str) -> SessionError:
        self.state = State.CLOSED
        return SessionError(Refused(code="malformed", message=message, retry=True))


@dataclass(slots=True)
class ServerSession:
    """The server's end of one connection: Hello first and once, then records with rising sequences."""

    hello: Hello | None = None
    last: int = -1

    def receive(self, data: bytes) -> FromTrainer:
        """The message in ``data``, checked against the conversation so far.

        Raises:
            SessionError: with the refusal to send before closing.
        """
        try:
            message = decode_from_trainer(data)
        except WireError as error:
            raise _refused("malformed", str(error)) from error
        if isinstance(message, Hello):
            self._greet(message)
        elif self.hello is None:
            raise _refused("protocol", f"expected Hello first, got {type(message).__name__}")
        elif isinstance(message, Record):
            self._follow(message)
        return message

    def welcome(self, ledger: Ledger, server: str) -> bytes:
        return encode(Welcome(durable=ledger.contiguous, server=server))

    def _greet(self, hello: Hello) -> None:
        if self.hello is not None:
            raise _refused("protocol", "expected one Hello a connection, got a second one")
        if hello.protocol != PROTOCOL:
            raise _refused(
                "protocol",
                f"this server speaks protocol {PROTOCOL}, the trainer {hello.protocol}: "
                "install the same version of scalescope on both sides",
            )
        if hello.rank >= hello.world_size:
            raise _refused("malformed", f"expected a rank below {hello.world_size}, got {hello.rank}")
        self.hello = hello

    def _follow(self, record: Record) -> None:
        if record.sequence <= self.last:
            raise _refused("protocol", f"expected a sequence above {self.last}, got {record.sequence}")
        self.last = record.sequence


def ack(durable: int) -> bytes:
    return encode(Ack(durable=durable))


def _refused(code: RefusalCode, message: str) -> SessionError:
    return SessionError(Refused(code=code, message=message, retry=False))
