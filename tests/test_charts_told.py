"""Figures of what a loop, its modules and its probes told, over a real server."""

from __future__ import annotations

import threading
from typing import Any

import plotly.graph_objects as go
import pytest
from scalescope_server.figures import told
from sqlalchemy import event

from tests.batches import Dictation
from tests.serving import Served, hello, layout, ok
from tests.told_runs import USUAL, tell

FIGURES = "/api/runs/run-1/figures"


@pytest.fixture(scope="module")
def filled(shared: Served) -> Served:
    tell(shared)
    return shared


def test_what_was_unusual_comes_with_its_updates_the_worst_first(filled: Served) -> None:
    answer = ok(filled, f"{FIGURES}/facts")
    assert [(each["kind"], each["severity"], each["updates"]) for each in answer["unusual"]] == [
        ("clip_while_scaled", "critical", 5),
        ("stepped_outside", "critical", 5),
        ("forward", "warning", 2),
    ]
    assert answer["unusual"][0]["stretches"] == [[20, 24]]


def test_the_ordinary_window_the_clocks_and_the_set_up_come_along(filled: Served) -> None:
    answer = ok(filled, f"{FIGURES}/facts")
    assert (answer["updates"], answer["since"], answer["micro_batches"]) == (60, None, 120)
    assert answer["scheduler"] == {"name": "block", "follows": "attempted"}
    assert {"label": "clipped", "text": "by norm at 1, after unscaling", "beside": ""} in answer["ordinary"]
    assert answer["setup"]["bytes"]["peak"] == 2**20
    assert ok(filled, f"{FIGURES}?chart=loss")["tiles"]["scheduler_steps"] == 60


def test_of_a_run_whose_windows_all_differ_the_last_ones_are_told(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told, "MOST_FACTS", 20)
    windows = [(1, USUAL | {"micro_batches": step}) for step in range(60)]
    with served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), Dictation(1).steps(0, 60, *windows, scale=[1.0] * 60))
    answer = ok(served, f"{FIGURES}/facts")
    assert (answer["since"], answer["updates"], answer["micro_batches"]) == (40, 20, None)


def test_a_run_that_told_nothing_has_nothing_to_tell(served: Served) -> None:
    with served.trainer(hello()) as trainer:
        trainer.deliver(layout(0))
    answer = ok(served, f"{FIGURES}/facts")
    assert (answer["updates"], answer["ordinary"], answer["unusual"], answer["setup"]) == (0, [], [], {})


def test_the_parts_of_an_update_are_stacked_below_the_whole(filled: Served) -> None:
    (chart,) = ok(filled, f"{FIGURES}?chart=step_ms")["charts"]
    drawn = go.Figure(chart["figure"])
    assert [(trace.name, trace.stackgroup) for trace in drawn.data] == [
        ("forward", "parts"),
        ("backward", "parts"),
        ("optimizer", "parts"),
        ("whole update", None),
    ]
    assert chart["summary"] == "On average: forward 2 ms, backward 4 ms, optimizer 1 ms, whole update 9 ms."


def test_where_values_turned_non_finite_is_on_the_scale_with_the_skip_or_by_itself(filled: Served) -> None:
    (chart,) = ok(filled, f"{FIGURES}?chart=scale")["charts"]
    marks = next(trace for trace in chart["figure"]["data"] if trace["name"] == "changes")
    assert marks["x"] == [30, 40]
    assert "it began in the forward of block (7 values)" in marks["text"][0]
    assert (marks["marker"]["symbol"][1], marks["text"][1]) == ("x", "first non-finite: the forward of block (1 value)")
    assert marks["y"][1] == 15


def test_the_scheduler_and_the_parts_of_an_update_are_no_charts_of_their_own(filled: Served) -> None:
    names = {named["name"] for named in ok(filled, FIGURES)["available"]}
    assert {"clip_coefficient", "update_ratio", "step_ms"} < names
    assert not {name for name in names if name.startswith("own:")}


def test_all_charts_show_the_same_updates(filled: Served) -> None:
    charts = ok(filled, FIGURES)["charts"]
    assert {tuple(chart["figure"]["layout"]["xaxis"]["range"]) for chart in charts} == {(-0.59, 59.59)}


