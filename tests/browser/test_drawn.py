"""The pages in a real Chromium, over a real server."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, Route, expect
from scalescope.wire import Event, Layout, Parameter, Record

from tests.browser.conftest import Complaints
from tests.serving import Served, Trainer, hello, layout, sample, skip, steps
from tests.small_link import until

pytestmark = pytest.mark.browser

RUN = "/runs/run-1"
PAGES = ["/", RUN, f"{RUN}/layers", f"{RUN}/layers/block.weight"]
HOSTILE = '<img src=x onerror="alert(1)"><a href="javascript:alert(2)">x</a>'
SCALE = '[data-chart="scale"] .plot'


def deliver(trainer: Trainer, first: int = 0, count: int = 60) -> None:
    """Updates of a run that skips its 31st, with samples; the first delivery begins with the layout."""
    sequence = trainer.durable + 1
    skipped = [float(step == 30) for step in range(first, first + count)]
    loss = [4.0 - step / 100 for step in range(first, first + count)]
    before: list[Record] = [layout(sequence), sample(sequence + 1, 0), skip(sequence + 2, 30)] if first == 0 else []
    trainer.deliver(*before, steps(sequence + len(before), first, count, skipped=skipped, loss=loss))


def drawn(page: Page, step: int) -> None:
    """Wait until ``step`` is on the page."""
    page.locator(f'html[data-drawn-step="{step}"]').wait_for()


def on_a_phone(served: Served, page: Page, *, height: int = 844) -> None:
    """A run, its page on a small screen."""
    with served.trainer(hello()) as trainer:
        deliver(trainer)
    page.set_viewport_size({"width": 390, "height": height})
    page.goto(served.url + RUN)
    drawn(page, 59)


def axis(page: Page, chart: str) -> list[float]:
    """The time axis of a chart, as it is on the page; charts below the fold are drawn a moment after the others."""
    plot = page.locator(f'[data-chart="{chart}"] .plot')
    expect(plot.locator(".main-svg").first).to_be_attached()
    found: list[float] = plot.evaluate("plot => plot.layout.xaxis.range")
    return found


def shows(page: Page, chart: str, wanted: list[float]) -> None:
    """Wait until the time axis of a chart is the ``wanted`` one: a chart follows the others a moment later."""
    until(lambda: axis(page, chart) == wanted)


def drag(page: Page, start: float, end: float) -> None:
    """Mark a part of the scale's chart, between shares of its width."""
    box = page.locator(f"{SCALE} .nsewdrag").bounding_box()
    assert box is not None
    height = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * start, height)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, height, steps=5)
    page.mouse.up()


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_every_page_draws_without_a_complaint(served: Served, page: Page, path: str, scheme: str) -> None:
    with served.trainer(hello()) as trainer:
        deliver(trainer)
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # a parameter of the test, not a literal
    page.goto(served.url + path)
    expect(page.locator("html")).to_have_attribute("data-theme", scheme)
    if path == "/":
        expect(page.get_by_role("link", name="a run")).to_be_visible()
        return
    drawn(page, 59)
    for numbers in page.locator("article:not([data-empty]) summary").all():
        numbers.click()
    expect(page.locator("article table").first).to_be_visible()


@pytest.mark.parametrize("path", PAGES)
def test_a_phone_never_scrolls_sideways(served: Served, page: Page, path: str) -> None:
    with served.trainer(hello(name="a-very-long-name-of-a-run-" * 4)) as trainer:
        deliver(trainer)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(served.url + path)
    page.locator("html[data-live=stale], html[data-live=live]").wait_for()
    if path != "/":
        drawn(page, 59)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_on_a_phone_the_ledger_says_all_of_it_without_scrolling(served: Served, page: Page) -> None:
    on_a_phone(served, page)
    ledger = page.locator(".scroll", has=page.locator(".ledger"))
    expect(ledger.get_by_role("cell", name="0 lost, 0 dropped")).to_be_visible()
    assert ledger.evaluate("box => box.scrollWidth <= box.clientWidth")


def test_charts_below_the_fold_are_drawn_before_the_reader_comes(served: Served, page: Page) -> None:
    on_a_phone(served, page, height=500)
    last = page.locator("article[data-chart]").last
    expect(last).not_to_be_in_viewport()
    expect(last.locator(".main-svg").first).to_be_attached()


def test_how_long_a_trainer_is_silent_fits_a_phone(served: Served, page: Page) -> None:
    on_a_phone(served, page)
    fits = "told => { told.textContent = 'trainer silent for 59 min'; return told.scrollWidth <= told.clientWidth; }"
    assert page.locator("#live span").evaluate(fits)


