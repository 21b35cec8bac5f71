"""A process that is killed while it writes: every acknowledged record is there, none half, none twice."""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from scalescope_server.store.delivery import Batch
from scalescope_server.store.engine import open_store

from tests.batches import Dictation, batch, hello, histograms

pytestmark = pytest.mark.both_engines

UPDATES = 8
RECORDS = 6


def nth_batch(number: int) -> Batch:
    """A layout, a sample, a tally, a probe, an event and eight updates with their windows."""
    say = Dictation(RECORDS * number)
    first = number * UPDATES
    layout = say.layout(("w", "fp16"))
    sample = say.sample(first, histograms([0, -20]))
    tally = say.tally(first, update_squares=[1.0], weight_squares=[4.0])
    probe = say.probe(first, lost=[1.0], reference_nonzero=[2.0])
    event = say.event(first, "skip", '{"parameter": "w"}')
    values = [float(step) for step in range(first, first + UPDATES)]
    updates = say.steps(first, UPDATES, (UPDATES, {"zero_grad": True}), loss=values, skipped=[1.0] + [0.0] * 7)
    return batch(hello(), layout, sample, tally, probe, event, updates)


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
    assert stored >= RECORDS * acknowledged
    assert stored % RECORDS == 0
    batches = stored // RECORDS + 2
    for number in range(batches):
        store.writer.append(nth_batch(number)).result()
    length = batches * UPDATES
    found = store.reader.series("run", ["attempted", "loss"])[1]
    assert found["attempted"].step.tolist() == list(range(length))
    assert found["loss"].last.tolist() == [float(step) for step in range(length)]
    size, rolled = store.reader.series("run", ["loss", "skipped"], points=1)
    assert (rolled["loss"].n.tolist(), rolled["loss"].sum.tolist()) == ([length], [length * (length - 1) / 2])
    assert (size >= length, rolled["skipped"].sum.tolist()) == (True, [float(batches)])
    assert len(store.reader.events("run")[0]) == batches
    assert np.sum([row.samples for row in store.reader.samples("run", points=1)[1]]) == batches
    (row,) = store.reader.facts("run")[0]
    assert (row.first_step, row.last_step) == (0, length - 1)
    _, of_updates = store.reader.tallies("run", "parameter", ["weight_squares"], [0], points=1)
    assert [bucket.columns["weight_squares"].tolist() for bucket in of_updates] == [[4.0 * batches]]
    _, of_probes = store.reader.tallies("run", "probe", ["lost"], [0], points=1)
    assert [bucket.columns["lost"].tolist() for bucket in of_probes] == [[float(batches)]]
    assert len(store.reader.probes("run", limit=50)[1]) == batches
    assert (store.reader.latest("run").attempted, store.reader.latest("run").skipped) == (length, batches)
    store.close()


def test_whatever_the_point_at_which_a_writer_dies_no_level_is_half_written(database: str) -> None:
    command = [sys.executable, "-m", "tests.dying_writer", database, "7", "8"]
    died = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=120)
    assert died.returncode == 0, died.stderr
    assert int(died.stdout) > 64
