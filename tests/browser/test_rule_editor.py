"""The editor of rules in a real Chromium: built, tried on stored runs, saved, changed by two at once."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.alerts import add
from tests.browser.conftest import Complaints
from tests.serving import Served, Trainer, hello, layout, ok, steps

pytestmark = pytest.mark.browser


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


def test_a_rule_that_somebody_has_changed_meanwhile_is_not_written_over_unseen(
    served: Served, page: Page, complaints: Complaints
) -> None:
    complaints.expect("status of 409")
    rule = add(served)
    page.goto(f"{served.url}/alerts?rule={rule}")
    expect(page.get_by_label("Sentence")).to_have_value("when scale < 1")
    theirs = {"name": "low scale", "when": "when scale < 0.7", "severity": "critical", "channels": ["ops"]}
    assert served.call("PUT", f"/api/rules/{rule}", body=theirs).status == 200
    page.get_by_label("Sentence").fill("when scale < 4")
    page.get_by_role("button", name="Save").click()
    told = page.locator(".editor [role=alert]")
    expect(told).to_contain_text("Somebody has changed this rule since you opened it, and nothing was saved.")
    expect(told).to_contain_text("It says now: when when scale < 0.7. Save again to put yours in its place")
    assert ok(served, f"/api/rules/{rule}")["when"] == "when scale < 0.7"
    page.get_by_role("button", name="Save").click()
    expect(page.locator("[data-rule]", has_text="low scale")).to_contain_text("when scale < 4")


def test_what_no_ticked_channel_means_is_said(served: Served, page: Page) -> None:
    page.goto(f"{served.url}/alerts?rule=new")
    page.get_by_text("Where it applies, and what is told").click()
    expect(page.locator(".editor")).to_contain_text("There is no channel yet: it is shown on these pages alone.")
    given = {
        "name": "chat",
        "config": {"kind": "apprise", "url": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"},
    }
    assert served.call("POST", "/api/channels", body=given).status == 201
    page.reload()
    page.get_by_text("Where it applies, and what is told").click()
    expect(page.locator(".editor")).to_contain_text("None is ticked: every channel that is set up and on is told")
    page.get_by_label("Severity").select_option("info")
    expect(page.locator(".editor")).to_contain_text("of severity info, no channel is told")
    page.get_by_label("chat").check()
    expect(page.locator(".editor")).not_to_contain_text("None is ticked")


def test_an_alert_written_from_a_run_is_tried_on_it_and_is_of_its_project(
    served: Served, page: Page, trainer: Trainer
) -> None:
    page.goto(f"{served.url}/runs/run-1")
    page.get_by_role("link", name="New alert").click()
    expect(page.get_by_label("Tried on")).to_have_value("run-1")
    expect(page.get_by_label("Project")).to_have_value("tests")
    page.get_by_label("Sentence").fill("when scale < 1")
    expect(page.locator(".trial")).to_have_attribute("data-run", "run-1")
    expect(page.locator(".trial")).to_contain_text("Would have fired once")


def test_the_form_offers_the_names_that_the_server_knows(served: Served, page: Page) -> None:
    page.goto(f"{served.url}/alerts?rule=new")
    page.get_by_label("Build it").select_option("a finding is open")
    codes = page.locator(".blanks").get_by_label("finding").locator("option").all_text_contents()
    assert codes == ok(served, "/api/rules/names")["findings"]
