"""The recorder: causal order, rows that wait for late values, bounds with counted drops, never a wait."""

from __future__ import annotations

import numpy as np
import torch
from scalescope.numerics.exponents import Histograms
from scalescope.numerics.measure import Measurement, measure
from scalescope.readback import Copied
from scalescope.recorder import Recorder
from scalescope.updates import ROW_BYTES, Measured, OptimizerVerdict, ScaleSet, Update
from scalescope.wire import Event, Layout, Parameter, Record, Sample, decode_from_trainer, encode

from tests.small_training import columns, events, steps

LAYOUT = Layout(
    sequence=0,
    parameters=[Parameter(name, "", [2], "float32", 2, None) for name in ("a", "b")],
    order="observed",
    backward=[1, 0],
)


class Slow(Copied):
    """A number on its way from a device, which arrives when the test says so."""

    def __init__(self, number: float) -> None:
        super().__init__(torch.tensor(number), None, copied=True)
        self.arrived = False

    def ready(self) -> bool:
        return self.arrived


class SlowMeasurement(Measurement):
    def __init__(self) -> None:
        super().__init__(lambda: Histograms.empty(1))
        self.arrived = False

    def ready(self) -> bool:
        return self.arrived


def update(step: int, *, sampled: bool = False, skipped: bool = False, scale: float = 8.0) -> Update:
    gradients = [torch.tensor([1.0, np.inf if skipped else 2.0]), torch.tensor([1.0, np.nan if skipped else 2.0])]
    return Update(
        step,
        at=float(step),
        periodic=sampled,
        scale=scale,
        next_scale=scale / 2 if skipped else scale,
        verdicts=(OptimizerVerdict("SGD", (float(skipped),)),),
        measured=(Measured((0, 1), measure(gradients)),) if sampled or skipped else (),
        values={"loss": step / 2},
    )


def kinds(records: list[Record]) -> list[str]:
    return [record.kind if isinstance(record, Event) else type(record).__name__.lower() for record in records]


def test_consecutive_finished_updates_become_one_batch() -> None:
    recorder = Recorder()
    for step in range(5):
        recorder.put(update(step))
    recorder.finish(3)
    records = recorder.drain()
    assert kinds(records) == ["steps"]
    assert steps(records) == [0, 1, 2, 3]
    recorder.finish(4)
    assert steps(recorder.drain()) == [4]
    assert recorder.drain() == []


def test_the_events_and_the_sample_of_a_step_come_before_its_row() -> None:
    recorder = Recorder()
    recorder.put_known(LAYOUT)
    recorder.put(update(0, sampled=True))
    recorder.put(update(1, skipped=True))
    # Once another one has closed, nothing is added any more to the first.
    assert kinds(recorder.drain()) == ["layout", "sample", "skip", "backoff", "sample", "steps"]
    recorder.finish(1)
    assert kinds(recorder.drain()) == ["steps"]


def test_every_record_is_one_the_server_reads() -> None:
    recorder = Recorder()
    recorder.put_known(LAYOUT)
    recorder.put(update(0, skipped=True))
    recorder.finish(0)
    for record in recorder.drain():
        assert decode_from_trainer(encode(record)) == record


def test_a_number_on_its_way_from_a_device_holds_back_what_follows() -> None:
    recorder = Recorder()
    first = update(0)
    first.next_scale = slow = Slow(4.0)
    recorder.put(first)
    recorder.put(update(1, sampled=True, scale=4.0))
    recorder.finish(1)
    assert recorder.drain() == []
    slow.arrived = True
    assert kinds(recorder.drain()) == ["backoff", "sample", "steps"]


def test_a_measurement_on_its_way_holds_back_its_update() -> None:
    recorder = Recorder()
    measurement = SlowMeasurement()
    item = update(0)
    item.measured = (Measured((0,), measurement),)
    recorder.put(item)
    assert recorder.drain() == []
    measurement.arrived = True
    assert kinds(recorder.drain()) == ["sample"]


def test_a_logged_tensor_on_its_way_holds_back_the_row_alone() -> None:
    recorder = Recorder()
    item = update(0, sampled=True)
    item.values["loss"] = slow = Slow(0.25)
    recorder.put(item)
    recorder.finish(0)
    assert kinds(recorder.drain()) == ["sample"]
    slow.arrived = True
    assert columns(recorder.drain())["loss"] == {0: 0.25}


