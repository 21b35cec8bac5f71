"""A process that is killed while it writes: every acknowledged record is there, none half, none twice."""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import numpy as np
from scalescope_server.store.engine import open_store
from scalescope_server.store.records import Batch

from tests.batches import Dictation, batch, hello, histograms

UPDATES = 8


def nth_batch(number: int) -> Batch:
    """A sample, an event and eight updates; the first also has the layout."""
    say = Dictation(4 * number)
    first = number * UPDATES
    layout = say.layout(("w", "fp16"))
    sample = say.sample(first, histograms([0, -20]))
    event = say.event(first, "skip", '{"parameter": "w"}')
    values = [float(step) for step in range(first, first + UPDATES)]
    return batch(hello(), layout, sample, event, say.steps(first, UPDATES, loss=values, skipped=[1.0] + [0.0] * 7))


def write_for_ever(database: str) -> None:
    store = open_store(database)
    for number in count():
        receipt = store.writer.append(nth_batch(number)).result()
        print(receipt.durable, flush=True)


def killed_after(database: str, acknowledged: int) -> int:
    """Let a child write until so many acknowledgements came, kill it, and tell how many came in all."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"from tests.test_store_crash import write_for_ever; write_for_ever({database!r})"],
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    with child, child.stdout:
        came = [child.stdout.readline() for _ in range(acknowledged)]
        child.send_signal(signal.SIGKILL)
        came.extend(child.stdout)
        child.wait(20)
    return len([line for line in came if line.endswith("\n")])


def test_a_killed_writer_loses_and_halves_nothing(database: str) -> None:
    acknowledged = killed_after(database, 7)
    store = open_store(database)
    stored = store.reader.run("run").ledger[0].received
    assert stored >= 4 * acknowledged
    assert stored % 4 == 0
    for number in range(stored // 4 + 2):
        store.writer.append(nth_batch(number)).result()
    batches = stored // 4 + 2
    length = batches * UPDATES
    found = store.reader.series("run", ["attempted", "loss"])[1]
    assert found["attempted"].step.tolist() == list(range(length))
    assert found["loss"].last.tolist() == [float(step) for step in range(length)]
    size, rolled = store.reader.series("run", ["loss", "skipped"], points=1)
    assert (rolled["loss"].n.tolist(), rolled["loss"].sum.tolist()) == ([length], [length * (length - 1) / 2])
    assert (size >= length, rolled["skipped"].sum.tolist()) == (True, [float(batches)])
    assert len(store.reader.events("run")[0]) == batches
    assert np.sum([row.samples for row in store.reader.samples("run", points=1)[1]]) == batches
    assert (store.reader.latest("run").attempted, store.reader.latest("run").skipped) == (length, batches)
    store.close()
