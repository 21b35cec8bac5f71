"""What the loop, its modules and its probes told, on the pages, in a real Chromium."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_drawn import HOSTILE, RUN, drawn, shows
from tests.serving import Served, bye, hello, layout
from tests.told_runs import tell

pytestmark = pytest.mark.browser


def test_unusual_windows_stand_apart_and_are_shown_on_the_chart(served: Served, page: Page) -> None:
    tell(served)
    page.goto(served.url + RUN)
    drawn(page, 59)
    clip = page.locator('#unusual [data-kind="clip_while_scaled"]')
    expect(clip).to_contain_text("5 updates: 20–24")
    expect(clip).to_contain_text("0.00781 of the intended update is left")
    clip.get_by_role("button", name="Show on the chart").click()
    expect(page).to_have_url(re.compile(r"from=15&to=30"))
    shows(page, "scale", [14.5, 29.5])


def test_an_ordinary_window_the_clocks_and_memory_are_told_in_words(served: Served, page: Page) -> None:
    tell(served)
    page.goto(served.url + RUN)
    drawn(page, 59)
    facts = page.locator("#facts")
    expect(facts).to_contain_text("by norm at 1, after unscaling")
    expect(facts).to_contain_text("block follows attempted updates: the learning rate is 1 step ahead of the weights.")
    expect(facts).to_contain_text("peak 1.00 MiB")
    expect(facts).to_contain_text("1 without a gradient: block.")


def test_an_ordinary_loop_shows_no_unusual_windows(served: Served, page: Page) -> None:
    with served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), bye(1))
    page.goto(served.url + RUN)
    expect(page.locator("#facts")).to_contain_text("Nothing has been heard of the loop yet.")
    expect(page.locator("#unusual")).to_be_hidden()
    expect(page.locator("#tiles")).to_contain_text("ended without an update")


def test_measures_are_chosen_by_group_and_a_module_opens_a_layer(served: Served, page: Page) -> None:
    tell(served)
    page.goto(f"{served.url}{RUN}/layers")
    drawn(page, 59)
    expect(page.locator("#measure optgroup")).to_have_count(4)
    page.locator("#measure").select_option(label="Headroom of outputs")
    expect(page.locator("#matches")).to_have_text("2 modules")
    expect(page).to_have_url(re.compile("measure=forward_headroom"))
    page.get_by_text("Layers by name").click()
    page.get_by_role("link", name="(the model)").click()
    expect(page).to_have_url(re.compile(r"/layers/block\.weight$"))


def test_a_filter_that_matches_nothing_is_cleared_by_a_click(served: Served, page: Page) -> None:
    tell(served)
    page.goto(f"{served.url}{RUN}/layers?match=nothing")
    page.get_by_role("button", name="Clear the filter").click()
    expect(page.locator("#matches")).to_have_text("2 layers")
    page.goto(f"{served.url}/?text=nothing")
    page.get_by_role("button", name="Clear the filter").click()
    expect(page.get_by_role("link", name="a run")).to_be_visible()


def test_a_layer_has_its_headroom_and_its_probe(served: Served, page: Page) -> None:
    tell(served)
    page.goto(f"{served.url}{RUN}/layers/block.weight")
    drawn(page, 59)
    expect(page.locator('[data-chart="headroom"] h2')).to_have_text("Headroom of block, of fp16")
    probe = page.locator("#lines article", has_text="Reference probe")
    expect(probe).to_contain_text("true underflow25.0 %")
    expect(probe).to_contain_text("estimated from the histogram of the sample of update 0")


@pytest.mark.parametrize("rest", ["", "/layers?measure=forward_headroom", f"/layers/{quote(HOSTILE, safe='')}.weight"])
def test_names_in_facts_and_of_modules_stay_text(served: Served, page: Page, rest: str) -> None:
    tell(served, name=HOSTILE)
    page.goto(served.url + RUN + rest)
    drawn(page, 59)
    expect(page.get_by_text("<img src=x").first).to_be_attached()
    for chart in page.locator(".plot .nsewdrag").all():
        chart.scroll_into_view_if_needed()
        chart.hover()
    assert page.locator("img[src='x'], [href^='javascript:']").count() == 0


@pytest.mark.parametrize("rest", ["", "/layers?measure=update_ratio", "/layers/block.weight"])
def test_a_phone_has_room_for_all_of_it(served: Served, page: Page, rest: str) -> None:
    tell(served)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(served.url + RUN + rest)
    drawn(page, 59)
    if not rest:
        expect(page.locator("#unusual")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
