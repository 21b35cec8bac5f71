"""A rule that fires, for the tests of the pages of alerts."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator, Page

from tests.serving import Served, ok

RULE = {"name": "low scale", "when": "when scale < 1", "severity": "critical", "channels": ["ops"]}


def add(served: Served, **changes: object) -> int:
    answer = served.call("POST", "/api/rules", body=RULE | changes)
    assert answer.status == 201, answer.body
    added: int = answer.json()["id"]
    return added


def alerts(served: Served) -> list[dict[str, Any]]:
    found = ok(served, "/api/alerts?state=firing&state=recovering")["items"]
    return [alert for alert in found if not alert["name"].startswith("pack/")]


def card(page: Page, name: str = "low scale") -> Locator:
    return page.locator("article.alert", has=page.get_by_role("heading", name=name, exact=True))
