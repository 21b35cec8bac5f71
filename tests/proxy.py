"""A proxy for TCP on loopback: it holds back what passes for a time, and counts it."""

from __future__ import annotations

import asyncio
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

READ_BYTES = 65_536
DEADLINE_S = 20.0

# When it is due, and what.
Parcels = asyncio.Queue[tuple[float, bytes]]


@dataclass
class Proxy:
    """Passes what comes to ``url`` on to the server ``to``, each way ``delay_s`` later."""

    to: str
    delay_s: float = 0.0
    url: str = ""
    sent_bytes: int = 0
    received_bytes: int = 0

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
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._carry(near_reader, far_writer, sent=True))
                    group.create_task(self._carry(far_reader, near_writer, sent=False))

    async def _carry(self, reader: StreamReader, writer: StreamWriter, *, sent: bool) -> None:
        under_way: Parcels = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            group.create_task(_deliver(under_way, writer))
            data = b"-"
            while data:
                data = await _read(reader)
                self.sent_bytes += len(data) if sent else 0
                self.received_bytes += 0 if sent else len(data)
                under_way.put_nowait((asyncio.get_running_loop().time() + self.delay_s, data))


@contextmanager
def between(to: str, *, delay_s: float = 0.0) -> Iterator[Proxy]:
    """A proxy before the server at the address ``to``, in a thread of its own."""
    proxy, listening = Proxy(to, delay_s), threading.Event()
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