def test_after_a_skip_the_tile_says_what_room_is_left(served: Served, page: Page) -> None:
    with served.trainer(hello()) as trainer:
        deliver(trainer)
    page.goto(served.url + RUN)
    drawn(page, 59)
    tile = page.locator(".tile", has_text="headroom to overflow")
    expect(tile).to_contain_text("none")
    expect(tile).to_contain_text("block.bias overflowed")


def test_points_appear_as_they_are_stored(served: Served, page: Page) -> None:
    with served.trainer(hello()) as trainer:
        deliver(trainer)
        page.goto(served.url + RUN)
        drawn(page, 59)
        deliver(trainer, 60, 5)
        drawn(page, 64)
    steps = "plot => plot.data.find(trace => trace.name === 'loss scale').x"
    until(lambda: page.locator(SCALE).evaluate(steps) == list(range(65)))
    expect(page.locator("#tiles")).to_contain_text("64 / 65")


def test_a_zoom_moves_every_chart_and_survives_new_data(served: Served, page: Page) -> None:
    with served.trainer(hello()) as trainer:
        deliver(trainer)
        page.goto(served.url + RUN)
        drawn(page, 59)
        drag(page, 0.25, 0.75)
        expect(page.locator("#follow")).to_have_text("Follow the newest")
        expect(page).to_have_url(re.compile(r"from=\d+&to=\d+"))
        zoomed = axis(page, "scale")
        deliver(trainer, 60, 20)
        expect(page.locator("#tiles")).to_contain_text("79 / 80")
        shows(page, "scale", zoomed)
        shows(page, "loss", zoomed)
        page.reload()
        expect(page.locator(f"{SCALE} .main-svg").first).to_be_visible()
        shows(page, "scale", zoomed)
        page.keyboard.press("f")
        drawn(page, 79)
        until(lambda: axis(page, "scale")[1] > 79)
        until(lambda: axis(page, "loss")[1] > 79)


def test_figures_that_were_asked_for_before_a_zoom_do_not_undo_it(served: Served, page: Page) -> None:
    asked: list[Route] = []
    with served.trainer(hello()) as trainer:
        deliver(trainer)
        page.goto(served.url + RUN)
        drawn(page, 59)
        page.route(re.compile(r"/figures\?"), lambda route: asked.append(route))
        deliver(trainer, 60, 5)
        # What was asked for by then is held as well, and nothing else is asked for meanwhile.
        until(lambda: page.evaluate("true") and len(asked) > 0)
        drag(page, 0.25, 0.75)
        expect(page).to_have_url(re.compile("from="))
        zoomed = axis(page, "scale")
        asked[0].continue_()
        drawn(page, 64)
        shows(page, "scale", zoomed)
        page.unroute_all(behavior="ignoreErrors")


def test_nothing_is_redrawn_while_the_reader_drags(served: Served, page: Page) -> None:
    with served.trainer(hello()) as trainer:
        deliver(trainer)
        page.goto(served.url + RUN)
        drawn(page, 59)
        box = page.locator(f"{SCALE} .nsewdrag").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 50, box["y"] + 50)
        page.mouse.down()
        deliver(trainer, 60, 20)
        expect(page.locator("#tiles")).to_contain_text("79 / 80")
        assert page.locator("html").get_attribute("data-drawn-step") == "59"
        page.mouse.up()
        drawn(page, 79)


def test_a_click_that_meets_news_still_opens_the_run(served: Served, page: Page) -> None:
    with served.trainer(hello()) as trainer, page.expect_websocket() as live:
        deliver(trainer)
        page.goto(served.url)
        link = page.get_by_role("link", name="a run")
        link.hover()
        page.mouse.down()
        with live.value.expect_event("framereceived", lambda frame: '"step":79' in str(frame)):
            deliver(trainer, 60, 20)
        # A page that drew under the pointer would have had the same answer before this one.
        page.evaluate("fetch('/api/runs').then(answer => answer.text())")
        assert link.evaluate("link => link.isConnected")
        page.mouse.up()
        drawn(page, 79)