def test_a_scale_that_changed_between_updates_is_an_event_once() -> None:
    recorder = Recorder()
    recorder.put(update(0))
    recorder.put_scale_set(ScaleSet(0, 0.5, 8.0, 32.0))
    recorder.put(update(1, scale=32.0))
    recorder.put(update(2, scale=2.0))
    recorder.put_scale_set(ScaleSet(2, 2.5, 2.0, 2.0))
    recorder.put(update(3, scale=2.0))
    found = events(recorder.drain(), "scale_set")
    assert found == {0: {"scale": 8, "next_scale": 32}, 2: {"scale": 32, "next_scale": 2}}


def test_progress_is_the_last_closed_update() -> None:
    recorder = Recorder()
    assert recorder.progress() == (None, None)
    recorder.put(update(7))
    assert recorder.progress() == (7, 7.0)


def test_too_many_samples_drop_the_oldest_periodic_ones_and_keep_the_skips() -> None:
    recorder = Recorder(max_sample_bytes=4 * ROW_BYTES)
    recorder.put_known(LAYOUT)
    recorder.put(update(0, skipped=True))
    for step in range(1, 5):
        recorder.put(update(step, sampled=True))
    recorder.finish(4)
    records = recorder.drain()
    assert [(record.step, record.reason) for record in records if isinstance(record, Sample)] == [
        (0, "skip"),
        (4, "periodic"),
    ]
    assert recorder.dropped == 3
    assert steps(records) == [0, 1, 2, 3, 4]


def test_a_skip_whose_sample_was_dropped_is_still_told() -> None:
    recorder = Recorder(max_sample_bytes=2 * ROW_BYTES)
    recorder.put_known(LAYOUT)
    for step in range(2):
        recorder.put(update(step, skipped=True))
    told = events(recorder.drain(), "skip")
    assert told[0]["parameter"] is None
    assert "dropped" in str(told[0]["reason"])
    assert told[1]["parameter"] == "b"


def test_too_many_updates_drop_the_oldest_rows_and_leave_a_gap() -> None:
    recorder = Recorder(max_updates=3)
    recorder.put_known(LAYOUT)
    for step in range(5):
        recorder.put(update(step, sampled=step == 0))
    recorder.finish(4)
    records = recorder.drain()
    assert kinds(records) == ["layout", "steps"]
    assert steps(records) == [3, 4]
    assert recorder.dropped == 4
    for step in range(5, 7):
        recorder.put(update(step))
    recorder.finish(6)
    assert steps(recorder.drain()) == [5, 6]


def test_updates_that_nobody_drains_take_bounded_memory() -> None:
    recorder = Recorder(max_updates=64)
    for step in range(1000):
        recorder.put(update(step, sampled=step % 10 == 0))
        recorder.put_scale_set(ScaleSet(step, 0.5, 8.0, 8.0))
    assert len(recorder._waiting) <= 64
    assert len(recorder._periodic) <= 64
    recorder.finish_all()
    recorder.drain()
    assert (len(recorder._waiting), len(recorder._periodic), recorder._sample_bytes) == (0, 0, 0)


def test_a_skip_and_a_growth_outlive_the_rows_around_them() -> None:
    recorder = Recorder(max_updates=16)
    recorder.put_known(LAYOUT)
    grown = update(1)
    grown.next_scale = 16.0
    recorder.put(grown)
    recorder.put(update(2, skipped=True, scale=16.0))
    for step in range(3, 100):
        recorder.put(update(step))
    recorder.finish_all()
    records = recorder.drain()
    assert kinds(records)[:4] == ["layout", "growth", "skip", "backoff"]
    assert (steps(records)[:2], steps(records)[-1]) == ([1, 2], 99)


def test_news_is_told_when_something_became_drainable() -> None:
    recorder = Recorder()
    told: list[list[str]] = []
    recorder.on_news = lambda: told.append(kinds(recorder.drain()))
    recorder.put_known(LAYOUT)
    recorder.put(update(0))
    recorder.finish(0)
    recorder.finish(0)
    recorder.put(update(1, sampled=True))
    recorder.finish(1)
    assert told == [["layout"], ["steps"], ["sample"], ["steps"]]
