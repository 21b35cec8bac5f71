"""A real Chromium whose every complaint fails the test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, expect, sync_playwright

from tests.browser import chromium
from tests.browser.alerts import add, alerts
from tests.serving import Served, Trainer, hello, layout, steps
from tests.small_link import until

DEADLINE_MS = 30_000
# Five seconds otherwise, which a busy machine takes to draw a page.
expect.set_options(timeout=DEADLINE_MS)

# Our policy lets no script be made from text, Playwright's wait_for_function included: tests wait for attributes.
# What a browser notes of a server that is gone; only tests that stop one expect it.
REFUSED = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")


@dataclass
class Complaints:
    """What the pages wrote to the console or threw, but for messages that hold one of the ``expected`` texts."""

    found: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()

    def expect(self, *texts: str) -> None:
        self.expected += texts

    def console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(words in message.text for words in self.expected):
            self.found.append(f"{message.type}: {message.text}")

    def watch(self, page: Page) -> None:
        page.on("console", self.console)
        page.on("pageerror", self.thrown)
        page.on("dialog", self.dialog)

    def thrown(self, error: Exception) -> None:
        self.found.append(f"thrown: {error}")

    def dialog(self, opened: Dialog) -> None:
        self.found.append(f"dialog: {opened.message}")
        opened.dismiss()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole trainings take longest and come first: at the end one worker would be left with them."""
    items.sort(key=lambda item: item.path.name != "test_training.py")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = chromium.find()
    if path is None:
        pytest.fail(chromium.REMEDY)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=list(chromium.FLAGS))
        yield running
        running.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="dark")
    made.set_default_timeout(DEADLINE_MS)
    yield made
    made.close()


@pytest.fixture
def complaints() -> Complaints:
    return Complaints()


@pytest.fixture
def page(context: BrowserContext, complaints: Complaints) -> Iterator[Page]:
    """A page that fails its test for any console error, exception or dialog."""
    made = context.new_page()
    complaints.watch(made)
    yield made
    assert complaints.found == []


@pytest.fixture
def trainer(served: Served) -> Iterator[Trainer]:
    """One whose run makes the rule of ``browser.alerts`` fire at its 21st update, and nothing else."""
    add(served)
    with served.trainer(hello(world_size=1)) as connected:
        connected.deliver(layout(0), steps(1, 0, 30, scale=[2.0] * 20 + [0.5] * 10))
        until(lambda: bool(alerts(served)))
        yield connected