def test_names_of_a_trainer_stay_text_wherever_they_are_shown(served: Served, page: Page) -> None:
    hostile = Parameter(HOSTILE, HOSTILE, [4], "float32", 16, "fp16")
    plain = Parameter("plain", "block", [4], "float32", 16, "fp16")
    data = f'{{"scale": 65536.0, "next_scale": 32768.0, "parameter": {HOSTILE!r}}}'.replace(
        '"alert(1)"', '\\"alert(1)\\"'
    )
    data = data.replace("'<", '"<').replace(">'", '>"').replace('"javascript:alert(2)"', '\\"javascript:alert(2)\\"')
    run = hello(name=HOSTILE, project=HOSTILE, tags=[HOSTILE], config='{"<b>width</b>": "<i>64</i>"}')
    with served.trainer(run) as trainer:
        trainer.deliver(
            Layout(sequence=0, parameters=[hostile, plain], order="observed", backward=[1, 0]),
            sample(1, 0),
            Event(sequence=2, step=1, at=1_700_000_001.0, kind="skip", data=data),
            steps(3, 0, 3, skipped=[0.0, 1.0, 0.0], **{HOSTILE: [1.0, float("nan"), 2.0]}),
        )
    for path in ("/", RUN, f"{RUN}/layers", f"{RUN}/layers/{quote(HOSTILE, safe='')}"):
        page.goto(served.url + path)
        expect(page.get_by_text("<img src=x").first).to_be_attached()
        if path != "/":
            drawn(page, 2)
        for chart in page.locator(".plot .nsewdrag").all():
            chart.scroll_into_view_if_needed()
            chart.hover()
        assert page.locator("img[src='x'], [href^='javascript:'], main b b, main i i").count() == 0


def test_the_slider_moves_the_limits_and_the_answers_at_once(served: Served, page: Page) -> None:
    with served.trainer(hello()) as trainer:
        deliver(trainer)
    page.goto(f"{served.url}{RUN}/layers/block.weight")
    drawn(page, 59)
    answers = page.locator("#answers")
    expect(answers).to_contain_text("0 %")
    histogram = page.locator('[data-chart="histogram"] .plot')
    heights = "plot => plot.data.slice(1, 4).map(trace => trace.y[0])"
    until(lambda: histogram.evaluate(heights) == [16, -14, -25])
    page.locator("#scale").fill("-7")
    expect(answers).to_contain_text("100.0 %")
    expect(page.locator("#exactness")).to_contain_text("An estimate: this gradient is computed in fp16")
    until(lambda: histogram.evaluate(heights) == [39, 9, -2])
    expect(page).to_have_url(re.compile(r"scale=-7"))


def test_the_heat_map_filters_and_opens_a_layer(served: Served, page: Page) -> None:
    with served.trainer(hello()) as trainer:
        deliver(trainer)
    page.goto(f"{served.url}{RUN}/layers?measure=zero_share")
    drawn(page, 59)
    page.keyboard.press("/")
    page.keyboard.type("bias")
    expect(page.locator("#matches")).to_have_text("1 layer")
    rows = page.locator('[data-chart="layers"] .nsewdrag')
    rows.hover(position={"x": 30, "y": 40})
    expect(page.locator('[data-chart="layers"] .hoverlayer')).to_contain_text("block.bias")
    rows.click(position={"x": 30, "y": 40})
    expect(page).to_have_url(re.compile(r"/layers/block\.bias$"))


def test_a_server_without_runs_tells_the_first_steps_and_fills_by_itself(served: Served, page: Page) -> None:
    page.goto(served.url)
    expect(page.locator("main")).to_contain_text("pip install scalescope")
    expect(page.locator("main")).to_contain_text("scalescope.watch(model, optimizer, scaler)")
    with served.trainer(hello()) as trainer:
        deliver(trainer)
        expect(page.get_by_role("link", name="a run")).to_be_visible()


def test_a_run_that_is_not_there_is_told_in_words(served: Served, page: Page, complaints: Complaints) -> None:
    complaints.expect("status of 404")
    page.goto(f"{served.url}/runs/nothing")
    expect(page.get_by_role("alert")).to_contain_text("There is no such run")


def test_the_theme_is_remembered_and_the_charts_follow(served: Served, page: Page) -> None:
    with served.trainer(hello()) as trainer:
        deliver(trainer)
    page.goto(served.url + RUN)
    drawn(page, 59)
    page.get_by_role("button", name="Switch between light and dark").click()
    line = page.locator(f"{SCALE} .js-line").last
    expect(line).to_have_css("stroke", "rgb(23, 28, 34)")
    page.goto(served.url)
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_runs_are_reached_by_keyboard_and_a_reader_is_told_each_chart(served: Served, page: Page) -> None:
    with served.trainer(hello()) as trainer:
        deliver(trainer)
    page.goto(served.url)
    expect(page.get_by_role("link", name="a run")).to_be_visible()
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="a run")).to_be_focused()
    page.keyboard.press("Enter")
    drawn(page, 59)
    label = page.locator(SCALE).get_attribute("aria-label")
    assert label is not None
    assert "1 updates were skipped" in label