def test_measures_of_modules_have_modules_for_rows_which_open_a_layer_in_them(filled: Served) -> None:
    answer = ok(filled, f"{FIGURES}/layers?measure=forward_headroom")
    go.Figure(answer["chart"]["figure"])
    assert answer["called"] == "module"
    assert [(row["name"], row["latest"], row["opens"]) for row in answer["rows"]] == [
        ("", pytest.approx(16, abs=0.01), "block.weight"),
        ("block", 1.0, "block.weight"),
    ]
    assert list(answer["chart"]["figure"]["data"][0]["y"]) == ["(the model)", "block"]
    assert answer["chart"]["summary"] == "Lowest: 1 octaves in block."


@pytest.mark.parametrize(
    ("measure", "latest"), [("update_ratio", 0.001), ("absorbed_share", 0.25), ("true_underflow", 0.25)]
)
def test_measures_of_updates_and_probes_have_layers_for_rows(filled: Served, measure: str, latest: float) -> None:
    answer = ok(filled, f"{FIGURES}/layers?measure={measure}")
    go.Figure(answer["chart"]["figure"])
    assert (answer["rows"][0]["name"], answer["rows"][0]["latest"]) == ("block.weight", latest)


def test_measures_are_grouped(filled: Served) -> None:
    groups = {offered["name"]: offered["group"] for offered in ok(filled, f"{FIGURES}/layers")["measures"]}
    assert (groups["amax"], groups["update_ratio"]) == ("Gradients", "Updates")
    assert (groups["forward_headroom"], groups["true_underflow"]) == ("Modules", "Reference probe")


@pytest.mark.parametrize(
    ("measure", "words"), [("true_underflow", "scope.probe("), ("forward_amax", "modules are listened to")]
)
def test_a_range_without_a_measure_says_what_makes_one(filled: Served, measure: str, words: str) -> None:
    assert words in ok(filled, f"{FIGURES}/layers?measure={measure}&from=50")["chart"]["missing"]


def test_rare_probes_are_not_spread_over_more_columns_than_a_screen_has(served: Served) -> None:
    say = Dictation(1)
    with served.trainer(hello()) as trainer:
        trainer.deliver(
            layout(0), say.steps(0, 1), *(say.probe(at, lost=[1, 1], reference_nonzero=[2, 2]) for at in (0, 59_999))
        )
        trainer.deliver(say.steps(0, 1), say.steps(59_999, 1, scale=[1.0]))
    chart = ok(served, f"{FIGURES}/layers?measure=true_underflow")["chart"]
    assert len(chart["figure"]["data"][0]["x"]) <= 242


def line(chart: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(trace for trace in chart["figure"]["data"] if trace["name"] == name)
    return found


def test_a_layer_shows_its_modules_headroom_with_the_wall_and_one_octave(filled: Served) -> None:
    charts = {chart["name"]: chart for chart in ok(filled, f"{FIGURES}/layers/block.weight")["lines"]}
    assert list(charts) == ["headroom", "update_ratio", "absorbed", "regions"]
    for chart in charts.values():
        go.Figure(chart["figure"])
    headroom = charts["headroom"]
    assert headroom["title"] == "Headroom of block, of fp16"
    assert (line(headroom, "outputs")["x"], line(headroom, "outputs")["y"]) == ([10], [1.0])
    assert (line(headroom, "the wall")["y"], line(headroom, "one octave")["y"]) == ([0, 0], [1, 1])
    assert line(charts["absorbed"], "absorbed, of the intended")["y"] == [25.0]
    assert charts["absorbed"]["title"] == "Updates that a copy in bf16 would absorb"


def test_a_layer_reads_the_tallies_of_each_kind_once(served: Served) -> None:
    tell(served)
    statements: list[str] = []

    def note(*arguments: object) -> None:
        # The judge reads them as well, for its rules.
        if threading.current_thread().name != "scalescope-judge":
            statements.append(str(arguments[2]))

    event.listen(served.store._reading, "before_cursor_execute", note)
    assert len(ok(served, f"{FIGURES}/layers/block.weight")["lines"]) == 4
    assert len([statement for statement in statements if "tally.body" in statement]) == 3


def test_a_layer_shows_its_last_probe_beside_the_estimate(filled: Served) -> None:
    probe = ok(filled, f"{FIGURES}/layers/block.weight")["probe"]
    assert (probe["step"], probe["true_underflow"], probe["cosine"]) == (4, 0.25, None)
    assert (probe["estimate"], probe["estimated_at"]) == (0.0, 0)
    assert ok(filled, f"{FIGURES}/layers/bias")["probe"] is None
