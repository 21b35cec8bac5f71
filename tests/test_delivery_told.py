"""From an update in a trainer to who is to know of it: the webhook, and every open page."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from scalescope_server.delivery.addresses import parse_network
from scalescope_server.delivery.announcing import announced
from scalescope_server.delivery.settings_file import Delivery

from tests.notices import notice
from tests.receiving import SECRET, receiving
from tests.serving import Served, hello, layout, ok, steps
from tests.watched import add_rule

ALLOWED = Delivery("https://scale.example.com", (parse_network("127.0.0.0/8"),))
Serve = Callable[..., AbstractContextManager[Served]]


def watched(served: Served, url: str) -> None:
    """A webhook, and a rule that fires below a scale of 1."""
    config = {"kind": "webhook", "url": url, "secret": SECRET}
    assert served.call("POST", "/api/channels", body={"name": "on call", "config": config}).status == 201
    add_rule(served.store, "when scale < 1", "scale is gone", severity="critical", channels=("on call",))


@pytest.mark.both_engines
def test_a_firing_rule_is_told_to_its_webhook_and_to_open_pages_at_once(serve: Serve) -> None:
    with serve(delivery=ALLOWED) as served, receiving() as receiver:
        watched(served, receiver.url)
        with served.page("run-1") as page, served.trainer(hello(world_size=1)) as trainer:
            trainer.deliver(layout(0), steps(1, 0, 4))
            trainer.deliver(steps(2, 4, 1, scale=[0.5]))
            (received,) = receiver.wait(1)
            news = page.until(lambda message: bool(message.get("alerts")))
            (shown,) = news["alerts"]
            (told,) = received.message["alerts"]
            assert (told["rule"], told["step"], told["happened"]) == ("scale is gone", 4, "fired")
            assert received.message["url"].startswith("https://scale.example.com/runs/run-1?from=0&to=")
            assert (shown["rule"], shown["title"]) == ("scale is gone", received.message["title"])
            assert shown["url"].startswith("/runs/run-1?from=0&to=")
            trainer.deliver(steps(3, 5, 1, scale=[2.0]))
            ended = page.until(lambda message: len(message.get("alerts", [])) == 2)["alerts"]
            assert [one["happened"] for one in ended] == ["resolved", "fired"]
            assert ended[1] == shown
        (line,) = ok(served, "/api/channels")["items"]
        assert line["failed"] == 0


def test_what_a_page_is_told_is_short_plain_and_the_same_in_every_tab() -> None:
    told: dict[str, Any] = {name: getattr(notice(), name) for name in notice().__struct_fields__}
    shown = announced("key", told, "/lab")
    assert shown is not None
    assert (shown.key, shown.title) == ("key", "warning: many skips on small gpt (demo)")
    assert shown.body.startswith("many skips fires at update 1,000")
    assert shown.url == "/lab/runs/run-1?from=790&to=1201"
    assert announced("key", {"rule": 1}, "") is None
