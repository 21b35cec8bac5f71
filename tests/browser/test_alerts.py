"""Alerts and their rules in a real Chromium, over a real server that judges."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Complaints
from tests.browser.test_drawn import HOSTILE
from tests.serving import Served, Trainer, hello, layout, ok, steps
from tests.small_link import until

pytestmark = pytest.mark.browser

RULE = {"name": "low scale", "when": "when scale < 1", "severity": "critical", "channels": ["ops"]}


def add(served: Served, **changes: object) -> int:
    answer = served.call("POST", "/api/rules", body=RULE | changes)
    assert answer.status == 201, answer.body
    added: int = answer.json()["id"]
    return added


@pytest.fixture
def trainer(served: Served) -> Iterator[Trainer]:
    """One whose run makes :data:`RULE` fire at its 21st update, and nothing else."""
    add(served)
    with served.trainer(hello(world_size=1)) as connected:
        connected.deliver(layout(0), steps(1, 0, 30, scale=[2.0] * 20 + [0.5] * 10))
        until(lambda: bool(alerts(served)))
        yield connected


def alerts(served: Served) -> list[dict[str, Any]]:
    found = ok(served, "/api/alerts?state=firing&state=recovering")["items"]
    return [alert for alert in found if not alert["name"].startswith("pack/")]


def card(page: Page, name: str = "low scale") -> Locator:
    return page.locator("article.alert", has=page.get_by_role("heading", name=name, exact=True))


def test_what_fires_tells_its_run_its_value_and_leads_to_exactly_that_view(
    served: Served, page: Page, trainer: Trainer
) -> None:
    page.goto(f"{served.url}/alerts")
    expect(card(page)).to_have_attribute("data-state", "firing")
    expect(card(page)).to_contain_text("since update 20")
    expect(card(page)).to_contain_text("value 0.5")
    card(page).get_by_role("link", name="a run").click()
    expect(page).to_have_url(re.compile(r"/runs/run-1\?from=0&to=221$"))


def test_an_alert_is_acknowledged_muted_and_told_again(served: Served, page: Page, trainer: Trainer) -> None:
    page.goto(f"{served.url}/alerts")
    card(page).get_by_role("button", name="Acknowledge").click()
    expect(card(page)).to_contain_text("acknowledged at")
    card(page).get_by_label("Mute low scale").select_option("1 day")
    expect(card(page)).to_contain_text("muted until")
    card(page).get_by_role("button", name="Unmute").click()
    expect(card(page)).not_to_contain_text("muted until")
    (alert,) = alerts(served)
    assert (alert["acknowledged_at"] is not None, alert["muted_until"]) == (True, None)


def test_an_alerts_past_and_its_deliveries_are_shown_and_stay_open(
    served: Served, page: Page, trainer: Trainer
) -> None:
    page.goto(f"{served.url}/alerts")
    card(page).get_by_text("History and deliveries").click()
    expect(card(page).locator("tr", has_text="quiet")).to_contain_text("firing20value 0.5")
    expect(card(page).locator("tr", has_text="ops")).to_contain_text("there is no channel 'ops'")
    card(page).get_by_role("button", name="Acknowledge").click()
    expect(card(page)).to_contain_text("acknowledged at")
    expect(card(page).get_by_role("heading", name="Deliveries")).to_be_visible()


def test_rules_are_listed_with_the_state_of_their_alerts_and_switched_off(
    served: Served, page: Page, trainer: Trainer
) -> None:
    page.goto(f"{served.url}/alerts")
    rule = page.locator("[data-rule]", has=page.get_by_role("link", name="low scale", exact=True))
    expect(rule).to_contain_text("when scale < 1")
    expect(rule).to_contain_text("1 firing")
    expect(page.locator("[data-rule]", has_text="pack/scale-thrash")).to_contain_text("built-in")
    rule.get_by_role("switch").uncheck()
    expect(rule).to_contain_text("off")
    expect(card(page)).to_have_count(0)
    assert alerts(served) == []
    page.get_by_label("Show").select_option("what is over")
    expect(card(page)).to_have_attribute("data-state", "quiet")
    expect(page).to_have_url(re.compile(r"show=quiet"))


def test_the_bell_and_the_list_of_runs_tell_what_fires_as_it_begins(served: Served, page: Page) -> None:
    add(served)
    with served.trainer(hello(world_size=1)) as connected:
        connected.deliver(layout(0), steps(1, 0, 3, scale=[2.0] * 3))
        page.goto(served.url)
        expect(page.get_by_role("link", name="a run")).to_be_visible()
        expect(page.get_by_role("link", name="Alerts: no alerts fire")).to_be_visible()
        connected.deliver(steps(2, 3, 1, scale=[0.5]))
        bell = page.get_by_role("link", name=re.compile(r"Alerts: \d+ alerts? fires?"))
        expect(bell).to_be_visible()
        page.locator(".fires").click()
        expect(page).to_have_url(re.compile(r"/alerts\?run=run-1$"))
        expect(card(page)).to_be_visible()


@pytest.mark.parametrize("path", ["/alerts", "/alerts?run=run-1"])
def test_names_of_rules_and_runs_stay_text_and_fit_a_phone(served: Served, page: Page, path: str) -> None:
    add(served, name=HOSTILE)
    with served.trainer(hello(world_size=1, name=HOSTILE * 3, project=HOSTILE)) as connected:
        connected.deliver(layout(0), steps(1, 0, 2, scale=[2.0, 0.5]))
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(served.url + path)
        expect(card(page, HOSTILE)).to_be_visible()
    assert page.locator("img[src='x'], [href^='javascript:']").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_newcomer_builds_a_rule_sees_it_tried_and_saves_it(served: Served, page: Page, trainer: Trainer) -> None:
    page.goto(f"{served.url}/alerts")
    page.get_by_role("link", name="New rule").click()
    page.get_by_label("Build it").select_option("the scale is low")
    page.locator(".blanks").get_by_label("scale").fill("2")
    expect(page.get_by_label("Sentence")).to_have_value("when scale < 2")
    tried = page.locator('.trial[data-run="run-1"]')
    expect(tried).to_contain_text("Would have fired once in 30 updates, still firing at the end: from update 20")
    expect(tried.locator("rect")).to_have_count(1)
    page.get_by_label("for at least").fill("5 steps")
    expect(tried).to_contain_text("from update 24")
    page.get_by_label("Name").fill("below two")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("[data-rule]", has_text="below two")).to_contain_text("when scale < 2 for 5 steps")


def test_what_is_wrong_with_a_sentence_is_marked_at_its_place(
    served: Served, page: Page, complaints: Complaints
) -> None:
    complaints.expect("status of 422")
    page.goto(f"{served.url}/alerts?rule=new")
    sentence = page.get_by_label("Sentence")
    sentence.fill("when scle < 1")
    expect(page.locator(".under mark")).to_have_text("scle")
    expect(page.locator("#when-fault")).to_contain_text('did you mean "scale"?')
    sentence.fill("when scale < 1")
    expect(page.locator(".under mark")).to_have_count(0)
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".editor [role=alert]")).to_contain_text("name")


def test_firings_on_runs_marked_healthy_are_counted_apart(served: Served, page: Page, trainer: Trainer) -> None:
    with served.trainer(hello("well", world_size=1, name="well")) as other:
        other.deliver(layout(0), steps(1, 0, 20, scale=[2.0] * 20))
    assert served.call("PATCH", "/api/runs/well", body={"healthy": True}).status == 200
    page.goto(f"{served.url}/alerts?rule=new")
    page.get_by_label("Sentence").fill("when scale < 1")
    expect(page.locator('.trial[data-run="well"]')).to_contain_text("Would not have fired in 20 updates")
    expect(page.locator(".healthy")).to_have_text("Would not have fired on the run that is marked healthy.")
    page.get_by_label("Tried on").select_option("run-1")
    expect(page.locator(".trial").first).to_have_attribute("data-run", "run-1")
    expect(page.locator(".healthy")).to_have_text("Would not have fired on the run that is marked healthy.")


def test_a_rule_is_changed_and_deleted_after_being_asked_twice(served: Served, page: Page) -> None:
    add(served)
    page.goto(f"{served.url}/alerts")
    page.get_by_role("link", name="low scale", exact=True).click()
    expect(page.get_by_label("Sentence")).to_have_value("when scale < 1")
    page.get_by_label("Severity").select_option("info")
    page.get_by_role("button", name="Save").click()
    rule = page.locator("[data-rule]", has=page.get_by_role("link", name="low scale", exact=True))
    expect(rule.locator(".severity")).to_have_text("info")
    rule.get_by_role("link").click()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete it for good").click()
    expect(page).to_have_url(re.compile("/alerts$"))
    expect(page.locator("[data-rule]").first).to_be_visible()
    expect(rule).to_have_count(0)


def test_who_has_allowed_it_is_notified_by_the_browser_of_each_alert_once(served: Served, page: Page) -> None:
    add(served)
    page.context.grant_permissions(["notifications"], origin=served.url)
    # What the page shows is shown, and noted.
    page.add_init_script(
        "window.shown = []; window.Notification = class extends Notification {"
        " constructor(title, given) { super(title, given); window.shown.push([title, given.tag]); } };"
    )
    page.goto(f"{served.url}/alerts")
    expect(page.locator("#notify")).to_be_hidden()
    page.locator("html[data-live=live]").wait_for()
    with served.trainer(hello(world_size=1)) as trainer:
        trainer.deliver(layout(0), steps(1, 0, 30, scale=[2.0] * 20 + [0.5] * 10))
        expect(card(page)).to_have_attribute("data-state", "firing")
        trainer.deliver(steps(2, 30, 10, scale=[0.5] * 10))
        until(lambda: any("low scale" in title for title, _ in page.evaluate("window.shown")))
    tags = [tag for _, tag in page.evaluate("window.shown")]
    assert len(tags) == len(set(tags))


def test_a_browser_that_was_not_asked_yet_offers_to_notify(served: Served, page: Page) -> None:
    page.add_init_script("Object.defineProperty(Notification, 'permission', { get: () => 'default' });")
    page.goto(f"{served.url}/alerts")
    expect(page.locator("#notify")).to_have_text("Notify me in this browser")
