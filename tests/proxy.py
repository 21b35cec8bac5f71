"""A proxy for TCP on loopback: it holds back what passes for a time, counts it, and cuts it off in the middle."""

from __future__ import annotations

import asyncio
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

READ_BYTES = 65_536
DEADLINE_S = 20.0

# When it is due, and what.
Parcels = asyncio.Queue[tuple[float, bytes]]
Ear = Callable[[bytes], None]


@dataclass(eq=False)
class Cut:
    """The next data that go one way, ``sent`` or received, lose their last bytes, and the line with them."""

    sent: bool
    short_by: int
    made: threading.Event = field(default_factory=threading.Event)


@dataclass
class Proxy:
    """Passes what comes to ``url`` on to the server ``to``, each way ``delay_s`` later.

    ``ear``: makes, for each connection, who is given what the server says on it.
    """

    to: str
    delay_s: float = 0.0
    ear: Callable[[], Ear] | None = None
    url: str = ""
    sent_bytes: int = 0
    received_bytes: int = 0
    _cut: Cut | None = None

    def cut(self, *, sent: bool, short_by: int) -> threading.Event:
        """Cut the line at the next data that go this way; set once that happened. From any thread."""
        cut = self._cut = Cut(sent, short_by)
        return cut.made

    async def serve(self, listening: threading.Event, over: asyncio.Event) -> None:
        """Until ``over``; ``url`` is there once it is ``listening``."""
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        listening.set()
        await over.wait()
        server.close()

    async def _pass(self, near_reader: StreamReader, near_writer: StreamWriter) -> None:
        there = urlsplit(self.to)
        async with AsyncExitStack() as ends:
            ends.push_async_callback(_hang_up, near_writer)
            with suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection(there.hostname, there.port)
                ends.push_async_callback(_hang_up, far_writer)
                near, far = (near_reader, near_writer), (far_reader, far_writer)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._carry(near, far_writer, sent=True))
                    group.create_task(self._carry(far, near_writer, sent=False))

    async def _carry(self, source: tuple[StreamReader, StreamWriter], writer: StreamWriter, *, sent: bool) -> None:
        under_way: Parcels = asyncio.Queue()
        ear = self.ear() if self.ear and not sent else None
        async with asyncio.TaskGroup() as group:
            group.create_task(_deliver(under_way, writer))
            data = b"-"
            while data:
                data = self._shortened(await _read(source[0]), source[1], sent=sent)
                if ear:
                    ear(data)
                self.sent_bytes += len(data) if sent else 0
                self.received_bytes += 0 if sent else len(data)
                under_way.put_nowait((asyncio.get_running_loop().time() + self.delay_s, data))

    def _shortened(self, data: bytes, back: StreamWriter, *, sent: bool) -> bytes:
        """``data``, or what the cut leaves of them; then nothing more comes from where they came."""
        cut = self._cut
        if cut is None or cut.sent is not sent or len(data) <= 1:
            return data
        self._cut = None
        back.transport.abort()
        cut.made.set()
        return data[: -min(cut.short_by, len(data) - 1)]


@contextmanager
def between(to: str, *, delay_s: float = 0.0, ear: Callable[[], Ear] | None = None) -> Iterator[Proxy]:
    """A proxy before the server at the address ``to``, in a thread of its own."""
    proxy, listening = Proxy(to, delay_s, ear), threading.Event()
    with asyncio.Runner() as runner:
        loop, over = runner.get_loop(), asyncio.Event()
        thread = threading.Thread(target=loop.run_until_complete, args=(proxy.serve(listening, over),), name="proxy")
        thread.start()
        try:
            assert listening.wait(DEADLINE_S), "the proxy never listened"
            yield proxy
        finally:
            loop.call_soon_threadsafe(over.set)
            thread.join(DEADLINE_S)


async def _read(reader: StreamReader) -> bytes:
    """What comes next; nothing at the end, be it an orderly one or not."""
    with suppress(ConnectionError):
        return await reader.read(READ_BYTES)
    return b""


async def _deliver(under_way: Parcels, writer: StreamWriter) -> None:
    data = b"-"
    while data:
        due, data = await under_way.get()
        await asyncio.sleep(due - asyncio.get_running_loop().time())
        with suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
    await _hang_up(writer)


async def _hang_up(writer: StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
