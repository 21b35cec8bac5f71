"""Nobody works on for who has left."""

from __future__ import annotations

import contextlib
import http.client
import json
import selectors
import threading
from typing import Any

import pytest
from scalescope_server.app import MAX_TRIALS
from scalescope_server.leaving import Left

from tests.serving import DEADLINE_S, Served
from tests.small_link import until

GIVEN = json.dumps({"rule": {"name": "a", "when": "when skipped"}}).encode()


def asking(served: Served) -> http.client.HTTPConnection:
    """A page that has asked for a backtest and not heard of it yet."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=DEADLINE_S)
    connection.request("POST", "/api/rules/backtest", GIVEN, {"content-type": "application/json"})
    return connection


def test_a_backtest_ends_when_its_page_has_left_and_others_have_their_turn(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Left] = []
    released = threading.Event()

    def tried(*arguments: Any) -> list[Any]:
        left: Left = arguments[-1]
        begun.append(left)
        while not left() and not released.is_set():
            released.wait(0.01)
        return []

    monkeypatch.setattr("scalescope_server.api_rules.try_rule", tried)
    asked = [asking(served) for _ in range(4)]
    until(lambda: bool(begun))
    for connection in asked:
        connection.close()
    until(begun[0])
    last = asking(served)
    until(lambda: len(begun) > 1 and not begun[-1]() and all(left() for left in begun[:-1]))
    released.set()
    answer = last.getresponse()
    assert (answer.status, json.loads(answer.read())["runs"]) == (200, [])
    last.close()


def test_only_so_many_rules_are_tried_or_wait_to_be(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def tried(*_: Any) -> list[Any]:
        released.wait(DEADLINE_S)
        return []

    monkeypatch.setattr("scalescope_server.api_rules.try_rule", tried)
    with contextlib.ExitStack() as closing:
        waiting = selectors.DefaultSelector()
        for connection in (asking(served) for _ in range(MAX_TRIALS + 1)):
            closing.callback(connection.close)
            waiting.register(connection.sock, selectors.EVENT_READ, connection)
        ((refused, _),) = waiting.select(DEADLINE_S)
        answer = refused.data.getresponse()
        assert answer.status == 503
        assert "many rules are being tried" in json.loads(answer.read())["error"]["message"]
        released.set()
