"""Services of apprise by real processes: what they send, where they are not let, and what is not told of secrets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from scalescope_server.delivery.addresses import parse_network
from scalescope_server.delivery.apprising import harmless, tell
from scalescope_server.delivery.messages import message_of
from scalescope_server.delivery.outcome import DELIVERED
from scalescope_server.delivery.services import SCHEMES, scheme_of

from tests.notices import notice
from tests.receiving import receiving

LOOPBACK = (parse_network("127.0.0.0/8"),)
MESSAGE = message_of("key-1", [notice(run_name="@everyone <!here>")], ["key-1"], None)
TOKEN = "sixteen-letters0123456789"


async def test_a_message_arrives_calls_nobody_and_uses_neither_proxies_nor_passwords_of_the_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login mine password mine\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    with receiving() as proxy, receiving(b"HTTP/1.1 200 X\r\ncontent-length: 2\r\n\r\nok") as receiver:
        monkeypatch.setenv("http_proxy", proxy.url)
        url = f"mmost://127.0.0.1:{receiver.port}/{TOKEN}"
        assert await tell(url, MESSAGE, allowed=LOOPBACK) == DELIVERED
        assert proxy.received == []
        (received,) = receiver.received
    assert received.path == f"/hooks/{TOKEN}"
    assert "authorization" not in received.headers
    assert "many skips fires at update 1,000" in received.message["text"]
    assert "@everyone" not in received.message["text"]
    assert "<!here" not in received.message["text"]


@pytest.mark.parametrize(("host", "final"), [("127.0.0.1", True), ("localhost", False)])
async def test_a_service_on_loopback_is_not_reached_unless_the_settings_say_so(host: str, final: bool) -> None:
    with receiving() as receiver:
        outcome = await tell(f"mmost://{host}:{receiver.port}/{TOKEN}", MESSAGE, allowed=())
        assert receiver.received == []
    # A name may lead elsewhere a moment later.
    assert outcome.final is final
    assert "this machine (loopback)" in (outcome.error or "")
    assert "allow_targets" in (outcome.error or "")


async def test_a_redirect_leads_no_further_than_the_check() -> None:
    with receiving() as other:
        answer = b"HTTP/1.1 307 X\r\nlocation: http://127.0.0.2:%d/\r\ncontent-length: 0\r\n\r\n" % other.port
        with receiving(answer) as receiver:
            url = f"mmost://127.0.0.1:{receiver.port}/{TOKEN}"
            outcome = await tell(url, MESSAGE, allowed=[parse_network("127.0.0.1")])
        assert other.received == []
    assert "127.0.0.2 is this machine" in (outcome.error or "")


async def test_what_is_told_of_a_failure_holds_no_part_of_the_address() -> None:
    with receiving(b"HTTP/1.1 403 X\r\ncontent-length: %d\r\n\r\n%s" % (len(TOKEN), TOKEN.encode())) as receiver:
        outcome = await tell(f"mmost://127.0.0.1:{receiver.port}/{TOKEN}", MESSAGE, allowed=LOOPBACK)
    assert "403" in (outcome.error or "")
    assert TOKEN not in (outcome.error or "")
    assert not outcome.final


async def test_no_file_of_the_server_is_sent() -> None:
    with receiving(b"HTTP/1.1 200 X\r\ncontent-length: 1\r\n\r\n1") as receiver:
        url = f"workflow://127.0.0.1:{receiver.port}/workflow-1/signature-1?template=/etc/hostname"
        outcome = await tell(url, MESSAGE, allowed=LOOPBACK)
        assert receiver.received == []
    assert "files are not read" in (outcome.error or "")


async def test_mail_is_sent_to_the_servers_own_mailer_where_it_is_allowed() -> None:
    with mailer() as (port, mails):
        url = f"mailto://127.0.0.1:{port}?from=scalescope@example.com&to=oncall@example.com&mode=insecure"
        assert await tell(url, MESSAGE, allowed=LOOPBACK) == DELIVERED
    assert len(mails) == 1
    assert "To: oncall@example.com" in mails[0]


OK = b"HTTP/1.1 200 X\r\ncontent-length: 2\r\n\r\nok"


async def test_of_several_targets_those_that_have_it_are_not_told_again() -> None:
    with receiving(OK, 500, OK, OK) as receiver:
        url = f"mmost://127.0.0.1:{receiver.port}/{TOKEN}/?to=one,two,three"
        first = await tell(url, MESSAGE, allowed=LOOPBACK)
        assert (first.final, len(first.reached)) == (False, 2)
        assert "500" in (first.error or "")
        assert await tell(url, MESSAGE, allowed=LOOPBACK, reached=first.reached) == DELIVERED
        told = [received.message["channel"] for received in receiver.received]
    assert sorted(told[:3]) == ["one", "three", "two"]
    assert told[3:] == told[1:2]


@pytest.mark.parametrize(
    ("scheme", "before", "after", "limit"),
    [("mmost", "", TOKEN, 4000), ("rocket", "letters/digits@", "%23ops", 1000)],
)
async def test_a_storm_is_fitted_to_what_a_service_takes(scheme: str, before: str, after: str, limit: int) -> None:
    storm = [notice(rule=f"rule {n}", condition="c" * 300) for n in range(60)]
    message = message_of("key", storm, [str(n) for n in range(60)], "https://scale.example.com")
    with receiving(b'HTTP/1.1 200 X\r\ncontent-length: 16\r\n\r\n{"success":true}') as receiver:
        url = f"{scheme}://{before}127.0.0.1:{receiver.port}/{after}"
        assert await tell(url, message, allowed=LOOPBACK) == DELIVERED
        (received,) = receiver.received
    assert limit / 2 < len(received.message["text"]) <= limit
    # As Markdown shows it.
    text = received.message["text"].replace("\\", "")
    shown = text.count("warning: rule")
    assert text.splitlines()[-2:] == [f"and {60 - shown} more", message.url]


async def test_an_address_that_apprise_does_not_understand_is_given_up_at_once() -> None:
    outcome = await tell("slack://nothing", MESSAGE, allowed=LOOPBACK)
    assert outcome.final
    assert "does not understand" in (outcome.error or "")


async def test_a_service_that_does_not_answer_is_left_when_its_time_is_over() -> None:
    outcome = await tell(f"mmost://127.0.0.1:1/{TOKEN}", MESSAGE, allowed=LOOPBACK, within_s=0.01)
    assert outcome.error == "the service did not take it within 0.01 s"


@pytest.mark.parametrize(
    "url",
    ["json://h", "xml://h", "form://h", "jsons://h", "apprise://h/t", "syslog://", "dbus://", "file:///x", "http://h"],
)
def test_what_posts_anything_anywhere_or_belongs_to_this_machine_is_no_service(url: str) -> None:
    assert scheme_of(url) is None


@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")  # apprise asks whether this Python has it
def test_every_scheme_that_is_offered_is_one_of_apprise() -> None:
    from apprise import Apprise

    services = Apprise().details()["schemas"]
    known = {scheme for one in services for kind in ("protocols", "secure_protocols") for scheme in one[kind] or ()}
    assert known >= SCHEMES


def test_mentions_are_read_as_before_and_call_nobody() -> None:
    assert harmless("a@b <!channel> <b>") == "a@\u200bb <\u200b!channel> <b>"


@contextmanager
def mailer() -> Iterator[tuple[int, list[str]]]:
    """As much of SMTP as one mail takes."""
    mails: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_mail, args=(listening, mails), daemon=True)
        thread.start()
        yield listening.getsockname()[1], mails
        thread.join(10)


def _mail(listening: socket.socket, mails: list[str]) -> None:
    connection, _ = listening.accept()
    with connection, connection.makefile("rw", newline="\r\n") as lines:

        def say(text: str) -> None:
            lines.write(f"{text}\n")
            lines.flush()

        say("220 mailer")
        for line in lines:
            if line.upper().startswith("DATA"):
                say("354 go on")
                mails.append("".join(iter(lines.readline, ".\r\n")))
            leaves = line.upper().startswith("QUIT")
            say("221 bye" if leaves else "250 ok")
            if leaves:
                return
