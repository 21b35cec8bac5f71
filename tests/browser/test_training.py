"""A page beside a real training and a server process that may die."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import REFUSED, Complaints
from tests.serving import Address, hello, layout, ok, steps
from tests.small_link import until
from tests.small_server import free_port

pytestmark = pytest.mark.browser

STEPS = 60
DEADLINE_S = 120.0
SCALESCOPE = (sys.executable, "-c", "import sys; from scalescope.cli import main; sys.exit(main())")


class ServerProcess:
    """``scalescope serve`` on a port and a file that it keeps over restarts."""

    def __init__(self, database: Path) -> None:
        self.address = Address(free_port())
        self._database = database
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [*SCALESCOPE, "serve", "--port", str(self.address.port), "--database", str(self._database)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        # A server says its address once it listens.
        alarm = threading.Timer(DEADLINE_S, self._process.kill)
        alarm.start()
        assert self._process.stdout is not None
        assert "http://" in self._process.stdout.readline()
        alarm.cancel()

    def end(self, sent: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(sent)
        self._process.communicate(timeout=DEADLINE_S)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path / "scalescope.db")
    running.start()
    yield running
    running.end(signal.SIGINT)


@contextlib.contextmanager
def training(url: str) -> Iterator[subprocess.Popen[str]]:
    """The demo's training, watched by the server at ``url``."""
    command = [*SCALESCOPE, "demo", "--url", url, "--steps", str(STEPS), "--exit"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
        output, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, output
    finally:
        process.kill()
        process.communicate()


def hold_with_page(process: subprocess.Popen[str], server: ServerProcess, page: Page) -> None:
    """Hold the training still in its middle until the page shows it, however slow that is."""
    until(lambda: any(run["attempted"] for run in ok(server.address, "/api/runs")["items"]), DEADLINE_S)
    process.send_signal(signal.SIGSTOP)
    page.locator("a[data-run]").first.click(timeout=DEADLINE_S * 1000)
    page.locator("html[data-drawn-step]").wait_for()
    process.send_signal(signal.SIGCONT)


def test_the_chart_gets_points_while_a_training_runs(server: ServerProcess, page: Page) -> None:
    page.goto(server.address.url)
    with training(server.address.url) as process:
        hold_with_page(process, server, page)
        seen = [int(page.locator("html").get_attribute("data-drawn-step") or -1)]
        while seen[-1] < STEPS - 1:
            page.locator(f'html:not([data-drawn-step="{seen[-1]}"])').wait_for()
            seen.append(int(page.locator("html").get_attribute("data-drawn-step") or -1))
    assert seen == sorted(set(seen))
    assert len(seen) > 1, "the points came all at once"
    expect(page.locator("#live")).to_contain_text("finished")
    expect(page.locator("#findings")).to_contain_text("CALIBRATION")
    loss = page.locator('[data-chart="loss"] .plot')
    until(lambda: loss.evaluate("plot => plot.data.at(-1).x") == list(range(STEPS)))


def test_a_server_killed_beside_a_page_and_a_trainer_loses_nothing_and_both_go_on(
    server: ServerProcess, page: Page, complaints: Complaints
) -> None:
    complaints.expect(*REFUSED, "WebSocket connection")
    page.goto(server.address.url)
    with training(server.address.url) as process:
        hold_with_page(process, server, page)
        run = page.url.rsplit("/", 1)[-1]
        server.end(signal.SIGKILL)
        page.locator("html[data-live=lost]").wait_for()
        server.start()
        page.locator("html[data-live=live]").wait_for()
    page.locator(f'html[data-drawn-step="{STEPS - 1}"]').wait_for()
    stored = server.address.get(f"/api/runs/{run}/series?name=scale").json()
    assert (stored["bucket"], stored["series"]["scale"]["step"]) == (1, list(range(STEPS)))
    (ledger,) = server.address.get(f"/api/runs/{run}").json()["ledger"]
    assert (ledger["lost"], ledger["dropped"]) == (0, 0)


def test_a_page_tells_that_the_server_is_gone_and_recovers_by_itself(
    server: ServerProcess, page: Page, complaints: Complaints
) -> None:
    complaints.expect(*REFUSED, "WebSocket connection")
    with server.address.trainer(hello()) as trainer:
        trainer.deliver(layout(0), steps(1, 0, 5))
    page.goto(f"{server.address.url}/runs/run-1")
    page.locator('html[data-drawn-step="4"]').wait_for()
    server.end(signal.SIGKILL)
    page.locator("html[data-live=lost]").wait_for()
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer since")
    server.start()
    with server.address.trainer(hello()) as trainer:
        trainer.deliver(steps(2, 5, 5))
        page.locator('html[data-drawn-step="9"]').wait_for()
    page.locator("html:not([data-live=lost])").wait_for()
    expect(page.get_by_role("alert")).to_be_hidden()
