"""Figures: valid for Plotly, true to what was recorded, and deaf to markup in names."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import msgspec
import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scalescope.numerics.exponents import flushed, headroom, overflowed
from scalescope.numerics.formats import BF16, FP16
from scalescope.numerics.measures import evaluate
from scalescope_server.figures.chart import Chart, Look, log2_axis, numbers, plain
from scalescope_server.figures.grid import gridded
from scalescope_server.figures.layer import layer_chart, readings
from scalescope_server.figures.layers import layers_chart
from scalescope_server.figures.marks import MAX_MARKS, marks
from scalescope_server.figures.measures import MEASURES
from scalescope_server.figures.palette import DARK, LIGHT, PALETTES, Palette
from scalescope_server.figures.plans import PLANS, Line, Plan, plans_for
from scalescope_server.figures.scale import scale_chart
from scalescope_server.figures.series import series_chart
from scalescope_server.figures.skip_rate import skip_rate_chart
from scalescope_server.figures.walls import as_parts, compute_format, flush_wall, walls
from scalescope_server.layer_rows import LayerMeasure

from tests.figure_inputs import LOOK, event, parameter, sample, series, shown, table

FRONTEND = Path(__file__).parents[1] / "frontend"
GOLDEN = Path(__file__).parent / "js" / "whatif.json"
HOSTILE = '<img src=x onerror="alert(1)"><a href="javascript:alert(1)">x</a>'


def check(chart: Chart) -> go.Figure:
    """The figure as Plotly's own schema takes it, after a round trip through JSON."""
    return go.Figure(json.loads(msgspec.json.encode(chart.figure)))


def trace(chart: Chart, name: str) -> dict[str, object]:
    data = chart.figure["data"]
    assert isinstance(data, list)
    return next(found for found in data if found["name"] == name)


@pytest.mark.parametrize("palette", PALETTES.values(), ids=PALETTES)
@pytest.mark.parametrize("compact", [False, True])
def test_every_figure_is_valid_for_plotly(palette: Palette, compact: bool) -> None:
    look = Look(palette, compact)
    scale = {"scale": series([4.0, 8.0]), "skipped": series([0, 1])}
    events = [event(1, "skip", scale=8.0, next_scale=4.0, parameter="a"), event(0, "growth", scale=4.0, next_scale=8.0)]
    check(scale_chart(scale, 1, events, [walls(sample(0, 4.0, [1.0]))], look))
    check(scale_chart({key: series([1.0, 2.0], bucket=8) for key in scale}, 8, events, [], look))
    check(skip_rate_chart(series([0, 1, 0]), 1, look))
    for plan in PLANS:
        check(series_chart(plan, {line.series: series([0.1, np.nan, np.inf]) for line in plan.lines}, 1, look))
        check(series_chart(plan, {line.series: series([]) for line in plan.lines}, 8, look))
    for measure in MEASURES:
        check(layers_chart(measure, shown([[0.5, np.nan], [0.0, 3.0]], "a.weight", "b.weight"), look)[0])
    check(layer_chart(parameter("a"), gridded([sample(3, 2.0**16, [1.0, 0.0, 3e-9])], 10), look))


def test_no_figure_uses_what_the_content_policy_forbids() -> None:
    scale = scale_chart({"scale": series([4.0, 8.0])}, 1, [], [], LOOK)
    text = msgspec.json.encode(scale.figure).decode()
    assert "scattergl" not in text
    assert '"shapes"' not in text


def test_a_doubling_and_a_skip_are_marks_and_the_skip_names_its_culprit() -> None:
    events = [
        event(5, "growth", scale=4.0, next_scale=8.0),
        event(6, "skip", scale=8.0, next_scale=4.0, parameter="head.weight"),
        event(6, "backoff", scale=8.0, next_scale=4.0),
    ]
    found = marks(events, {"scale": series([4.0] * 8)}, 1)
    assert [(mark.step, mark.kind, mark.y) for mark in found] == [(5, "growth", 3.0), (6, "skip", 3.0)]
    assert "first non-finite: head.weight" in found[1].text


def test_too_many_marks_are_folded_and_every_skip_still_counts() -> None:
    events = [event(step, "skip", scale=8.0, next_scale=8.0) for step in range(MAX_MARKS + 1)]
    skipped = series([3.0, 0.0, 5.0], bucket=8)
    found = marks(events, {"scale": series([8.0] * 3, bucket=8), "skipped": skipped}, 8)
    skips = [mark for mark in found if mark.kind == "skip"]
    assert [mark.step for mark in skips] == [0, 16]
    assert skips[1].text == "5 skipped in updates 16 to 23"


