"""Channels and silences in a real Chromium, over a real server and a real receiver."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from playwright.sync_api import Page, expect
from scalescope_server.delivery.addresses import parse_network
from scalescope_server.delivery.settings_file import Delivery

from tests.browser.conftest import Complaints
from tests.browser.test_drawn import HOSTILE
from tests.receiving import SECRET, receiving
from tests.serving import Served, ok

pytestmark = pytest.mark.browser

ALLOWED = Delivery("https://scale.example.com", (parse_network("127.0.0.0/8"),))
Serve = Callable[..., AbstractContextManager[Served]]


def test_a_channel_is_set_up_tried_switched_off_and_deleted_and_no_secret_comes_back(serve: Serve, page: Page) -> None:
    with serve(delivery=ALLOWED) as served, receiving(204, 410) as receiver:
        page.goto(f"{served.url}/alerts")
        page.get_by_role("link", name="Channels and silences").click()
        expect(page.locator("#channels")).to_contain_text("No channel is set up")
        page.get_by_text("New channel").click()
        page.get_by_label("Name").fill("on call")
        page.get_by_label("Address").fill(f"{receiver.url}/secret-path")
        page.get_by_role("button", name="Make one").click()
        expect(page.get_by_label("Secret")).to_have_value(re.compile(r"^whsec_[\w+/]{43}=$"))
        page.get_by_label("Secret").fill(SECRET)
        page.get_by_role("button", name="Add the channel").click()
        channel = page.locator('[data-channel="on call"]')
        expect(channel).to_contain_text(f"{receiver.url}/…")
        expect(channel).to_contain_text("No alert was told here yet.")
        expect(page.get_by_label("Secret")).to_have_value("")
        test = channel.get_by_role("button", name="Send a test")
        test.click()
        expect(channel.locator(".outcome")).to_contain_text("The test arrived")
        assert receiver.received[0].is_signed
        test.click()
        expect(channel.locator(".outcome")).to_contain_text("The test did not arrive: the receiver answered 410")
        channel.get_by_role("switch").uncheck()
        expect(channel).to_contain_text("off")
        assert [line["enabled"] for line in ok(served, "/api/channels")["items"]] == [False]
        assert "secret-path" not in page.content()
        channel.get_by_role("button", name="Delete").click()
        channel.get_by_role("button", name="Delete it for good").click()
        expect(channel).to_have_count(0)


def test_what_is_wrong_with_a_channel_is_said_and_what_was_typed_stays(
    served: Served, page: Page, complaints: Complaints
) -> None:
    complaints.expect("status of 422")
    page.goto(f"{served.url}/alerts/channels")
    page.get_by_text("New channel").click()
    page.get_by_label("Name").fill("chat")
    page.get_by_label("Kind").select_option("service: Slack, Discord, e-mail, …")
    expect(page.get_by_label("Secret")).to_be_hidden()
    page.get_by_label("Address").fill("gopher://x")
    page.get_by_role("button", name="Add the channel").click()
    expect(page.locator("#add-channel [role=alert]")).to_contain_text("It was not added:")
    expect(page.get_by_label("Address")).to_have_value("gopher://x")


def test_a_project_is_silenced_with_a_reason_and_told_of_again(served: Served, page: Page) -> None:
    page.goto(f"{served.url}/alerts/channels")
    expect(page.locator("#silences")).to_contain_text("Nothing is silenced.")
    page.get_by_text("New silence").click()
    page.get_by_label("Project").fill("team-*")
    page.get_by_label("Silence", exact=True).select_option("for 8 hours")
    page.get_by_label("Reason").fill(HOSTILE)
    page.get_by_role("button", name="Silence it").click()
    silence = page.locator('[data-silence="team-*"]')
    expect(silence).to_contain_text("for another 8 h")
    expect(silence).to_contain_text(HOSTILE)
    page.goto(f"{served.url}/alerts")
    expect(page.locator("#silenced")).to_contain_text("Nothing is told of team-* until")
    page.get_by_role("link", name="Silences", exact=True).click()
    silence.get_by_role("button", name="End the silence of team-*").click()
    expect(silence).to_have_count(0)
    assert ok(served, "/api/silences")["items"] == []


def test_the_page_fits_a_phone(served: Served, page: Page) -> None:
    given_silence = {"project": "p" * 120, "ends_at": 2**33, "reason": "r" * 300}
    assert served.call("POST", "/api/silences", body=given_silence).status == 201
    given = {"name": "x" * 64, "config": {"kind": "webhook", "url": "https://hooks.example.com/", "secret": SECRET}}
    assert served.call("POST", "/api/channels", body=given).status == 201
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{served.url}/alerts/channels")
    expect(page.locator(".channel")).to_be_visible()
    expect(page.locator(".silence")).to_be_visible()
    for words in ("New channel", "New silence"):
        page.get_by_text(words).click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
