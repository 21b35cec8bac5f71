"""Names are looked up in daemon threads: an answer, an error, and a question asked twice at once."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest
from scalescope.resolving import DaemonLookupLoop


def test_an_answer_is_that_of_the_system() -> None:
    async def look_up() -> object:
        return await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)

    with asyncio.Runner(loop_factory=DaemonLookupLoop) as runner:
        assert runner.run(look_up()) == socket.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)


def test_an_error_reaches_who_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> object:
        raise socket.gaierror(-2, "Name or service not known")

    async def look_up() -> None:
        await asyncio.get_running_loop().getaddrinfo("nowhere.example", 80)

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with asyncio.Runner(loop_factory=DaemonLookupLoop) as runner, pytest.raises(socket.gaierror):
        runner.run(look_up())


def test_whoever_asks_again_waits_for_the_same_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    answer = threading.Event()

    def slow(host: object, *_: object, **__: object) -> list[object]:
        asked.append(host)
        assert threading.current_thread().daemon
        answer.wait(20)
        return [host]

    async def look_up() -> list[object]:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await loop.getaddrinfo("a.example", 80)
        again = asyncio.create_task(loop.getaddrinfo("a.example", 80))
        await asyncio.sleep(0)
        answer.set()
        return [*await again, *await loop.getaddrinfo("a.example", 80)]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with asyncio.Runner(loop_factory=DaemonLookupLoop) as runner:
        assert runner.run(look_up()) == ["a.example", "a.example"]
    assert asked == ["a.example", "a.example"]


def test_the_end_of_the_loop_waits_for_no_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, answered = threading.Event(), threading.Event()

    def slow(*_: object, **__: object) -> list[object]:
        answer.wait(20)
        answered.set()
        return []

    async def look_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.get_running_loop().getaddrinfo("a.example", 80)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with asyncio.Runner(loop_factory=DaemonLookupLoop) as runner:
        runner.run(look_up())
    assert not answered.is_set()
    answer.set()
    assert answered.wait(20)