def test_the_overflow_wall_is_where_the_largest_gradient_would_overflow() -> None:
    at = walls(sample(0, 1024.0, [65520.0 / 2**10]))
    chart = scale_chart({"scale": series([1024.0])}, 1, [], [at], LOOK)
    assert trace(chart, "overflow wall")["y"] == [20.0]


def test_the_overflow_wall_is_at_most_the_scale_of_a_skipped_update() -> None:
    given = {"scale": series([2.0**18] * 3), "skipped": series([0, 1, 0])}
    quiet = [walls(sample(step, 2.0**18, [65520.0 / 4])) for step in (0, 2)]
    wall = trace(scale_chart(given, 1, [], quiet, LOOK), "overflow wall")
    assert (wall["x"], wall["y"]) == ([0, 1, 2], [20.0, 18.0, 20.0])


def test_a_tensor_that_overflowed_puts_the_wall_below_its_own_scale() -> None:
    found = walls(sample(0, 2.0**24, [1.0, 2.0], [1.0, np.inf], [np.nan]))
    assert (found.overflow, found.overflow_row, found.reached) == (24.0, 1, True)
    assert not walls(sample(0, 2.0**24, [1.0])).reached


def test_a_skipped_step_tells_no_flush_wall() -> None:
    assert walls(sample(0, 2.0**24, [1.0], periodic=False)).flush is None


def test_the_scale_has_the_chart_to_itself_and_far_walls_are_told_at_its_edges() -> None:
    values = [65520.0 * 2.0**-30, *([2.0**-31] * 10)]
    chart = scale_chart({"scale": series([2.0**16, 2.0**17])}, 1, [], [walls(sample(0, 1.0, values))], LOOK)
    layout = check(chart).layout
    assert list(layout.yaxis.range) == [14.5, 19.0]
    assert trace(chart, "↑ overflow wall at 2<sup>30</sup>")["y"] == [19.0]
    assert trace(chart, "↓ flush wall at 2<sup>6</sup>")["y"] == [14.5]


def test_a_wall_near_the_scale_is_inside_the_chart() -> None:
    near = walls(sample(0, 1.0, [65520.0 * 2.0**-21]))
    chart = scale_chart({"scale": series([2.0**16, 2.0**17])}, 1, [], [near], LOOK)
    assert list(check(chart).layout.yaxis.range) == [14.5, 23.0]
    assert not [found for found in chart.figure["data"] if "overflow wall at" in found["name"]]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "known"), [("fp16", FP16), ("bfloat16", BF16), ("torch.float16", FP16), ("int8", None), (None, None)]
)
def test_a_compute_format_is_known_by_each_of_its_names_or_not_at_all(name: str | None, known: object) -> None:
    assert compute_format(parameter("a", compute_format=name)) is known


def test_subnormals_of_an_unknown_format_are_not_guessed() -> None:
    part = as_parts([sample(0, 1.0, [2.0**-20], [2.0**-20])])
    known, unknown = evaluate("subnormal_share", part, [compute_format(parameter("a")), None])
    assert known == 1.0
    assert np.isnan(unknown)


def test_the_walls_agree_with_real_casts() -> None:
    values = np.float32(2.0) ** np.linspace(-20, 10, 4001, dtype=np.float32)
    found = walls(sample(0, 2.0**4, values.tolist()))
    assert found.overflow is not None
    assert found.flush is not None

    def at(level: float) -> NDArray[np.float16]:
        return (values * np.float32(2.0 ** (level - 4))).astype(np.float16)

    with np.errstate(over="ignore"):
        assert np.isinf(at(found.overflow + 1e-3)).any()
        assert not np.isinf(at(found.overflow - 1e-2)).any()
        assert (at(found.flush) == 0).mean() <= 1e-3
        assert (at(found.flush - 1) == 0).mean() > 1e-3


def test_a_tensor_of_zeros_has_no_walls() -> None:
    assert flush_wall(table([0.0, 0.0]).counts[0], -126, 16.0) is None
    assert walls(sample(0, 2.0**16, [0.0])).overflow is None


def test_a_run_without_a_scaler_says_so_instead_of_drawing_nothing() -> None:
    chart = scale_chart({"scale": series([])}, 1, [], [], LOOK)
    assert chart.missing is not None
    assert "bf16" in chart.missing


