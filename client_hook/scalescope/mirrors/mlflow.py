"""MLflow: a run, by its id. The step of its metrics is the number of the attempted update."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from scalescope.mirrors.mirror import Finding, Point

# What a server takes in one call, and of a tag.
_METRICS_PER_CALL = 1000
_MAX_TAG = 4_000


class MlflowMirror:
    """Metrics ``scalescope/...``, in one call for each second's; findings are tags."""

    def __init__(self, client: Any, run_id: str) -> None:  # noqa: ANN401 - mlflow's
        self.run_id = run_id
        self._client = client

    def scalars(self, points: Sequence[Point]) -> None:
        # Who hands over a client of it has it.
        metric = import_module("mlflow.entities").Metric
        metrics = [
            metric(f"scalescope/{name}", value, int(point.at * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for start in range(0, len(metrics), _METRICS_PER_CALL):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + _METRICS_PER_CALL])

    def finding(self, finding: Finding) -> None:
        state = "withdrawn" if finding.withdrawn else finding.severity
        self._client.set_tag(
            self.run_id, f"scalescope.finding.{finding.code}", f"{state}: {finding.sentence}"[:_MAX_TAG]
        )
