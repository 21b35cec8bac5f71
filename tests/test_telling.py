"""Telling updates: batches, gaps, and what cannot be told. Through the recorder, which it is a part of."""

from __future__ import annotations

import pytest
import torch
from scalescope.numerics.exponents import Histograms
from scalescope.numerics.measure import Measurement
from scalescope.readback import Copied
from scalescope.recorder import Recorder
from scalescope.updates import Measured
from scalescope.wire import Steps

from tests.small_training import events, steps
from tests.test_recorder import Slow, update


def test_an_update_that_cannot_be_told_costs_itself_alone(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    for step in range(5):
        recorder.put(update(step, sampled=step == 0))
    broken = update(5)
    broken.values["loss"] = "high"  # type: ignore[assignment]
    recorder.put(broken)
    unreadable = update(6, sampled=True)
    unreadable.measured = (Measured((0,), Measurement(lambda: Histograms.empty(1).take([7]))),)
    recorder.put(unreadable)
    for step in range(7, 9):
        recorder.put(update(step))
    recorder.finish_all()
    records = recorder.drain()
    assert steps(records) == [0, 1, 2, 3, 4, 6, 7, 8]
    assert recorder.dropped == 2
    assert len(caplog.records) == 1


class Gone(Copied):
    """A number on a device that has failed."""

    def __init__(self) -> None:
        super().__init__(torch.tensor(1.0), None, copied=True)

    def ready(self) -> bool:
        raise RuntimeError("device-side assert triggered")


def test_a_device_that_failed_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    for step in range(4):
        recorder.put(update(step))
    lost, late = update(4), update(5)
    lost.next_scale = Gone()
    late.values["loss"] = Gone()
    for item in (lost, late, update(6)):
        recorder.put(item)
    recorder.finish_all()
    assert steps(recorder.drain()) == [0, 1, 2, 3, 6]
    assert recorder.dropped == 2
    assert len(caplog.records) == 1


def test_rows_whose_numbers_never_come_take_bounded_memory() -> None:
    recorder = Recorder(max_updates=8)
    for step in range(100):
        item = update(step)
        item.values["loss"] = Slow(1.0)
        recorder.put(item)
        recorder.finish(step)
        assert recorder.drain() == []
    assert recorder.dropped == 84


def test_a_gap_in_the_steps_ends_a_batch() -> None:
    recorder = Recorder()
    for step in (0, 1, 3):
        recorder.put(update(step))
    recorder.finish(3)
    assert [(batch.first, batch.count) for batch in recorder.drain() if isinstance(batch, Steps)] == [(0, 2), (3, 1)]


@pytest.mark.parametrize("count", [1, 1024, 1025, 3000])
def test_batches_are_bounded_and_lose_nothing(count: int) -> None:
    recorder = Recorder()
    for step in range(count):
        recorder.put(update(step))
    recorder.finish(count)
    records = recorder.drain()
    assert steps(records) == list(range(count))
    assert len(records) == -(-count // 1024)


def test_a_gap_invents_no_change_of_the_scale() -> None:
    recorder = Recorder(max_updates=3)
    recorder.put(update(0))
    recorder.drain()
    for step in range(1, 7):
        recorder.put(update(step, scale=8.0 if step < 4 else 32.0))
    recorder.finish_all()
    records = recorder.drain()
    assert steps(records) == [0, 4, 5, 6]
    assert events(records, "scale_set") == {}