@pytest.mark.parametrize("scale", [0.0, 2.0**-160, np.inf])
def test_a_broken_scale_is_drawn_as_far_as_it_can_be(scale: float) -> None:
    check(scale_chart({"scale": series([scale, 2.0])}, 1, [event(0, "skip", scale=scale, next_scale=0.0)], [], LOOK))


def test_values_that_are_not_finite_are_marked_and_counted() -> None:
    chart = series_chart(PLANS[0], {"loss": series([1.0, np.nan, 2.0])}, 1, LOOK)
    assert trace(chart, "not finite")["x"] == [1]
    assert "1 values not finite" in chart.summary


def test_the_skip_rate_is_that_of_the_last_updates() -> None:
    chart = skip_rate_chart(series([1.0] * 100 + [0.0] * 100), 1, LOOK)
    rate = trace(chart, "skipped")["y"]
    assert isinstance(rate, list)
    assert (rate[0], rate[99], rate[149], rate[199]) == (100.0, 100.0, 50.0, 0.0)


def test_a_zoomed_skip_rate_counts_the_updates_before_the_zoom() -> None:
    chart = skip_rate_chart(series([0.0] * 99 + [1.0, 0.0], first=900), 1, LOOK, start=999)
    assert (trace(chart, "skipped")["x"], trace(chart, "skipped")["y"]) == ([999, 1000], [1.0, 1.0])
    assert chart.summary.startswith("1 of 2 updates were skipped")


@pytest.mark.parametrize(("bucket", "window"), [(1, 100), (8, 96), (64, 64), (512, 512)])
def test_the_skip_rate_names_the_window_it_rests_on(bucket: int, window: int) -> None:
    chart = skip_rate_chart(series([1.0] * 3, bucket=bucket), bucket, LOOK)
    assert chart.title == f"Updates skipped, of the last {window}"


def test_a_title_is_the_series_own_name() -> None:
    name = 'a<b>&"x"'
    own = Plan(f"own:{name}", name, (Line(name, name),))
    charts = [series_chart(own, {name: series(values)}, 1, LOOK) for values in ([1.0], [])]
    assert [chart.title for chart in charts] == [name, name]


def test_the_users_own_series_get_charts_of_their_own() -> None:
    names = [plan.name for plan in plans_for(["loss", "scale", "skipped", "applied", "attempted", "accuracy"])]
    assert names == ["loss", "own:accuracy"]


def test_a_bucket_that_no_sample_fell_into_stays_empty() -> None:
    grid = gridded([sample(0, 1.0, [1.0]), sample(25, 1.0, [1.0])], 10)
    assert [len(column) for column in grid.columns] == [1, 0, 1]
    assert grid.edges == [-0.5, 9.5, 19.5, 29.5]


def test_samples_at_two_scales_are_shifted_to_the_one_the_column_ends_with() -> None:
    grid = gridded([sample(0, 4.0, [1.0, 1.0]), sample(1, 8.0, [2.0, 2.0])], 10)
    heat = trace(layer_chart(parameter("a"), grid, LOOK), "share")
    y, z = heat["y"], heat["z"]
    assert isinstance(y, list)
    assert isinstance(z, list)
    assert z[y.index(1.5)] == [0.0]
    assert z[y.index(0.5)] == [None]


def test_a_layer_keeps_its_place_in_forward_order_and_a_missing_sample_is_a_gap() -> None:
    chart, rows = layers_chart("zero_share", shown([[0.5, np.nan, 1.0], [0.0, np.nan, 0.0]], "first", "second"), LOOK)
    figure = check(chart)
    assert list(figure.data[0].y) == ["first", "second"]
    assert [list(row) for row in figure.data[0].z] == [[50.0, None, 100.0], [0.0, None, 0.0]]
    assert figure.layout.yaxis.autorange == "reversed"
    assert rows == [("first", 1.0, 1.0), ("second", 0.0, 0.0)]


@pytest.mark.parametrize("measure", ["zero_share", "nonfinite", "amax", "norm"])
def test_a_map_of_nothing_but_zeros_says_so_in_words(measure: LayerMeasure) -> None:
    nothing, _ = layers_chart(measure, shown([[0.0, np.nan], [0.0, 0.0]], "first", "second"), LOOK)
    assert nothing.grain.endswith(" · 0 everywhere")
    assert nothing.summary == "0 everywhere."
    something, _ = layers_chart(measure, shown([[0.0, np.nan], [0.0, 1e-9]], "first", "second"), LOOK)
    assert "everywhere" not in something.grain + something.summary


