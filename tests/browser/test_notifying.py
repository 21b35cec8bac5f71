"""The browser's own notifications of alerts, in a real Chromium."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.alerts import add, card
from tests.browser.conftest import Complaints
from tests.serving import Served, hello, layout, steps
from tests.small_link import until

pytestmark = pytest.mark.browser

# What the page shows is shown, and noted.
NOTED = (
    "window.shown = []; window.Notification = class extends Notification {"
    " constructor(title, given) { super(title, given); window.shown.push([title, given.tag]); } };"
)


def test_who_has_allowed_it_is_notified_by_the_browser_of_each_alert_once(served: Served, page: Page) -> None:
    add(served)
    page.context.grant_permissions(["notifications"], origin=served.url)
    page.add_init_script(NOTED)
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


def test_a_browser_that_lets_no_page_notify_goes_on_as_ever(served: Served, page: Page, complaints: Complaints) -> None:
    add(served)
    page.context.grant_permissions(["notifications"], origin=served.url)
    # As in Chrome on Android.
    page.add_init_script(
        "window.Notification = class { static permission = 'granted'; static tried = 0;"
        " constructor() { window.Notification.tried++; throw new TypeError('Illegal constructor'); } };"
    )
    page.goto(f"{served.url}/alerts")
    page.locator("html[data-live=live]").wait_for()
    with served.trainer(hello(world_size=1)) as trainer:
        trainer.deliver(layout(0), steps(1, 0, 30, scale=[2.0] * 20 + [0.5] * 10))
        expect(card(page)).to_have_attribute("data-state", "firing")
        until(lambda: page.evaluate("window.Notification.tried") > 0)
    assert complaints.found == []
