"""Alerts and the list of their rules in a real Chromium, over a real server that judges."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect

from tests.browser.alerts import add, alerts, card
from tests.browser.conftest import Complaints
from tests.browser.test_drawn import HOSTILE
from tests.serving import Served, Trainer, hello, layout, ok, steps
from tests.small_link import until

pytestmark = pytest.mark.browser


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
    card(page).get_by_text("Mute…").click()
    card(page).get_by_label("Mute low scale", exact=True).select_option("for 1 day")
    card(page).get_by_role("button", name="Mute", exact=True).click()
    expect(card(page)).to_contain_text("muted until")
    # Who works with the keyboard goes on from there.
    expect(card(page).get_by_role("button", name="Unmute")).to_be_focused()
    page.keyboard.press("Enter")
    expect(card(page)).not_to_contain_text("muted until")
    expect(card(page).get_by_text("Mute…")).to_be_focused()
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


def test_choosing_for_how_long_mutes_nothing_yet_and_may_end_at_a_day_and_time(
    served: Served, page: Page, trainer: Trainer
) -> None:
    page.goto(f"{served.url}/alerts")
    card(page).get_by_text("Mute…").click()
    how_long = card(page).get_by_label("Mute low scale", exact=True)
    expect(how_long).to_be_focused()
    for _ in range(4):
        page.keyboard.press("ArrowDown")
    expect(how_long).to_have_value("chosen")
    (alert,) = alerts(served)
    assert alert["muted_until"] is None
    at = card(page).get_by_label("Mute low scale until")
    at.fill("2020-01-01T08:00")
    card(page).get_by_role("button", name="Mute", exact=True).click()
    expect(card(page)).to_contain_text("Choose a day and time to come.")
    to_come = (datetime.now(UTC) + timedelta(days=3)).replace(second=0, microsecond=0)
    at.fill(to_come.astimezone().strftime("%Y-%m-%dT%H:%M"))
    card(page).get_by_role("button", name="Mute", exact=True).click()
    expect(card(page)).to_contain_text("muted until")
    (alert,) = alerts(served)
    assert alert["muted_until"] == to_come.timestamp()


def test_what_fires_and_has_no_data_now_is_still_told_everywhere(served: Served, page: Page) -> None:
    add(served, name="high loss", when="when mean(loss, 2 steps) > 2")
    with served.trainer(hello(world_size=1)) as trainer:
        trainer.deliver(layout(0), steps(1, 0, 2, loss=[1.0, 5.0]))
        until(lambda: bool(alerts(served)))
        trainer.deliver(steps(2, 2, 40))
        until(lambda: any(each["name"] == "high loss" for each in ok(served, "/api/alerts?state=no+data")["items"]))
        page.goto(f"{served.url}/alerts")
        expect(card(page, "high loss")).to_contain_text("firing, no data now")
        rule = page.locator("[data-rule]", has=page.get_by_role("link", name="high loss", exact=True))
        expect(rule.locator(".states")).to_have_text("1 firing, not judged now")
        expect(page.locator("#bell")).not_to_have_attribute("data-firing", "0")
        page.goto(served.url)
        expect(page.locator(".fires")).to_be_visible()


def test_why_something_failed_stays_at_its_control_until_it_is_asked_for_again(
    served: Served, page: Page, trainer: Trainer, complaints: Complaints
) -> None:
    complaints.expect("ERR_FAILED")
    page.goto(f"{served.url}/alerts")
    page.route("**/acknowledge", lambda route: route.abort())
    page.route(re.compile(r"/api/rules/\d+$"), lambda route: route.abort())
    acknowledge = card(page).get_by_role("button", name="Acknowledge")
    acknowledge.click()
    rule = page.locator("[data-rule]", has=page.get_by_role("link", name="low scale", exact=True))
    rule.get_by_role("switch").uncheck(force=True)
    expect(rule).to_contain_text("It is still on: the server does not answer.")
    expect(rule.get_by_role("switch")).to_be_checked()
    # News, and what is fetched because of it, come and go.
    with page.expect_response(re.compile("/api/alerts/counts")):
        add(served, name="another", when="when scale < 0.9")
        trainer.deliver(steps(2, 30, 2, scale=[0.5] * 2))
    expect(card(page, "another")).to_be_visible()
    expect(card(page)).to_contain_text("It was not acknowledged: the server does not answer.")
    expect(rule).to_contain_text("It is still on: the server does not answer.")
    page.unroute("**/acknowledge")
    acknowledge.click()
    expect(card(page)).to_contain_text("acknowledged at")
    expect(card(page)).not_to_contain_text("It was not acknowledged")


def test_the_focus_stays_where_it_is_while_alerts_come_and_change(served: Served, page: Page, trainer: Trainer) -> None:
    page.goto(f"{served.url}/alerts")
    card(page).get_by_text("Mute…").click()
    at = card(page).get_by_label("Mute low scale until")
    card(page).get_by_label("Mute low scale", exact=True).select_option("until a day and time…")
    at.fill("2031-01-01T08:00")
    add(served, name="newer", when="when scale < 0.9")
    (alert,) = alerts(served)
    assert served.call("POST", f"/api/alerts/{alert['id']}/acknowledge").status == 200
    trainer.deliver(steps(2, 30, 2, scale=[0.5] * 2))
    expect(card(page)).to_contain_text("acknowledged at")
    # What somebody has taken up stands below what is new.
    expect(page.locator("article.alert").last).to_have_attribute("data-alert", str(alert["id"]))
    expect(at).to_be_focused()
    expect(at).to_have_value("2031-01-01T08:00")


def test_a_switch_changes_nothing_of_what_a_colleague_has_written_meanwhile(
    served: Served, page: Page, trainer: Trainer
) -> None:
    page.goto(f"{served.url}/alerts")
    rule = page.locator("[data-rule]", has=page.get_by_role("link", name="low scale", exact=True))
    expect(rule).to_be_visible()
    (known,) = [each for each in ok(served, "/api/rules")["items"] if each["name"] == "low scale"]
    theirs = {"name": "low scale", "when": "when scale < 0.7", "severity": "critical"}
    assert served.call("PUT", f"/api/rules/{known['id']}", body=theirs).status == 200
    rule.get_by_role("switch").uncheck()
    expect(rule).to_contain_text("when scale < 0.7")
    now = ok(served, f"/api/rules/{known['id']}")
    assert (now["when"], now["enabled"]) == ("when scale < 0.7", False)


def test_many_rules_and_alerts_are_shown_page_by_page_and_found(served: Served, page: Page) -> None:
    text = "rules:\n" + "".join(f"  - name: rule {i:02}\n    when: when scale < {1 + i / 100}\n" for i in range(60))
    assert served.call("POST", "/api/rules/import", body={"text": text}).status == 200
    with served.trainer(hello(world_size=1)) as trainer:
        trainer.deliver(layout(0), steps(1, 0, 2, scale=[2.0, 0.5]))
        until(lambda: ok(served, "/api/alerts/counts")["open"] >= 60)
        page.goto(f"{served.url}/alerts")
        expect(page.locator("article.alert")).to_have_count(50)
        page.get_by_role("button", name="Show 50 more alerts").click()
        expect(card(page, "rule 00")).to_be_visible()
        expect(page.get_by_role("button", name="Show 50 more alerts")).to_be_hidden()
        expect(page.locator("[data-rule]")).to_have_count(50)
        page.get_by_role("button", name="Show 50 more", exact=True).click()
        expect(page.locator("[data-rule]", has_text="rule 59")).to_contain_text("1 firing")
        page.get_by_label("Filter the rules").fill("rule 17")
        expect(page.locator("[data-rule]")).to_have_count(1)


def test_all_of_an_alerts_past_can_be_read(served: Served, page: Page, trainer: Trainer) -> None:
    trainer.deliver(steps(2, 30, 60, scale=[2.0, 0.5] * 30))
    until(lambda: alerts(served)[0]["firings"] == 31)
    page.goto(f"{served.url}/alerts")
    card(page).get_by_text("History and deliveries").click()
    history = card(page).locator("section").first
    expect(history.locator("tbody tr")).to_have_count(20)
    for rows in (40, 60, 61):
        history.get_by_role("button", name="Show older").click()
        expect(history.locator("tbody tr")).to_have_count(rows)
    expect(history.get_by_role("button", name="Show older")).to_be_hidden()
    expect(history.locator("tbody tr").last).to_contain_text("firing20value 0.5")


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


def test_a_firing_bell_leaves_all_controls_on_a_phone(served: Served, page: Page, trainer: Trainer) -> None:
    page.set_viewport_size({"width": 320, "height": 640})
    page.goto(f"{served.url}/runs/run-1")
    expect(page.get_by_role("link", name=re.compile(r"Alerts: \d+ alerts? fires?"))).to_be_visible()
    page.locator("html[data-drawn-step]").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
