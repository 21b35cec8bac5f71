"""Columns of heat maps, and lines over samples: what reaches until the next sample, and what stays a hole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace
from scalescope_server.figures.cadence import holes
from scalescope_server.figures.grid import Cadence, Grid, column_grain, gridded
from scalescope_server.figures.plans import Line, Plan
from scalescope_server.figures.series import series_chart
from scalescope_server.store.records import SampleBucket

from tests.figure_inputs import LOOK, sample, series

WIDTH = 10


def grid_of(
    steps: Sequence[int], *, odd: Sequence[int] = (), start: int | None = None, stop: int | None = None
) -> Grid[SampleBucket]:
    periodic = [sample(step, 1.0, [1.0]) for step in steps]
    skips = [sample(step, 1.0, [1.0], periodic=False) for step in odd]
    return gridded([*periodic, *skips], WIDTH, Cadence(WIDTH, 1, start, stop))


def look(grid: Grid[SampleBucket]) -> list[tuple[int, int, list[int]]]:
    """Where each column begins and ends, and the samples it is drawn by."""
    ends = grid.begins[1:]
    rows = zip(grid.begins, ends, grid.columns, strict=False)
    return [(begin, end, [bucket.step for bucket in column]) for begin, end, column in rows]


def test_a_sample_stands_for_the_updates_until_the_next_one_however_far_a_budget_spreads_them() -> None:
    assert look(grid_of([0, 10, 20, 40, 80, 160, 320, 480])) == [
        (0, 10, [0]),
        (10, 20, [10]),
        (20, 40, [20]),
        (40, 80, [40]),
        (80, 160, [80]),
        (160, 320, [160]),
        (320, 480, [320]),
        (480, 490, [480]),
    ]


def test_a_sample_that_is_missing_leaves_a_hole() -> None:
    assert look(grid_of([0, 160, 480, 640])) == [
        (0, 160, [0]),
        (160, 170, [160]),
        (170, 480, []),
        (480, 640, [480]),
        (640, 650, [640]),
    ]


def test_the_newest_sample_stands_for_no_update_that_has_not_come() -> None:
    assert look(grid_of([0, 160, 320], stop=400))[-1] == (320, 400, [320])
    # Longer than twice as long as before there is no interval.
    assert look(grid_of([0, 160, 320], stop=4000))[-2:] == [(320, 640, [320]), (640, 4000, [])]


def test_what_a_skip_was_sampled_for_stands_for_itself_alone() -> None:
    assert look(grid_of([0, 160, 320], odd=[205])) == [
        (0, 160, [0]),
        (160, 200, [160]),
        (200, 210, [205]),
        (210, 320, [160]),
        (320, 330, [320]),
    ]


def test_a_range_begins_with_the_sample_before_it() -> None:
    grid = grid_of([0, 160, 320], start=200, stop=400)
    assert look(grid) == [(200, 320, [160]), (320, 400, [320])]
    assert grid.span == (199.5, 399.5)


def test_a_column_says_which_sample_it_is_and_what_it_stands_for() -> None:
    grid = grid_of([0, 5, 10, 20, 40, 80, 400])
    assert grid.told() == [
        "updates 0 to 9, by 2 samples together",
        "updates 10 to 19, by the sample of update 10",
        "updates 20 to 39, by the sample of update 20",
        "updates 40 to 79, by the sample of update 40",
        "updates 80 to 89, by the sample of update 80",
        "updates 90 to 399: no sample",
        "updates 400 to 409, by the sample of update 400",
    ]
    assert column_grain(grid, "added") == "1 column = 10 updates, or up to the next sample, added"
    assert column_grain(grid_of([0, 10]), "added") == "1 column = 10 updates, added"


def test_columns_cover_the_range_without_overlap() -> None:
    for start in range(0, 650, 37):
        grid = grid_of([0, 160, 320, 600], odd=[3, 17, 333, 599], start=start, stop=650)
        assert list(grid.begins) == sorted(set(grid.begins))
        assert grid.begins[0] >= start


def line_of(steps: Sequence[int], plan: Plan) -> list[list[int]]:
    """The updates that each stretch of the plan's line joins."""
    values = series([1.0] * len(steps))
    found = replace(values, step=np.array(steps, np.int64))
    traces = series_chart(plan, {plan.lines[0].series: found}, 1, LOOK, every=WIDTH).figure["data"]
    assert isinstance(traces, list)
    return [trace["x"] for trace in traces if trace["name"] == plan.lines[0].label]


def test_a_line_over_samples_is_torn_where_some_are_missing_and_nowhere_else() -> None:
    lines = (Line("norm", "norm"),)
    steps = [0, 10, 20, 40, 80, 160, 320, 480, 640, 800, 1900, 2060, 2220]
    assert line_of(steps, Plan("norm", "Norm", lines, sampled=True)) == [steps[:10], steps[10:]]
    # The user logs whenever he likes.
    assert line_of(steps, Plan("norm", "Norm", lines)) == [steps]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([0, 10, 20, 30], "..."),
        ([0, 10, 20, 40, 80], "...."),
        ([0, 80, 120, 160], "..."),
        ([0, 10, 30, 40], ".o."),
        ([0, 160, 320, 1000, 1160], "..o."),
        ([0, 10], "."),
        ([0, 25], "o"),
        # The last gap may be the first of a longer interval.
        ([0, 10, 30], ".."),
        ([0, 10, 40], ".o"),
    ],
)
def test_a_gap_is_a_hole_where_those_around_it_are_much_shorter(steps: list[int], expected: str) -> None:
    assert "".join("o" if hole else "." for hole in holes(steps, 10)) == expected


def test_steps_in_a_row_after_a_skip_make_no_hole_of_the_next_regular_gap() -> None:
    steps = [0, 160, *range(165, 173), 320, *range(330, 338), 480]
    assert not holes(steps, 10, around=9).any()
    # An interval that was doubled just before a skip, which cuts the next one short.
    assert not holes([10, 20, 30, 50, 90, 170, 330, *range(430, 439)], 10, around=9).any()
    assert holes([*steps, 1500, 1660], 10, around=9).tolist() == [False] * (len(steps) - 1) + [True, False]


def test_buckets_that_regular_samples_fall_into_unevenly_leave_no_hole() -> None:
    buckets = [160 * i // 64 * 64 for i in range(20)]
    assert not holes(buckets, 10, grain=64).any()
