"""Webhooks over real connections: signed, to the very address that was checked, and nowhere else."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from scalescope_server.delivery.addresses import Network, parse_network
from scalescope_server.delivery.messages import message_of
from scalescope_server.delivery.outcome import DELIVERED, Outcome
from scalescope_server.delivery.targets import BadTargetError, Place, Target, parse_target
from scalescope_server.delivery.webhook import post

from tests.notices import notice
from tests.receiving import CERTIFICATE, SECRET, Received, receiving

LOOPBACK = (parse_network("127.0.0.0/8"),)
NOW = 1_700_000_000.5
MESSAGE = message_of("key-1", [notice()], ["key-1"], "https://scale.example.com")


class Names:
    """What names mean, one list of addresses a question."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[Place]:
        self.asked.append((host, port))
        found = self._answers.pop(0)
        family = {4: socket.AF_INET, 6: socket.AF_INET6}
        return [(family[6 if ":" in address else 4], (address, port)) for address in found]


async def send(url: str, allowed: Sequence[Network] = LOOPBACK, **changes: Any) -> Outcome:
    return await post(parse_target(url), SECRET, MESSAGE, now=NOW, allowed=allowed, **changes)


async def test_it_arrives_once_signed_and_as_json() -> None:
    with receiving() as receiver:
        assert await send(f"{receiver.url}/a/b?token=t") == DELIVERED
        (received,) = receiver.received
    assert (received.method, received.path, received.key) == ("POST", "/a/b?token=t", "key-1")
    assert received.is_signed
    assert received.headers["webhook-timestamp"] == "1700000000"
    assert received.headers["content-type"] == "application/json"
    assert received.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert received.message["alerts"][0]["rule"] == "many skips"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "[::ffff:127.0.0.1]"])
async def test_loopback_is_not_reached_in_whatever_form_its_address_comes(host: str) -> None:
    with receiving() as receiver:
        outcome = await send(f"http://{host}:{receiver.port}/", allowed=())
        assert receiver.received == []
    # What is no address in full is looked up like a name, which may lead elsewhere a moment later.
    assert outcome.final is (host in ("127.0.0.1", "[::ffff:127.0.0.1]"))
    assert "loopback" in (outcome.error or "")
    assert "allow_targets" in (outcome.error or "")


async def test_a_name_that_means_something_else_a_moment_later_changes_nothing() -> None:
    with receiving() as receiver:
        names = Names(["127.0.0.1"], ["127.0.0.2"])
        assert await send(f"http://hooks.example.test:{receiver.port}/", resolve=names) == DELIVERED
        assert names.asked == [("hooks.example.test", receiver.port)]
        assert receiver.received[0].headers["host"] == f"hooks.example.test:{receiver.port}"
        refused = await send(f"http://hooks.example.test:{receiver.port}/", [parse_network("127.0.0.1")], resolve=names)
        assert "127.0.0.2 is this machine" in (refused.error or "")
        assert len(receiver.received) == 1


@pytest.mark.parametrize("addresses", [["8.8.8.8", "10.0.0.1"], ["::ffff:10.0.0.1"], ["64:ff9b::a00:1"], ["fe80::1"]])
async def test_a_name_of_which_one_address_is_not_public_is_not_sent_to(addresses: list[str]) -> None:
    outcome = await send("https://hooks.example.test/", resolve=Names(addresses))
    assert not outcome.final
    assert "nothing is sent to 'hooks.example.test'" in (outcome.error or "")


async def test_after_a_bad_answer_about_a_name_the_next_attempt_arrives() -> None:
    with receiving() as receiver:
        names = Names(["0.0.0.0"], ["127.0.0.1"])
        url = f"http://hooks.example.test:{receiver.port}/"
        refused = await send(url, resolve=names)
        assert (refused.final, "this machine" in (refused.error or "")) == (False, True)
        assert await send(url, resolve=names) == DELIVERED


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(status: int) -> None:
    with receiving() as other:
        answer = b"HTTP/1.1 %d X\r\nlocation: %s/\r\ncontent-length: 0\r\n\r\n" % (status, other.url.encode())
        with receiving(answer) as receiver:
            outcome = await send(receiver.url)
        assert other.received == []
    assert f"answered {status}: redirects are not followed" in (outcome.error or "")
    assert not outcome.final


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as proxy, receiving() as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert await send(receiver.url) == DELIVERED
        assert (len(receiver.received), proxy.received) == (1, [])


