"""What all WebSockets of this server share: how large a frame may be, and how long sending one may take."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from fastapi import WebSocket, WebSocketDisconnect
from scalescope.wire import MAX_FRAME_BYTES
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

# Of an unfinished frame, so much is held for anyone who connects. A Hello is a few kB; pages say nothing.
FIRST_FRAME_BYTES = 256 * 1024
# Who takes nothing for so long is gone or asleep; it connects again when it wakes.
SEND_WITHIN_S = 30.0

GONE = 1006
_KEY = "take_large_frames"


class SmallFramesFirst(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket; frames are small until :func:`take_large_frames` says that the caller is known."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, _KEY: self._take_large_frames}, _loop)
        self.conn.max_message_size = FIRST_FRAME_BYTES

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            # Refused by an answer. To uvicorn that is a handshake which nobody completed, an error for its log.
            self.handshake_complete = True

    def _take_large_frames(self) -> None:
        self.conn.max_message_size = MAX_FRAME_BYTES


def take_large_frames(socket: WebSocket) -> None:
    """From the next frame on, take any that the protocol allows."""
    widen: Callable[[], None] = socket.scope["state"][_KEY]
    widen()


@contextlib.asynccontextmanager
async def sending(socket: WebSocket) -> AsyncIterator[WebSocket]:
    """Send to ``socket`` within the block.

    Raises:
        WebSocketDisconnect: if the other end has left, whether or not it was read that it did.
        TimeoutError: if it takes nothing for :data:`SEND_WITHIN_S`.
    """
    try:
        async with asyncio.timeout(SEND_WITHIN_S):
            yield socket
    except RuntimeError as error:
        # So Starlette and uvicorn tell of a socket that was closed in between: as a mistake of ours.
        raise WebSocketDisconnect(GONE) from error
