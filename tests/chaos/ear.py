"""What a server said to a trainer, overheard: up to which record it acknowledged on each connection."""

from __future__ import annotations

from dataclasses import dataclass, field

from scalescope.wire import Ack, Welcome, decode_from_server

_BINARY = 2
_HEAD_END = b"\r\n\r\n"


@dataclass(eq=False)
class Conversation:
    """One connection, byte by byte (RFC 6455, section 5.2; a server's frames are not masked)."""

    durable: int = -1
    _waiting: bytearray = field(default_factory=bytearray)
    _upgraded: bool = False

    def hear(self, data: bytes) -> None:
        self._waiting += data
        if not self._upgraded:
            _, found, rest = bytes(self._waiting).partition(_HEAD_END)
            if not found:
                return
            self._upgraded, self._waiting = True, bytearray(rest)
        while (frame := self._frame()) is not None:
            self._take(*frame)

    def _frame(self) -> tuple[int, bytes] | None:
        """(opcode, content) of the next frame that is there whole."""
        if len(self._waiting) < 2:
            return None
        length, start = self._waiting[1] & 127, 2
        if length >= 126:
            start = 4 if length == 126 else 10
            length = int.from_bytes(self._waiting[2:start], "big")
        if len(self._waiting) < start + length:
            return None
        opcode, content = self._waiting[0] & 15, bytes(self._waiting[start : start + length])
        del self._waiting[: start + length]
        return opcode, content

    def _take(self, opcode: int, content: bytes) -> None:
        if opcode == _BINARY and isinstance(message := decode_from_server(content), Ack | Welcome):
            self.durable = max(self.durable, message.durable)


@dataclass(eq=False)
class Overheard:
    """All connections since the last :meth:`forget`."""

    conversations: list[Conversation] = field(default_factory=list)

    def join(self) -> Conversation:
        self.conversations.append(Conversation())
        return self.conversations[-1]

    def forget(self) -> None:
        self.conversations = []

    @property
    def durable(self) -> int:
        """The last record that any trainer was told is stored."""
        return max((conversation.durable for conversation in self.conversations), default=-1)