async def test_with_tls_the_name_is_that_of_the_certificate_though_the_connection_is_to_an_address() -> None:
    trusted = ssl.create_default_context(cafile=CERTIFICATE)
    with receiving(tls=True) as receiver:
        url = f"https://hooks.example.test:{receiver.port}/"
        assert await send(url, resolve=Names(["127.0.0.1"]), trust=lambda: trusted) == DELIVERED
        other = await send(url.replace("hooks", "other"), resolve=Names(["127.0.0.1"]), trust=lambda: trusted)
        untrusted = await send(url, resolve=Names(["127.0.0.1"]))
        assert len(receiver.received) == 1
    assert "certificate" in (other.error or "").lower()
    assert "certificate" in (untrusted.error or "").lower()


@pytest.mark.parametrize(
    ("answer", "error", "final", "retry_after_s"),
    [
        (500, "answered 500", False, None),
        (404, "answered 404", False, None),
        (410, "answered 410", True, None),
        (b"HTTP/1.1 429 X\r\nretry-after: 30\r\ncontent-length: 0\r\n\r\n", "answered 429", False, 30.0),
        (b"HTTP/1.1 503 X\r\nretry-after: Fri, 31 Dec 2027 23:59:59 GMT\r\n\r\n", "answered 503", False, None),
        (b"", "broke", False, None),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "broke", False, None),
        (b"HTTP/1.1 200 X\r\n" + b"a: " + b"x" * 200_000, "broke", False, None),
    ],
)
async def test_what_the_receiver_answers_decides_what_becomes_of_it(
    answer: int | bytes, error: str, final: bool, retry_after_s: float | None
) -> None:
    with receiving(answer) as receiver:
        outcome = await send(receiver.url)
    assert error in (outcome.error or "")
    assert (outcome.final, outcome.retry_after_s) == (final, retry_after_s)


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_any_status_of_success_is_one(status: int) -> None:
    with receiving(b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % status) as receiver:
        assert await send(receiver.url) == DELIVERED


async def test_a_receiver_that_does_not_answer_keeps_nobody_waiting() -> None:
    with receiving() as receiver:
        receiver.hold.clear()
        outcome = await send(receiver.url, within_s=0.1)
    assert "did not answer within 0.1 s" in (outcome.error or "")
    assert not outcome.final


async def test_nobody_there_and_a_name_that_leads_nowhere_are_told_apart() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    assert "no connection to http://127.0.0.1" in ((await send(f"http://127.0.0.1:{port}/")).error or "")

    async def nowhere(host: str, port: int) -> Sequence[Place]:
        raise socket.gaierror(-2, "Name or service not known")

    assert "leads nowhere: Name or" in ((await send("http://hooks.example.test/", resolve=nowhere)).error or "")


async def test_of_several_addresses_the_next_is_tried() -> None:
    with receiving() as receiver:
        names = Names(["127.0.0.77", "127.0.0.1"])
        assert await send(f"http://hooks.example.test:{receiver.port}/", resolve=names) == DELIVERED


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example.com",
        "ftp://hooks.example.com/",
        "file:///etc/passwd",
        "http://",
        "http:///path",
        "http://user:password@hooks.example.com/",
        "http://hooks.example.com:99999/",
        "http://hooks.example.com/a b",
        "http://hooks.example.com/\r\nx: y",
        "http://hooks.exa mple.com/",
        "http://hooks.example.com/é",
        f"http://hooks.example.com/{'x' * 2048}",
        "http://[::1/",
    ],
)
def test_an_address_that_is_none_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(BadTargetError, match="expected") as caught:
        parse_target(url)
    assert "password" not in str(caught.value).replace("user and password", "")


def test_of_an_address_only_scheme_host_and_port_are_shown() -> None:
    target = parse_target("https://Hooks.Example.com:8443/secret/path?token=secret#part")
    assert target == Target(True, "hooks.example.com", 8443, "/secret/path?token=secret")
    assert target.origin == "https://hooks.example.com:8443"
    assert "secret" not in repr(target)
    assert parse_target("http://[2001:db8::1]/").origin == "http://[2001:db8::1]"
    assert parse_target("https://bücher.example/").host == "xn--bcher-kva.example"


async def test_many_at_once_each_get_their_own_answer() -> None:
    with receiving() as receiver:
        outcomes = await asyncio.gather(*(send(f"{receiver.url}/{n}") for n in range(8)))
        assert outcomes == [DELIVERED] * 8
        assert sorted(received.path for received in receiver.received) == [f"/{n}" for n in range(8)]
        assert all(isinstance(received, Received) and received.is_signed for received in receiver.received)
