"""Points over all ranks that not all ranks have told: of a rank that died, or whose telemetry is still on its way."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from scalescope_server.figures.chart import Chart, Json, Key
from scalescope_server.figures.palette import Palette
from scalescope_server.figures.plans import Plan
from scalescope_server.figures.series import drawn_values
from scalescope_server.store.records import Series


def complete(plan: Plan, series: Mapping[str, Series], bucket: int, *, live: bool) -> dict[str, Series]:
    """The lines of ``plan`` without a newest point that still waits for ranks, while the run is ``live``.

    It comes a moment later; drawn at once, each new point would fall and rise again.
    """
    lacking = series.get(plan.lacking)
    if not live or bucket > 1 or lacking is None or not len(lacking.step) or lacking.max[-1] <= 0:
        return dict(series)
    return {name: _before(each, int(lacking.step[-1])) for name, each in series.items()}


def with_lacking(chart: Chart, plan: Plan, series: Mapping[str, Series], palette: Palette) -> Chart:
    """``chart`` with a ring around each point that lacks ranks, and what that means."""
    lacking = series.get(plan.lacking)
    if chart.missing is not None or lacking is None or not (lacking.max > 0).any():
        return chart
    missing = {int(step): int(most) for step, most in zip(lacking.step, lacking.max, strict=True) if most > 0}
    rings = [ring for line in plan.lines if (ring := _rings(plan, line.series, series, missing, palette))]
    traces = chart.figure["data"]
    assert isinstance(traces, list)
    told = f"{len(missing):,} of {len(lacking.step):,} points rest on fewer than all ranks"
    return replace(
        chart,
        grain=f"{chart.grain} · {told}",
        summary=f"{chart.summary} {told}: their norms and largest values are lower bounds.",
        legend=[*chart.legend, Key("lacks ranks", palette.warning, "ring")],
        figure=chart.figure | {"data": [*traces, *rings]},
    )


def _before(series: Series, end: int) -> Series:
    kept = series.step < end
    return Series(*(getattr(series, name)[kept] for name in Series.__struct_fields__))


def _rings(
    plan: Plan, name: str, series: Mapping[str, Series], missing: Mapping[int, int], palette: Palette
) -> Json | None:
    found = series.get(name)
    rows: NDArray[np.int64] = (
        np.flatnonzero(np.isin(found.step, list(missing))) if found is not None else np.zeros(0, int)
    )
    if found is None or not rows.size:
        return None
    steps = found.step[rows].tolist()
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{name}: lacks ranks",
        "x": steps,
        "y": drawn_values(found.last[rows], plan.kind),
        "text": [f"{missing[step]:,} rank{'s' if missing[step] > 1 else ''} missing" for step in steps],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"symbol": "circle-open", "size": 7, "color": palette.warning, "line": {"width": 1.5}},
    }
