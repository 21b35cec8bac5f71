"""The core series that are echoed, read out of records, and which points are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scalescope.mirrors.mirror import Point
from scalescope.mirrors.pace import chosen
from scalescope.mirrors.series import SeriesReader
from scalescope.packing import unpack
from scalescope.wire import Record

from tests.small_training import Course, samples, watching


def recorded(updates: int, *, overflows: tuple[int, ...] = ()) -> list[Record]:
    course = Course(scaler=torch.amp.GradScaler("cpu", init_scale=1024.0), overflows=overflows)
    with watching(course.model, course.optimizer, course.scaler, every=2) as watched:
        course.run(updates)
        return watched.end()


def test_every_update_has_its_scale_and_whether_it_was_skipped() -> None:
    points = SeriesReader().read(recorded(5, overflows=(2,)), most=100)
    assert [point.step for point in points] == [0, 1, 2, 3, 4]
    assert [point.values["scale"] for point in points] == [1024, 1024, 1024, 512, 512]
    assert [point.values["skipped"] for point in points] == [0, 0, 1, 0, 0]
    assert [point.values["skipped_total"] for point in points] == [0, 0, 1, 1, 1]
    assert [point.values["growth_tracker"] for point in points] == [0, 1, 2, 0, 1]


def test_what_was_measured_is_over_all_gradients() -> None:
    records = recorded(1)
    (point,) = SeriesReader().read(records, most=100)
    table = unpack(samples(records)[0].table)
    numel, nonzero = table.numel.sum(), table.nonzero.sum()
    # fp16, at its scale: below 2**-14 a subnormal, up to 2**-25 flushed; bins begin at 2**-126.
    assert point.values["grad_norm"] == pytest.approx(math.sqrt(table.sum_squares.sum()) / 1024)
    assert point.values["zero_share"] == pytest.approx(table.zero.sum() / numel)
    assert point.values["flush_share"] == pytest.approx(table.counts[:, : 126 - 25].sum() / nonzero)
    weights = np.arange(0, table.rows, 2)
    assert point.values["subnormal_share"] == pytest.approx(
        table.counts[weights, : 126 - 14].sum() / table.numel[weights].sum(), abs=0.05
    )


def test_the_norm_of_a_skipped_update_is_infinite() -> None:
    points = SeriesReader().read(recorded(3, overflows=(2,)), most=100)
    assert points[2].values["grad_norm"] == math.inf


def test_skips_are_added_up_over_all_that_is_read() -> None:
    reader = SeriesReader()
    reader.read(recorded(3, overflows=(0, 1)), most=100)
    assert [point.values["skipped_total"] for point in reader.read(recorded(2, overflows=(0,)), most=100)] == [3, 3]


def test_of_more_than_may_be_echoed_only_those_are_unpacked() -> None:
    few = SeriesReader().read(recorded(8, overflows=(5,)), most=2)
    assert [point.step for point in few] == [5, 6]
    assert all("grad_norm" in point.values for point in few)
    assert few[0].values["skipped_total"] == 1


def points(count: int, **given: dict[int, float]) -> list[Point]:
    rows: list[dict[str, float]] = [{"scale": 1.0, "skipped": 0.0} for _ in range(count)]
    for name, values in given.items():
        for step, value in values.items():
            rows[step][name] = value
    return [Point(step, 0.0, row) for step, row in enumerate(rows)]


def test_as_many_as_may_be_are_all_echoed() -> None:
    few = points(10)
    assert chosen(few, (), 10) == few
    assert chosen([], (), 10) == []


def test_of_too_many_some_are_spread_over_all_and_the_last_is_one() -> None:
    assert [point.step for point in chosen(points(1000), (), 4)] == [249, 499, 749, 999]


def test_what_happened_goes_before_what_was_measured_and_that_before_the_rest() -> None:
    many, measured = points(100, skipped={3: 1.0, 50: 1.0}), (7, 20, 50, 90)
    assert [point.step for point in chosen(many, measured, 6)] == [3, 7, 20, 50, 90, 99]
    assert [point.step for point in chosen(many, measured, 3)] == [3, 50, 90]
    assert [point.step for point in chosen(many, measured, 1)] == [50]


def test_a_new_scale_is_something_that_happened() -> None:
    doubled = points(50, scale=dict.fromkeys(range(20, 50), 2.0))
    assert 20 in [point.step for point in chosen(doubled, (), 2)]