def test_names_of_a_trainer_are_never_markup() -> None:
    own = Plan(f"own:{HOSTILE}", HOSTILE, (Line(HOSTILE, HOSTILE),))
    grid = gridded([sample(0, 4.0, [1.0])], 10)
    skip = event(1, "skip", scale=8.0, next_scale=4.0, parameter=HOSTILE, reason=HOSTILE)
    charts = [
        series_chart(own, {HOSTILE: series([1.0, np.nan])}, 1, LOOK),
        scale_chart({"scale": series([8.0, 4.0])}, 1, [skip], [], LOOK),
        layers_chart("amax", shown([[1.0]], HOSTILE), LOOK)[0],
        layer_chart(parameter(HOSTILE), grid, LOOK),
    ]
    for chart in charts:
        figure = dict(chart.figure, layout={**chart.figure["layout"], "meta": None})  # type: ignore[dict-item]
        assert not re.search(r"<(?!/?(sup|br|extra)>)", json.dumps(figure)), chart.name


def test_plain_text_cannot_become_a_template_or_a_second_line() -> None:
    assert plain("a\nb<b>&") == "a b&lt;b&gt;&amp;"
    assert plain("x" * 40, 10) == "xxx…xxxxxx"


def test_a_log2_axis_labels_powers_of_two_and_round_numbers_when_it_is_narrow() -> None:
    assert log2_axis(LOOK, -1.0, 17.0)["ticktext"] == [
        "1",
        "2<sup>4</sup>",
        "2<sup>8</sup>",
        "2<sup>12</sup>",
        "2<sup>16</sup>",
    ]
    assert log2_axis(LOOK, -1.0, 1.2)["ticktext"] == ["0.5", "1", "1.5", "2"]
    assert log2_axis(LOOK, -1.8, -0.3)["ticktext"] == ["0.3", "0.4", "0.5", "0.6", "0.7", "0.8"]


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_the_style_sheet_has_the_same_colours(palette: Palette) -> None:
    text = (FRONTEND / "style.css").read_text()
    block = text.split(':root[data-theme="dark"]')[palette.name == "dark"].split("}")[0]
    stated = dict(re.findall(r"--(\w+): (#\w{6});", block))
    names = ("panel", "ink", "quiet", "grid", "nothing", "overflow", "flush", "warning", "good", "accent")
    assert {name: stated[name] for name in names} == {name: getattr(palette, name) for name in names}


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["ink", "quiet", "overflow", "flush", "warning", "good"])
def test_text_stands_out_from_the_panel(palette: Palette, name: str) -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    pair = sorted((luminance(getattr(palette, name)), luminance(palette.panel)))
    assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5


def golden() -> list[dict[str, object]]:
    """Readings and what the server's numerics say of them at several scales."""
    random = np.random.default_rng(7)
    cases = []
    for scale in (1.0, 2.0**10, 3.0):
        values = np.concatenate([2.0 ** random.uniform(-40, 15.9, 500) * scale, [0.0, 2.0**-25]])
        bucket = sample(0, scale, values[np.abs(values) < 65520].tolist())
        for octaves in (-6, 0, 3.5, 16):
            shift = octaves - float(np.log2(scale))
            low, high = flushed(bucket.table, FP16, shift)
            over = overflowed(bucket.table, FP16, shift)
            nonzero = int(bucket.table.nonzero[0])
            cases.append(
                {
                    "readings": msgspec.to_builtins(readings([bucket])),
                    "octaves": octaves,
                    "flush": {"low": int(low[0]) / nonzero, "high": int(high[0]) / nonzero},
                    "overflow": {"low": int(over[0][0]), "high": int(over[1][0])},
                    "headroom": headroom(float(bucket.table.amax[0]) * 2.0**shift, FP16),
                }
            )
    return cases


def test_the_golden_answers_that_the_page_is_held_to_are_those_of_the_numerics() -> None:
    assert json.loads(GOLDEN.read_text()) == json.loads(json.dumps(golden()))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.floats(width=64)), st.integers(2, 7))
def test_numbers_are_the_decimals_that_people_would_write(values: list[float], digits: int) -> None:
    found = numbers(values, digits)
    for value, told in zip(values, found, strict=True):
        if not math.isfinite(value):
            assert told is None
        elif 1e-16 < abs(value) < 1e16:
            assert told is not None
            # What lies half-way between two decimals may go either way.
            assert told == float(f"{value:.{digits}g}") or math.isclose(
                told, value, rel_tol=0.5000001 * 10 ** (1 - digits)
            )
        else:
            assert told == pytest.approx(value, rel=10 ** (1 - digits))
