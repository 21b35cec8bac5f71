"""From the end of an update in the trainer to the point drawn in Chromium, on loopback.

A server, the demo's training and a browser, each a process of its own, share one clock. The page tells in
``data-drawn-step`` the last update it has drawn; an update counts as drawn when that reaches it.

    python -m benchmarks.hook_to_pixel [--steps 300]
"""

from __future__ import annotations

import argparse
import bisect
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from benchmarks.serving import serving
from tests.browser.chromium import FLAGS, find

OBSERVE = """
window.drawn = [];
new MutationObserver(() => {
  const step = Number(document.documentElement.dataset.drawnStep);
  const last = window.drawn.at(-1);
  if (!last || last[0] !== step) window.drawn.push([step, Date.now() / 1000]);
}).observe(document.documentElement, {attributeFilter: ["data-drawn-step"]});
"""


def train(url: str, steps: int) -> None:
    """The trainer's process: says where its run is, waits to be let go, then tells when each update ended."""
    from scalescope.demo.scenarios import SCENARIOS
    from scalescope.demo.training import Moment
    from scalescope.demo.training import train as run

    ends: list[float] = []

    def report(moment: Moment) -> None:
        if moment.attempted:
            ends.append(time.time())
        else:
            print(moment.scope.url, flush=True)
            sys.stdin.readline()

    run(SCENARIOS["thrash"], steps=steps, url=url, report=report)
    print(json.dumps(ends), flush=True)


def latencies(page: Page, trainer: subprocess.Popen[str], steps: int) -> list[float]:
    assert trainer.stdin is not None
    assert trainer.stdout is not None
    page.goto(trainer.stdout.readline().strip())
    page.evaluate(OBSERVE)
    trainer.stdin.write("go\n")
    trainer.stdin.flush()
    page.wait_for_function(f"() => window.drawn.at(-1)?.[0] >= {steps - 1}", timeout=steps * 1000)
    ends = json.loads(trainer.stdout.readline())
    drawn = page.evaluate("window.drawn")
    reached = [step for step, _ in drawn]
    return [drawn[bisect.bisect_left(reached, step)][1] - end for step, end in enumerate(ends)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--train", metavar="URL", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.train:
        train(chosen.train, chosen.steps)
        return
    command = [sys.executable, "-m", "benchmarks.hook_to_pixel", "--steps", str(chosen.steps), "--train"]
    with tempfile.TemporaryDirectory() as folder, serving(folder) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(find()), args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        pipe = subprocess.PIPE
        with subprocess.Popen([*command, url], stdin=pipe, stdout=pipe, text=True, cwd=Path.cwd()) as trainer:
            found = latencies(page, trainer, chosen.steps)
        browser.close()
    worst = statistics.quantiles(found, n=20)[18]
    print(
        f"{len(found)} updates: median {1e3 * statistics.median(found):.0f} ms, p95 {1e3 * worst:.0f} ms, "
        f"longest {1e3 * max(found):.0f} ms"
    )


if __name__ == "__main__":
    main()
