"""Points that rest on fewer than all ranks: marked, and the newest left out while its ranks are on their way."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import pytest
from scalescope_server.figures.chart import Chart
from scalescope_server.figures.lacking import complete, with_lacking
from scalescope_server.figures.plans import PLANS
from scalescope_server.figures.series import series_chart
from scalescope_server.store.records import Series

from tests.figure_inputs import LOOK, series

NORM = next(plan for plan in PLANS if plan.name == "grad_norm")


def told(missing: Sequence[float]) -> dict[str, Series]:
    return {"grad_norm": series([2.0] * len(missing)), "ranks_missing": series(missing)}


def chart(missing: Sequence[float], bucket: int = 1) -> Chart:
    drawn = series_chart(NORM, told(missing), bucket, LOOK)
    return with_lacking(drawn, NORM, told(missing), LOOK.palette)


def test_points_that_lack_ranks_are_ringed_with_how_many() -> None:
    found = chart([0.0, 1.0, 3.0, 0.0])
    ring = go.Figure(found.figure).data[-1]
    assert (list(ring.x), list(ring.text)) == ([1, 2], ["1 rank missing", "3 ranks missing"])
    assert "2 of 4 points rest on fewer than all ranks" in found.grain
    assert found.legend[-1].label == "lacks ranks"


def test_a_chart_that_lacks_nothing_is_as_it_was() -> None:
    assert chart([0.0, 0.0]) == series_chart(NORM, told([0.0, 0.0]), 1, LOOK)
    alone = {"grad_norm": series([2.0])}
    drawn = series_chart(NORM, alone, 1, LOOK)
    assert with_lacking(drawn, NORM, alone, LOOK.palette) == drawn


@pytest.mark.parametrize(
    ("missing", "bucket", "live", "points"),
    [
        ([0.0, 0.0, 2.0], 1, True, 2),
        ([0.0, 2.0, 2.0], 1, True, 2),
        ([0.0, 0.0, 2.0], 1, False, 3),
        ([0.0, 0.0, 2.0], 8, True, 3),
        ([0.0, 0.0, 0.0], 1, True, 3),
    ],
)
def test_the_newest_point_waits_for_its_ranks_while_the_run_is_live(
    missing: list[float], bucket: int, live: bool, points: int
) -> None:
    assert len(complete(NORM, told(missing), bucket, live=live)["grad_norm"].step) == points
