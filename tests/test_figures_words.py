"""What a figure says beside its lines: ticks, grains, legends, names and why there is nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scalescope_server.figures.chart import Look, log2_axis, share_axis
from scalescope_server.figures.layers import layers_chart
from scalescope_server.figures.plans import PLANS
from scalescope_server.figures.series import series_chart
from scalescope_server.figures.short_names import shortened

from tests.figure_inputs import LOOK, series, shown


@pytest.mark.parametrize(
    ("low", "high"), [(-1100.0, -1098.0), (-1075.0, -1073.0), (1022.5, 1024.0), (3.0, 3.0 + 1e-15)]
)
def test_a_log2_axis_survives_what_hardly_fits_a_float(low: float, high: float) -> None:
    ticks = log2_axis(LOOK, low, high)["ticktext"]
    assert isinstance(ticks, list)
    assert len(ticks) <= 7


def test_shares_read_as_percentages_and_nothing_does_not_look_like_a_measurement() -> None:
    assert share_axis(LOOK, 0.031)["ticktext"] == ["0 %", "1 %", "2 %", "3 %"]
    assert share_axis(LOOK, 0.0)["ticktext"] == ["0 %", "0.2 %", "0.4 %", "0.6 %", "0.8 %", "1 %"]


def test_a_sampled_quantity_says_that_its_points_are_samples() -> None:
    plans = {plan.name: plan for plan in PLANS}
    given = {"loss": series([1.0, 2.0]), "grad_norm": series([1.0, 2.0]), "step_ms": series([5.0, 6.0])}
    assert series_chart(plans["loss"], given, 1, LOOK).grain == "1 point = 1 update"
    assert series_chart(plans["grad_norm"], given, 1, LOOK).grain == "1 point = 1 sampled update"
    assert series_chart(plans["step_ms"], given, 1, LOOK).grain == "ms · 1 point = 1 update"
    folded = {"grad_norm": series([1.0, 2.0], bucket=8)}
    assert series_chart(plans["grad_norm"], folded, 8, LOOK).grain == (
        "1 point = 8 updates: last sample, the band spans min to max"
    )


def test_only_a_chart_with_values_that_are_not_finite_explains_their_mark() -> None:
    plan = next(plan for plan in PLANS if plan.name == "loss")
    assert series_chart(plan, {"loss": series([1.0, 2.0])}, 1, LOOK).legend == []
    (key,) = series_chart(plan, {"loss": series([1.0, float("nan")])}, 1, LOOK).legend
    assert (key.label, key.mark) == ("NaN or infinite", "cross")


def test_a_phone_shows_which_block_a_layer_belongs_to() -> None:
    names = ["characters.weight", "blocks.11.norm1.weight", "blocks.11.bias"]
    phone = Look(LOOK.palette, compact=True)
    figure: Any = layers_chart("zero_share", shown([[0.5], [0.5], [0.5]], *names), phone)[0].figure
    assert figure["layout"]["yaxis"]["ticktext"] == ["characters.weight", "b.11.norm1.weight", "b.11.bias"]


GPT2 = [
    "transformer.wte.weight",
    "transformer.wpe.weight",
    *(
        f"transformer.h.{block}.{layer}.{own}"
        for block in (0, 1, 11)
        for layer in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
        for own in ("weight", "bias")
    ),
    "transformer.ln_f.weight",
]


def test_shortened_names_of_different_layers_still_differ() -> None:
    short = shortened(GPT2, 20)
    assert len(set(short)) == len(GPT2)
    assert max(map(len, short)) <= 20
    assert short[:3] == ["t.wt.weight", "t.wp.weight", "t.h.0.ln_1.weight"]
    assert "t.h.11.m.c_p.bias" in short
    assert shortened(GPT2, 60) == GPT2


PARTS = st.sampled_from(["a", "ab", "abc", "b", "ba", "0", "1", "12", "attn", "attn_norm"])


@given(st.sets(st.lists(PARTS, min_size=1, max_size=4).map(".".join), min_size=1, max_size=12), st.integers(1, 12))
def test_no_two_names_ever_become_one(names: set[str], limit: int) -> None:
    short = shortened(sorted(names), limit)
    assert len(set(short)) == len(names)
    for name, cut in zip(sorted(names), short, strict=True):
        assert all(map(str.startswith, name.split("."), cut.split(".")))
        assert name.rpartition(".")[2] == cut.rpartition(".")[2]


def test_layers_without_a_sample_are_still_named() -> None:
    chart, rows = layers_chart("zero_share", shown([[]], "a"), LOOK, missing="No update yet.")
    assert chart.missing == "No update yet."
    assert rows == [("a", None, None)]
