"""Figures over HTTP, drawn from a real store that a trainer filled."""

from __future__ import annotations

import gzip
from typing import Any

import plotly.graph_objects as go
import pytest
from msgspec.structs import replace
from scalescope.numerics.exponents import MIN_EXPONENT, Histograms
from scalescope.packing import pack
from scalescope.wire import Layout, Parameter, Sample
from scalescope_server.figures import reads
from scalescope_server.figures.answers import NO_UPDATE
from scalescope_server.figures.chart import Look
from scalescope_server.figures.marks import MAX_MARKS
from scalescope_server.figures.palette import DARK
from scalescope_server.figures.scale import NO_SCALER
from scalescope_server.store.records import RunId

from tests.serving import Served, bye, hello, layout, sample, skip, steps

NAMES = ["scale", "skip_rate", "loss", "grad_norm", "shares"]


@pytest.fixture(scope="module")
def filled(shared: Served) -> Served:
    """Run "run-1": 60 updates, the 31st skipped, a sample at 0 and one at 30."""
    skipped = [float(step == 30) for step in range(60)]
    loss = [4.0 - step / 20 for step in range(60)]
    with shared.trainer(hello()) as trainer:
        trainer.deliver(
            layout(0),
            sample(1, 0),
            skip(2, 30),
            sample(3, 30),
            steps(4, 0, 60, skipped=skipped, loss=loss, tokens=[64.0] * 60),
            bye(5),
        )
    return shared


def figures(served: Served, rest: str = "", run: str = "run-1") -> Any:
    answer = served.get(f"/api/runs/{run}/figures{rest}")
    assert answer.status == 200, answer.body
    return answer.json()


def test_one_answer_holds_every_chart_and_the_last_update(filled: Served) -> None:
    answer = figures(filled)
    assert answer["step"] == 59
    assert [chart["name"] for chart in answer["charts"]] == NAMES
    assert [named["name"] for named in answer["available"]] == NAMES
    for chart in answer["charts"]:
        go.Figure(chart["figure"])
        assert chart["missing"] is None
        assert chart["grain"] in ("1 point = 1 update", "1 point = 1 sampled update")


def test_the_lines_of_a_rank_are_those_it_told_and_the_marks_those_of_the_run(served: Served) -> None:
    for rank, scale in ((0, 65536.0), (1, 32768.0)):
        with served.trainer(hello(rank=rank, world_size=2)) as trainer:
            skipped = [float(step == 3 and rank == 0) for step in range(6)]
            trainer.deliver(layout(0), skip(1, 3), steps(2, 0, 6, scale=[scale] * 6, skipped=skipped), bye(3))
    for query, octaves, lost in (("", 16.0, 1), ("&rank=0", 16.0, 1), ("&rank=1", 15.0, 0)):
        (scale,) = figures(served, f"?chart=scale{query}")["charts"]
        lines = {trace["name"]: trace for trace in scale["figure"]["data"]}
        assert lines["loss scale"]["y"] == [octaves] * 6
        assert lines["changes"]["x"] == [3]
        assert f"{lost} updates were skipped" in scale["summary"]
    (none,) = figures(served, "?chart=scale&rank=7")["charts"]
    assert none["missing"] == "No loss scale has been recorded in this range."


def test_figures_are_compressed_for_whoever_takes_that(filled: Served) -> None:
    plain = filled.get("/api/runs/run-1/figures")
    for accepted, packed in (("gzip, br", True), ("identity", False), ("gzip;q=0", False)):
        answer = filled.get("/api/runs/run-1/figures", accept_encoding=accepted)
        assert (answer.headers.get("content-encoding") == "gzip", answer.headers["vary"]) == (packed, "accept-encoding")
        assert (gzip.decompress(answer.body) if packed else answer.body) == plain.body
        assert len(answer.body) == int(answer.headers["content-length"])
    assert filled.get("/api/runs/none/figures", accept_encoding="gzip").status == 404


def test_only_the_charts_in_view_are_drawn(filled: Served) -> None:
    answer = figures(filled, "?chart=loss&chart=nonsense")
    assert [chart["name"] for chart in answer["charts"]] == ["loss"]
    assert [named["name"] for named in answer["available"]] == NAMES


def test_the_skip_is_a_mark_with_its_culprit(filled: Served) -> None:
    (chart,) = figures(filled, "?chart=scale")["charts"]
    marks = next(trace for trace in chart["figure"]["data"] if trace["name"] == "changes")
    assert marks["x"] == [30]
    assert "block.bias" in marks["text"][0]


def test_a_range_is_drawn_exactly(filled: Served) -> None:
    (chart,) = figures(filled, "?chart=loss&from=10&to=20")["charts"]
    assert chart["figure"]["data"][0]["x"] == list(range(10, 20))


def test_points_are_clamped_and_a_point_says_what_it_stands_for(filled: Served) -> None:
    (chart,) = figures(filled, "?chart=loss&points=1")["charts"]
    assert chart["grain"].startswith("1 point = 8 updates")
    assert len(figures(filled, "?chart=loss&points=999999")["charts"][0]["figure"]["data"][0]["x"]) == 60


