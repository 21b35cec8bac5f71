"""What the server counts of itself, as Prometheus reads it (text format 0.0.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scalescope_server.store.delivery import Receipt
from scalescope_server.store.records import RunState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Seconds. A commit on a local disk takes milliseconds; a locked database shows at the far end.
COMMIT_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class Metrics:
    """Counters of one server since it started. They belong to the event loop's thread.

    ``server``: its name among those that share the database.
    """

    server: str = ""
    connections: int = 0
    refused: int = 0
    records_stored: int = 0
    records_duplicate: int = 0
    commits: int = 0
    commit_seconds: float = 0.0
    _within: list[int] = field(default_factory=lambda: [0] * len(COMMIT_BOUNDS_S))

    def committed(self, receipt: Receipt, seconds: float) -> None:
        self.records_stored += receipt.stored
        self.records_duplicate += receipt.duplicates
        self.commits += 1
        self.commit_seconds += seconds
        for index, bound in enumerate(COMMIT_BOUNDS_S):
            self._within[index] += seconds <= bound

    def exposition(
        self, *, runs: Mapping[RunState, int], pages: int, judged: int, failing: tuple[int, int], hears: bool
    ) -> str:
        """All of them as text. ``runs``: how many runs are in each state; ``pages``: open live pages; ``judged``: how
        many runs no other server judges now; ``failing``: how often a run could not be judged, and of how many that is
        so now; ``hears``: whether other servers are heard at once.
        """
        failures, unjudgeable = failing
        lines = [
            *_family("server_info", "gauge", "Which server tells this.", {f'{{server="{self.server}"}}': 1}),
            *_family("runs", "gauge", "Runs by state.", {f'{{state="{s}"}}': n for s, n in sorted(runs.items())}),
            *_family("ingest_connections", "gauge", "Trainers connected now.", {"": self.connections}),
            *_family("ingest_refused_total", "counter", "Connections of trainers refused.", {"": self.refused}),
            *_family("records_stored_total", "counter", "Records committed.", {"": self.records_stored}),
            *_family("records_duplicate_total", "counter", "Records sent again.", {"": self.records_duplicate}),
            *_family("pages", "gauge", "Pages that listen for news now.", {"": pages}),
            *_family("judged_runs", "gauge", "Runs that this server alone judges now.", {"": judged}),
            *_family("judge_failures_total", "counter", "Failed attempts to judge a run.", {"": failures}),
            *_family("unjudgeable_runs", "gauge", "Runs that cannot be judged now.", {"": unjudgeable}),
            *_family("hears_servers", "gauge", "Whether other servers are heard at once.", {"": int(hears)}),
            *_family("commit_seconds", "histogram", "From a batch's arrival to its commit.", self._histogram()),
        ]
        return "\n".join(lines) + "\n"

    def _histogram(self) -> dict[str, float]:
        bounds = zip(COMMIT_BOUNDS_S, self._within, strict=True)
        buckets: dict[str, float] = {f'_bucket{{le="{bound}"}}': count for bound, count in bounds}
        return {**buckets, '_bucket{le="+Inf"}': self.commits, "_sum": self.commit_seconds, "_count": self.commits}


def _family(name: str, kind: str, text: str, values: dict[str, float]) -> list[str]:
    full = f"scalescope_{name}"
    head = [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
    return head + [f"{full}{suffix} {value}" for suffix, value in values.items()]
