"""What colours of the heat map mean, and what a chart does with values that would press the rest flat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scalescope_server.figures.chart import log10_axis
from scalescope_server.figures.layer_colours import coloured
from scalescope_server.figures.marks import MAX_MARKS, marks
from scalescope_server.figures.palette import PALETTES, Palette
from scalescope_server.figures.plans import Level, Line, Plan
from scalescope_server.figures.series import series_chart
from scalescope_server.figures.skip_rate import skip_rate_chart

from tests.figure_inputs import LOOK, event, series


def values(*row: float) -> Any:
    return np.array([row], np.float64)


@pytest.mark.parametrize("palette", PALETTES.values(), ids=PALETTES)
def test_little_headroom_has_the_colour_that_much_of_anything_else_has(palette: Palette) -> None:
    found: Any = coloured("octaves", values(-1.0, 0.5, 40.0, np.inf), LOOK.__class__(palette))
    assert found["colorscale"][0] == [0.0, palette.ramp[-1]]
    assert found["z"] == [[0.0, 0.5, 16.0, None]]
    assert found["customdata"] == [[-1.0, 0.5, 40.0, None]]


def test_update_ratios_are_coloured_by_decades_and_pale_where_they_are_usual() -> None:
    found: Any = coloured("ratio", values(0.0, 1e-3, 1e-2, 5.0), LOOK)
    assert found["z"] == [[-8.0, -3.0, -2.0, 0.0]]
    assert [place for place, _ in found["colorscale"]] == [0.0, 0.5, 0.75, 1.0]
    assert found["customdata"][0][0] == 0.0


def test_shares_are_drawn_as_percentages() -> None:
    found: Any = coloured("share", values(0.0, 0.5), LOOK)
    assert (found["z"], found["zmax"], found["meta"]) == ([[0.0, 50.0]], 50.0, {"per": 100})
    assert found["colorbar"]["ticktext"][-1] == "50 %"


def test_skips_of_the_first_updates_do_not_press_those_after_them_flat() -> None:
    skipped = [1.0] * 6 + [0.0] * 300
    skipped[200] = 1.0
    chart: Any = skip_rate_chart(series(skipped), 1, LOOK)
    assert chart.figure["layout"]["yaxis"]["range"][1] < 10
    assert chart.figure["data"][-1]["text"] == ["↑ 100 % of the first updates"]
    assert chart.summary.endswith("at worst 100 % of a window.")


def test_a_run_that_skips_to_the_end_is_drawn_whole() -> None:
    chart: Any = skip_rate_chart(series([1.0] * 300), 1, LOOK)
    assert len(chart.figure["data"]) == 1
    assert chart.figure["layout"]["yaxis"]["range"][1] == 105


def test_a_level_is_always_inside_the_chart_and_named() -> None:
    plan = Plan("a", "A", (Line("a", "a"),), "log10", levels=(Level(1e-4, "low", "quiet"),))
    chart: Any = series_chart(plan, {"a": series([1e-2, 1e-3])}, 1, LOOK)
    low, high = chart.figure["layout"]["yaxis"]["range"]
    assert low < -4 < -2 < high
    assert [trace["name"] for trace in chart.figure["data"]] == ["low", "low label", "a"]
    assert chart.figure["data"][-1]["y"] == [-2.0, -3.0]


def test_a_log10_axis_labels_powers_of_ten_and_round_numbers_when_it_is_narrow() -> None:
    assert log10_axis(LOOK, -6.2, 0.1)["ticktext"] == ["10<sup>-6</sup>", "10<sup>-4</sup>", "10<sup>-2</sup>", "1"]
    assert log10_axis(LOOK, -1.0, 0.0)["ticktext"] == ["0.2", "0.4", "0.6", "0.8", "1"]


def test_a_skip_tells_where_it_began_and_a_value_that_was_not_skipped_has_its_own_mark() -> None:
    scale = {"scale": series([8.0] * 6), "skipped": series([0, 1, 0, 0, 0, 0])}
    events = [
        event(1, "skip", scale=8.0, next_scale=4.0, parameter="head"),
        event(1, "nonfinite", where="forward", name="<b>", count=2),
        event(3, "nonfinite", where="input", name="", count=1),
    ]
    skip, alone = marks(events, scale, 1)
    assert skip.text.endswith("<br>it began in the forward of &lt;b&gt; (2 values)")
    assert (alone.kind, alone.step, alone.y) == ("nonfinite", 3, 3.0)


def test_where_marks_are_folded_a_value_that_was_not_skipped_keeps_its_own() -> None:
    events = [event(step, "skip", scale=8.0, next_scale=8.0) for step in range(MAX_MARKS + 1)]
    events.append(event(20, "nonfinite", where="forward", name="a", count=1))
    events.append(event(1, "nonfinite", where="forward", name="a", count=1))
    found = marks(events, {"scale": series([8.0] * 3, bucket=8), "skipped": series([3.0, 0.0, 0.0], bucket=8)}, 8)
    assert [(mark.step, mark.kind) for mark in found] == [(0, "skip"), (20, "nonfinite")]
