"""Channels over HTTP: set up, tried, switched, deleted, and never a secret in an answer or in the log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from scalescope_server.delivery.addresses import parse_network
from scalescope_server.delivery.command import Command
from scalescope_server.delivery.settings_file import Delivery

from tests.receiving import SECRET, receiving
from tests.serving import Served, error, ok

ALLOWED = Delivery("https://scale.example.com", (parse_network("127.0.0.0/8"),))
Serve = Callable[..., AbstractContextManager[Served]]


def add(served: Served, name: str, **config: Any) -> dict[str, Any]:
    answer = served.call("POST", "/api/channels", body={"name": name, "config": config})
    assert answer.status == 201, answer.body
    found: dict[str, Any] = answer.json()
    return found


def trial(served: Served, name: str) -> dict[str, Any]:
    answer = served.call("POST", f"/api/channels/{name}/test")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()
    assert found.pop("took_s") < 10
    return found


def test_a_channel_is_set_up_tried_switched_off_and_deleted(serve: Serve) -> None:
    with serve(delivery=ALLOWED) as served, receiving() as receiver:
        url = f"{receiver.url}/secret-path?token=secret-token"
        line = add(served, "on call", kind="webhook", url=url, secret=SECRET)
        expected = {
            "name": "on call",
            "kind": "webhook",
            "target": f"{receiver.url}/…",
            "enabled": True,
            "waiting": 0,
            "delivered": 0,
            "failed": 0,
            "error": None,
            "tried_at": None,
            "arrived": None,
        }
        assert line == expected
        assert ok(served, "/api/channels") == {"items": [expected], "next": None}
        assert trial(served, "on%20call") == {"delivered": True, "error": None}
        (received,) = receiver.received
        assert (received.path, received.message["type"], received.is_signed) == (
            "/secret-path?token=secret-token",
            "test",
            True,
        )
        off = served.call("PATCH", "/api/channels/on%20call", body={"enabled": False})
        assert off.json() == expected | {"enabled": False}
        assert trial(served, "on%20call") == {"delivered": False, "error": "the channel 'on call' is switched off"}
        assert served.call("DELETE", "/api/channels/on%20call").status == 204
        assert ok(served, "/api/channels")["items"] == []
        assert error(served, "/api/channels/on%20call/test", 404, "POST")["field"] == "name"


def test_no_secret_comes_back_by_any_answer_or_the_log(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    with serve(delivery=ALLOWED) as served, receiving(500) as receiver, caplog.at_level(logging.DEBUG, "scalescope"):
        url = f"{receiver.url}/secret-path"
        told = [
            served.call("POST", "/api/channels", body={"name": name, "config": config}).body
            for name, config in (
                ("a", {"kind": "webhook", "url": url, "secret": SECRET}),
                ("b", {"kind": "apprise", "url": "slack://secret-token/x/y"}),
                ("a", {"kind": "webhook", "url": url, "secret": SECRET}),
                ("c", {"kind": "webhook", "url": url, "secret": "whsec_secret-letters"}),
                ("d", {"kind": "webhook", "url": "secret-address", "secret": SECRET}),
                ("e", {"kind": "apprise", "url": "json://secret-token@h"}),
                ("f", {"kind": "apprise", "url": {"secret-token": 1}}),
                ("g", {"kind": "apprise", "url": "slack://x", "other": "secret-token"}),
                ("h", {"kind": "pigeon", "url": "secret-token"}),
            )
        ]
        told += [served.call("POST", "/api/channels/a/test").body, served.get("/api/channels").body]
    assert not [text for text in [*told, caplog.text.encode()] if b"secret-" in text or SECRET.encode() in text]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"name": "a", "config": {"kind": "webhook", "url": "https://h.example.com", "secret": "s"}}, 422, "secret"),
        ({"name": "a", "config": {"kind": "webhook", "url": "ftp://h", "secret": SECRET}}, 422, "url"),
        ({"name": "a", "config": {"kind": "apprise", "url": "form://localhost"}}, 422, "url"),
        ({"name": "a/b", "config": {"kind": "apprise", "url": "slack://x"}}, 422, "name"),
        ({"name": "siren", "config": {"kind": "apprise", "url": "slack://x"}}, 422, "name"),
        ({"name": "taken", "config": {"kind": "apprise", "url": "slack://x"}}, 409, "name"),
        ({"name": "a", "config": {"kind": "command", "arguments": ["/bin/true"]}}, 422, "config"),
        ({"name": "a"}, 422, "config"),
    ],
)
def test_what_cannot_be_is_refused_with_the_field(serve: Serve, body: object, status: int, field: str) -> None:
    with serve(delivery=Delivery(commands={"siren": Command(("/bin/true",))})) as served:
        add(served, "taken", kind="apprise", url="slack://x")
        assert error(served, "/api/channels", status, "POST", body)["field"] == field


def test_a_command_of_the_settings_is_listed_and_tried_and_cannot_be_changed(serve: Serve) -> None:
    commands = {"siren": Command((sys.executable, "-S", "-c", "import sys, json; json.load(sys.stdin)"))}
    with serve(delivery=Delivery(commands=commands)) as served:
        (line,) = ok(served, "/api/channels")["items"]
        assert (line["name"], line["kind"], line["target"]) == ("siren", "command", "a command of the settings file")
        assert trial(served, "siren") == {"delivered": True, "error": None}
        assert served.call("DELETE", "/api/channels/siren").status == 404
        assert served.call("PATCH", "/api/channels/siren", body={"enabled": False}).status == 404


def test_without_leave_in_the_settings_nothing_is_sent_to_the_servers_own_machine(serve: Serve) -> None:
    with serve() as served, receiving() as receiver:
        add(served, "here", kind="webhook", url=receiver.url, secret=SECRET)
        told = trial(served, "here")
        assert receiver.received == []
    assert not told["delivered"]
    assert "loopback" in told["error"]


@pytest.mark.parametrize("name", ["a%2Fb", "nobody", "%0A", "x" * 100])
def test_a_name_that_is_none_is_not_there(shared: Served, name: str) -> None:
    assert shared.call("DELETE", f"/api/channels/{name}").status in (404, 422)
