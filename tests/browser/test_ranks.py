"""Ranks on the pages, in a real Chromium: who died, who disagrees, what rests on fewer of them."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect
from scalescope.wire import Event, Heartbeat, Layout, Parameter, Part

from tests.browser.test_drawn import RUN, drawn
from tests.serving import Served, hello, sample, steps

pytestmark = pytest.mark.browser

UPDATES = 40


def tell(served: Served, rank: int, size: int, updates: int = UPDATES, *, scale: float = 65536.0) -> None:
    """A rank of a sharded training that skips update 5, and says another scale from update 30 on."""
    parts = [Part("sharded", 16 // size, rank == 0)] * 2
    parameters = [Parameter(name, "block", [4, 4], "float32", 16, "fp16") for name in ("block.weight", "block.bias")]
    layout = Layout(sequence=0, parameters=parameters, order="observed", backward=[1, 0], parts=parts)
    told = {"parameter": "block.bias"} if rank == 1 else {"parameter": None, "reason": "another rank names it"}
    data = {"scale": 65536.0, "next_scale": 32768.0} | told
    skip = Event(sequence=1, step=5, at=1_700_000_005.0, kind="skip", data=json.dumps(data))
    skipped = [float(step == 5) for step in range(updates)]
    scales = [scale if step >= 30 else 65536.0 for step in range(updates)]
    times = {"step_ms": [80.0] * updates, "hook_ms": [4.0 if step % 10 == 0 else 0.02 for step in range(updates)]}
    samples = [sample(3 + i, step) for i, step in enumerate(range(0, updates, 10))]
    with served.trainer(hello(rank=rank, world_size=size)) as trainer:
        trainer.deliver(layout, skip, steps(2, 0, updates, skipped=skipped, scale=scales, **times), *samples)
        trainer.send(
            Heartbeat(
                at=0.0, step=updates - 1, progress_at=0.0, pending=0, dropped=0, sent_bytes=4096, thread_cpu_s=0.5
            )
        )


def test_ranks_that_differ_and_are_missing_are_told_above_and_one_by_one(served: Served, page: Page) -> None:
    for rank, scale in ((0, 65536.0), (1, 32768.0), (2, 65536.0)):
        tell(served, rank, 4, 20 if rank == 2 else UPDATES, scale=scale)
    page.goto(served.url + RUN)
    drawn(page, UPDATES - 1)
    trouble = page.locator("#trouble")
    expect(trouble).to_contain_text("At update 30 the ranks disagree for the first time on the loss scale")
    expect(trouble).to_contain_text("Of 4 ranks 3 have called: rank 3 not yet.")
    card = page.locator("#ranks")
    expect(card).to_contain_text("4 ranks: 3 running, 1 not heard of")
    expect(card.locator("tbody tr")).to_have_count(4)
    expect(card.locator("tbody tr").nth(2)).to_contain_text("19")
    expect(card.locator("tbody tr").nth(0)).to_contain_text("4.00 KiB, 102 B an update")
    norm = page.locator('[data-chart="grad_norm"]')
    norm.scroll_into_view_if_needed()
    expect(norm).to_contain_text("rest on fewer than all ranks")


def test_many_ranks_have_a_cell_each_and_a_phone_does_not_scroll_sideways(served: Served, page: Page) -> None:
    for rank in range(10):
        tell(served, rank, 16)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(served.url + RUN)
    drawn(page, UPDATES - 1)
    expect(page.locator("#ranks .cells li")).to_have_count(16)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.locator("#ranks .scroll")
    assert box.evaluate("box => box.scrollWidth <= box.clientWidth")


def test_the_lines_of_one_rank_are_chosen_and_the_address_holds_the_choice(served: Served, page: Page) -> None:
    for rank, scale in ((0, 65536.0), (1, 32768.0)):
        tell(served, rank, 2, scale=scale)
    page.goto(served.url + RUN)
    drawn(page, UPDATES - 1)
    plot, chooser = page.locator('[data-chart="scale"] .plot'), page.get_by_label("Lines of")
    expect(plot).to_have_attribute("aria-label", re.compile(r"between 2\^16 and 2\^16"))
    chooser.select_option("rank 1")
    expect(page).to_have_url(re.compile(r"\?rank=1$"))
    expect(plot).to_have_attribute("aria-label", re.compile(r"between 2\^15 and 2\^16"))
    page.reload()
    drawn(page, UPDATES - 1)
    expect(chooser).to_have_value("1")
    expect(plot).to_have_attribute("aria-label", re.compile(r"between 2\^15 and 2\^16"))
    chooser.select_option("the run")
    expect(page).not_to_have_url(re.compile("rank"))
    expect(plot).to_have_attribute("aria-label", re.compile(r"between 2\^16 and 2\^16"))


def test_a_run_of_one_rank_has_no_card_of_ranks_and_tells_what_its_hook_costs(served: Served, page: Page) -> None:
    tell(served, 0, 1)
    page.goto(served.url + RUN)
    drawn(page, UPDATES - 1)
    expect(page.locator("#trouble")).to_be_hidden()
    expect(page.locator("#ranks")).to_be_hidden()
    expect(page.locator("#rank-chooser")).to_be_hidden()
    expect(page.locator("#facts")).to_contain_text("500 ms of CPU")
    cost = page.locator('[data-chart="hook_ms"]')
    cost.scroll_into_view_if_needed()
    expect(cost).to_contain_text("0.522 % of all time shown")
    expect(cost).to_contain_text("sampled")
