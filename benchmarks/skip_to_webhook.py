"""From the end of a skipped update in the trainer to the webhook received, on loopback.

A server as an operator runs it, and trainings of two layers in this process, one after the other, each with one skip in
it: a run has its first alert told at once, and each is a run of its own. The clock of both ends is this machine's.

    python -m benchmarks.skip_to_webhook [--runs 20]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import scalescope
import torch
from scalescope_server.rules.spec import Rule
from scalescope_server.store.channels import ChannelRow
from scalescope_server.store.engine import open_store
from scalescope_server.watching.book import spec_of

from benchmarks.serving import served
from tests.receiving import SECRET, Receiver, receiving

RULE = Rule("a skip", "when skipped >= 1", severity="critical", channels=("hook",))
UPDATES = 8
SKIPPED = 5


@contextmanager
def prepared(folder: Path, receiver: Receiver) -> Iterator[str]:
    """The address of a server that tells ``receiver`` of each skip."""
    database, settings = str(folder / "b.db"), folder / "settings.toml"
    settings.write_text('allow_targets = ["127.0.0.0/8"]\n')
    settings.chmod(0o600)
    with closing(open_store(database)) as store:
        config = {"url": receiver.url, "secret": SECRET}
        store.writer.add_channel(ChannelRow(name="hook", kind="webhook", config=config, enabled=True, created_at=0.0))
        store.writer.add_rule(spec_of(RULE), time.time()).result()
    os.environ["SCALESCOPE_SETTINGS"] = str(settings)
    with served(database) as server:
        yield server.url


def train(url: str, run: str) -> float:
    """When the skipped update of a short training ended."""
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scope = scalescope.watch(model, optimizer, scaler, url=url, run=run)
    ended = 0.0
    for step in range(UPDATES):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 32)).square().mean() * (float("inf") if step == SKIPPED else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step == SKIPPED:
            ended = time.time()
        # An ordinary update of a small model; the link sends in between.
        time.sleep(0.05)
    scope.close()
    return ended


def latencies(runs: int) -> list[float]:
    with tempfile.TemporaryDirectory() as folder, receiving() as receiver, prepared(Path(folder), receiver) as url:
        ended = {f"run-{number}": train(url, f"run-{number}") for number in range(runs)}
        fired: dict[str, float] = {}
        for count in range(1, 4 * runs):
            received = receiver.wait(count)[count - 1]
            if any(alert["happened"] == "fired" for alert in received.message["alerts"]):
                fired.setdefault(received.message["run"]["id"], received.at)
            if len(fired) == runs:
                break
    return [fired[run] - at for run, at in ended.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    torch.set_num_threads(1)
    found = latencies(parser.parse_args().runs)
    worst = statistics.quantiles(found, n=20)[18]
    print(
        f"{len(found)} skips: median {1e3 * statistics.median(found):.0f} ms, p95 {1e3 * worst:.0f} ms, "
        f"longest {1e3 * max(found):.0f} ms"
    )


if __name__ == "__main__":
    main()
