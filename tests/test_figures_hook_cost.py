"""The hook's own cost as a chart: shares of the update's time, sampled updates apart, beside the budget."""

from __future__ import annotations

import math

import numpy as np
import plotly.graph_objects as go
from scalescope_server.figures.hook_cost import hook_cost_chart
from scalescope_server.figures.plans import HOOK_COST, PLANS
from scalescope_server.store.records import Series

from tests.figure_inputs import LOOK, series

PLAN = next(plan for plan in PLANS if plan.name == HOOK_COST)


def traces(told: dict[str, Series], bucket: int = 1) -> dict[str, go.Scatter]:
    chart = hook_cost_chart(PLAN, told, bucket, LOOK)
    assert chart.missing is None
    return {trace.name: trace for trace in go.Figure(chart.figure).data}


def test_sampled_updates_stand_apart_from_ordinary_ones_and_both_are_shares_of_their_own_update() -> None:
    told = {"hook_ms": series([4.0, 0.1, 0.1, 5.0]), "step_ms": series([100.0, 100.0, 50.0, 100.0])}
    told["amax"] = series([1.0, 1.0], bucket=3)
    drawn = traces(told)
    assert list(drawn["ordinary update"].x) == [1, 2]
    np.testing.assert_allclose(drawn["ordinary update"].customdata, [0.1, 0.2])
    assert list(drawn["sampled update"].x) == [0, 3]
    np.testing.assert_allclose(drawn["sampled update"].y, np.log10([0.04, 0.05]), rtol=1e-5)
    assert list(drawn["budget"].y) == [-2.0, -2.0]
    chart = hook_cost_chart(PLAN, told, 1, LOOK)
    assert chart.grain == "2.63 % of all time shown · 1 point = 1 update"
    assert "an ordinary update 0.15 %, a sampled one 4.5 % (medians)" in chart.summary


def test_a_point_of_many_updates_tells_their_mean_and_the_costliest() -> None:
    whole, n = np.array([800.0]), np.array([8])
    none = np.array([0])
    hook = Series(none, n, np.array([0.1]), np.array([6.0]), np.array([0.1]), np.array([8.0]), none, none)
    step = Series(none, n, np.array([50.0]), np.array([150.0]), np.array([100.0]), whole, none, none)
    drawn = traces({"hook_ms": hook, "step_ms": step}, 8)
    np.testing.assert_allclose(drawn["mean"].customdata, [1.0])
    np.testing.assert_allclose(drawn["costliest update"].customdata, [6.0])


def test_updates_of_which_one_time_is_not_known_are_left_out() -> None:
    told = {"hook_ms": series([1.0, math.nan, 1.0]), "step_ms": series([100.0, 100.0, 0.0])}
    assert list(traces(told)["ordinary update"].x) == [0]
    assert hook_cost_chart(PLAN, {}, 1, LOOK).missing is not None
    assert hook_cost_chart(PLAN, {"hook_ms": series([1.0])}, 1, LOOK).missing is not None


def test_a_hook_that_took_nothing_at_all_is_drawn_at_the_least() -> None:
    drawn = traces({"hook_ms": series([0.0]), "step_ms": series([100.0])})
    assert list(drawn["ordinary update"].y) == [-6.0]
