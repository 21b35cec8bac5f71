"""One conversation over a real socket, and what is said of one that fails."""

from __future__ import annotations

import asyncio
import errno
import http
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from scalescope.connection import RIVALRY_S, TROUBLE, Connection, Peer, Rivalry, final_refusal, reason
from scalescope.session import Frame, SessionError
from scalescope.wire import RefusalCode, Refused, Steps, encode
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from tests.small_server import Shelf, free_port, hello, serving


class Backlog:
    """Records 0 to ``count - 1``; sets ``empty`` once all are acknowledged."""

    def __init__(self, count: int) -> None:
        self.frames = [
            Frame(n, encode(Steps(sequence=n, first=n, count=1, at=bytes(8), columns={}))) for n in range(count)
        ]
        self.empty = asyncio.Event()

    def waiting(self, after: int) -> Iterator[Frame]:
        return (frame for frame in self.frames if frame.sequence > after)

    def acknowledge(self, durable: int) -> None:
        self.frames = [frame for frame in self.frames if frame.sequence > durable]
        if not self.frames:
            self.empty.set()


async def deliver(backlog: Backlog, url: str) -> Connection:
    connection = Connection(hello(), backlog, asyncio.Event(), on_change=lambda: None)
    talking = asyncio.create_task(connection.run(Peer(url, None)))
    await asyncio.wait({talking, asyncio.create_task(backlog.empty.wait())}, return_when=asyncio.FIRST_COMPLETED)
    talking.cancel()
    await asyncio.gather(talking, return_exceptions=True)
    return connection


async def trouble_with(url: str) -> Exception:
    connection = Connection(hello(), Backlog(1), asyncio.Event(), on_change=lambda: None)
    with pytest.raises(TROUBLE) as caught:
        await connection.run(Peer(url, None))
    return caught.value


@contextmanager
def answering(status: http.HTTPStatus, body: str = "") -> Iterator[str]:
    """Something that answers the handshake with ``status``."""

    def respond(connection: ServerConnection, _: Request) -> Response:
        return connection.respond(status, body)

    with serve(lambda _: None, "127.0.0.1", 0, process_request=respond) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()


async def test_what_waits_is_sent_and_acknowledged() -> None:
    shelf = Shelf()
    with serving(shelf) as server:
        connection = await deliver(Backlog(5), server.url)
    assert (connection.sent, connection.open, shelf.ledger.ranges) == (5, False, ((0, 4),))


async def test_a_proxy_for_the_internet_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{free_port()}")
    shelf = Shelf()
    with serving(shelf) as server:
        await deliver(Backlog(1), server.url)
        await deliver(Backlog(1), server.url.replace("127.0.0.1", "localhost"))
    assert shelf.ledger.received == 1


async def test_nobody_there_is_a_connection_refused() -> None:
    trouble = await trouble_with(f"http://127.0.0.1:{free_port()}")
    assert (reason(trouble), final_refusal(trouble)) == ("connection refused", None)


async def test_a_proxy_that_finds_no_server_is_worth_another_try() -> None:
    with answering(http.HTTPStatus.BAD_GATEWAY) as url:
        trouble = await trouble_with(url)
    assert (reason(trouble), final_refusal(trouble)) == ("it answered HTTP 502", None)


@pytest.mark.parametrize(
    ("status", "advice"),
    [(http.HTTPStatus.UNAUTHORIZED, "set SCALESCOPE_TOKEN"), (http.HTTPStatus.FORBIDDEN, "with --allow-host")],
)
async def test_a_handshake_that_may_not_pass_is_final(status: http.HTTPStatus, advice: str) -> None:
    with answering(status) as url:
        trouble = await trouble_with(url)
    assert advice in (final_refusal(trouble) or "")


async def test_what_the_server_says_of_a_refused_handshake_is_told() -> None:
    message = "this server is not known as 'gpu7': start it with --allow-host gpu7"
    with answering(http.HTTPStatus.FORBIDDEN, f'{{"error": {{"code": "forbidden", "message": "{message}"}}}}') as url:
        trouble = await trouble_with(url)
    assert reason(trouble) == f"it answered HTTP 403: {message}"
    assert final_refusal(trouble) == "what it says names the cause"


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("token", "set SCALESCOPE_TOKEN to the token of that server"),
        ("protocol", "install the same version of scalescope on both sides"),
        ("malformed", "what it says names the cause"),
    ],
)
def test_a_refusal_says_what_to_do_unless_it_may_pass(code: RefusalCode, advice: str) -> None:
    assert final_refusal(SessionError(Refused(code=code, message="no", retry=False))) == advice
    assert final_refusal(SessionError(Refused(code=code, message="no", retry=True))) is None


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TimeoutError(), "no answer in time"),
        (TimeoutError("timed out during opening handshake"), "timed out during opening handshake"),
        (OSError(errno.ENETUNREACH, "whatever"), "network is unreachable"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "name or service not known"),
        (RuntimeError("cannot schedule new futures after shutdown"), "cannot schedule new futures after shutdown"),
        (ValueError(), "ValueError"),
    ],
)
def test_a_reason_is_a_few_plain_words(error: Exception, text: str) -> None:
    assert reason(error) == text


def test_who_is_superseded_calls_again_until_it_is_clear_that_there_is_a_rival() -> None:
    lost = SessionError(Refused(code="superseded", message="", retry=False))
    once = Rivalry()
    assert [once.goes_on(lost, at) for at in (0.0, RIVALRY_S, 2 * RIVALRY_S)] == [True] * 3
    rival = Rivalry()
    assert [rival.goes_on(lost, at) for at in (0.0, 0.1, 0.2)] == [True, True, False]
    assert not Rivalry().goes_on(SessionError(Refused(code="malformed", message="", retry=False)), 0.0)