def test_tiles_tell_the_distance_to_both_walls(served: Served) -> None:
    with served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), measured(1, 50, -3, -3), steps(2, 0, 60, tokens=[64.0] * 60))
    tiles = figures(served, "?chart=loss")["tiles"]
    # The largest value is 2^-3, at the scale in force: 65520 is almost 19 octaves above, 2^-25 is 22 below.
    assert tiles["overflow"] == {"octaves": pytest.approx(19, abs=1e-3), "by": "block.bias", "less": False}
    assert tiles["flush"]["octaves"] == 22
    assert tiles["tokens"] == 60 * 64


def test_after_a_skip_the_room_to_overflow_is_less_than_to_the_scale_that_was_skipped(served: Served) -> None:
    with served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), measured(1, 0, -3, -3), skip(2, 30))
        trainer.deliver(steps(3, 0, 60, scale=[65536.0] * 31 + [32768.0] * 29))
        assert figures(served)["tiles"]["overflow"] == {"octaves": 1.0, "by": "block.bias", "less": True}
        trainer.deliver(steps(4, 60, 60, scale=[32768.0] * 60), measured(5, 120, -3, -3))
        trainer.deliver(steps(6, 120, 1, scale=[32768.0]))
    assert figures(served)["tiles"]["overflow"]["octaves"] > 19


def test_what_a_loss_scale_is_not_for_does_not_move_its_wall(served: Served) -> None:
    parameters = [Parameter(name, "m", [16], "float32", 16, name) for name in ("fp32", "fp16")]
    with served.trainer(hello()) as trainer:
        given = Layout(sequence=0, parameters=parameters, order="observed", backward=[1, 0])
        trainer.deliver(given, measured(1, 0, 20, -3), steps(2, 0, 1))
    answer = figures(served)
    wall = next(found for found in answer["charts"][0]["figure"]["data"] if found["name"] == "overflow wall")
    assert wall["y"] == [pytest.approx(35, abs=1e-3)]
    assert answer["tiles"]["overflow"]["octaves"] == pytest.approx(19, abs=1e-3)


def test_a_wall_has_a_point_at_every_sample_as_long_as_they_are_few(served: Served) -> None:
    with served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), *(measured(1 + step, step, -3, -3) for step in range(20)), steps(21, 0, 60))
    chart = figures(served)["charts"][0]
    assert next(t for t in chart["figure"]["data"] if t["name"] == "overflow wall")["x"] == list(range(20))


def test_a_zoom_does_not_change_the_skip_rate(served: Served) -> None:
    skipped = [float(step % 50 == 0) for step in range(400)]
    with served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), steps(1, 0, 400, skipped=skipped))
    (chart,) = figures(served, "?chart=skip_rate&from=250&to=300")["charts"]
    drawn = chart["figure"]["data"][0]
    assert (drawn["x"], set(drawn["y"])) == (list(range(250, 300)), {2.0})
    assert chart["summary"].startswith("1 of 50 updates")


def test_the_last_update_is_the_last_that_is_stored_whatever_is_missing_before(served: Served) -> None:
    with served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), steps(1, 0, 10), steps(2, 1000, 10, step_ms=[5.0] * 10))
    answer = figures(served)
    assert answer["step"] == 1009
    assert answer["tiles"]["step_ms"] == 5.0


def test_a_heat_map_reads_no_more_rows_than_it_may(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with served.trainer(hello()) as trainer:
        samples = [measured(1 + i, 10 * i, -3, -3) for i in range(300)]
        trainer.deliver(layout(0), *samples, steps(301, 0, 2991))
    monkeypatch.setattr(reads, "MAX_SAMPLE_ROWS", 100)
    reader, run = served.store.reader, RunId("run-1")
    detail = reader.run(run)
    grid, read, _ = reads.sampled_grid(reader, run, reads.Wanted(Look(DARK), 1000), detail.parameters, detail)
    assert 100 / 8 / 2 <= len(read) <= 100 / 2
    assert len(grid.columns) == len(read)


def measured(sequence: int, step: int, *exponents: int) -> Sample:
    """A periodic sample at scale 65536 with ten values of each power of two, one tensor for each."""
    table = Histograms.empty(len(exponents))
    for row, exponent in enumerate(exponents):
        table.counts[row, exponent - MIN_EXPONENT] = 10
        table.amax[row], table.sum_squares[row] = 2.0**exponent, 10 * 4.0**exponent
    return replace(sample(sequence, step), table=pack(table))


@pytest.mark.parametrize("measure", ["subnormal_share", "zero_share", "nonfinite", "flush_share", "amax", "norm"])
def test_layers_are_in_forward_order(filled: Served, measure: str) -> None:
    answer = figures(filled, f"/layers?measure={measure}")
    go.Figure(answer["chart"]["figure"])
    assert [row["name"] for row in answer["rows"]] == ["block.weight", "block.bias"]
    heat = answer["chart"]["figure"]["data"][0]
    assert heat["meta"]["columns"] == [
        "updates 0 to 9, by the sample of update 0",
        "updates 10 to 29: no sample",
        "updates 30 to 39, by the sample of update 30",
        "updates 40 to 59: no sample",
    ]
    assert [value is None for value in heat["z"][0]] == [False, True, False, True]


def test_a_range_between_two_samples_is_shown_by_the_one_before_it(served: Served) -> None:
    with served.trainer(hello()) as trainer:
        samples = [measured(1 + i, 160 * i, -3, -3) for i in range(4)]
        trainer.deliver(layout(0), *samples, steps(5, 0, 600))
    for address in ("/layers?measure=amax", "/layers/block.weight?"):
        zoomed = figures(served, f"{address}&from=200&to=300")["chart"]["figure"]
        assert zoomed["data"][0]["meta"]["columns"] == ["updates 200 to 299, by the sample of update 160"]
        assert zoomed["layout"]["xaxis"]["range"] == [199.5, 299.5]
    whole = figures(served, "/layers?measure=amax")["chart"]["figure"]["data"][0]
    assert whole["x"] == [-0.5, 159.5, 319.5, 479.5, 599.5]


def test_layers_are_filtered_by_a_part_of_their_name(filled: Served) -> None:
    answer = figures(filled, "/layers?measure=zero_share&match=BIAS")
    assert (answer["total"], [row["name"] for row in answer["rows"]]) == (1, ["block.bias"])
    assert figures(filled, "/layers?match=none")["chart"]["missing"] == 'No layer has "none" in its name.'


def test_a_layer_comes_with_the_readings_behind_its_figure(filled: Served) -> None:
    answer = figures(filled, "/layers/block.weight")
    go.Figure(answer["chart"]["figure"])
    assert answer["parameter"]["compute_format"] == "fp16"
    assert answer["readings"][0] == {
        "step": 0,
        "scale": 65536.0,
        "periodic": True,
        "samples": 1,
        "low": -3,
        "counts": [10],
        "zero": 4,
        "inf": 1,
        "nan": 1,
        "amax": 0.125,
    }


def test_more_marks_than_a_reader_tells_apart_are_folded_and_none_is_lost(served: Served) -> None:
    count = 4 * MAX_MARKS
    events = [skip(sequence, step) for sequence, step in enumerate(range(0, count, 2), start=1)]
    with served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), *events, steps(len(events) + 1, 0, count, skipped=[1.0, 0.0] * (count // 2)))
    (chart,) = figures(served, "?chart=scale")["charts"]
    marks = next(trace for trace in chart["figure"]["data"] if trace["name"] == "changes")
    assert len(marks["x"]) == count / 8
    assert sum(int(text.split()[0]) for text in marks["text"]) == count / 2


def test_a_run_that_only_said_hello_has_charts_that_say_so(served: Served) -> None:
    with served.trainer(hello()) as trainer:
        trainer.deliver(layout(0))
    answer = figures(served)
    assert answer["step"] is None
    assert [chart["missing"] for chart in answer["charts"]] == [NO_UPDATE]
    layers = figures(served, "/layers")
    assert layers["chart"]["missing"] == NO_UPDATE
    assert [row["name"] for row in layers["rows"]] == ["block.weight", "block.bias"]
    layer = figures(served, "/layers/block.bias")
    assert (layer["chart"]["missing"], layer["readings"]) == (NO_UPDATE, [])


def test_a_run_says_whether_it_has_no_scale_or_none_in_this_range(served: Served) -> None:
    with served.trainer(hello(scaler=None)) as trainer:
        first = steps(1, 0)
        trainer.deliver(layout(0), replace(first, columns={"skipped": first.columns["skipped"]}))
    with served.trainer(hello("run-2")) as trainer:
        trainer.deliver(layout(0), steps(1, 0, 4))
    assert figures(served, "?chart=scale", "run-2")["charts"][0]["missing"] is None
    assert figures(served, "?chart=scale")["charts"][0]["missing"] == NO_SCALER
    ahead = figures(served, "?chart=scale&from=100", "run-2")["charts"][0]
    assert ahead["missing"] == "No loss scale has been recorded in this range."


def test_a_range_without_a_sample_says_how_often_there_is_one(filled: Served) -> None:
    answer = figures(filled, "/layers?from=41&to=45")
    assert "every 10 updates" in answer["chart"]["missing"]


@pytest.mark.parametrize("rest", ["", "/layers", "/layers/a"])
@pytest.mark.parametrize("run", ["none", "no%20id", "x" * 65])
def test_an_unknown_run_is_not_found(shared: Served, run: str, rest: str) -> None:
    answer = shared.get(f"/api/runs/{run}/figures{rest}")
    assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found")


def test_an_unknown_layer_is_not_found(filled: Served) -> None:
    answer = filled.get("/api/runs/run-1/figures/layers/none")
    assert (answer.status, answer.json()["error"]["field"]) == (404, "parameter")


@pytest.mark.parametrize("rest", ["?palette=pink", "?from=-1", "/layers?measure=beauty"])
def test_what_means_nothing_is_refused(filled: Served, rest: str) -> None:
    assert filled.get(f"/api/runs/run-1/figures{rest}").status == 422
