"""Prometheus text, checked line by line."""

from __future__ import annotations

import re

from scalescope_server.metrics import Metrics
from scalescope_server.store.delivery import Receipt
from scalescope_server.store.records import RunId

SAMPLE = re.compile(r'scalescope_[a-z_]+(\{[a-z]+="[^"]+"\})? [0-9.e+-]+')


def test_the_text_names_every_metric_with_help_and_type() -> None:
    metrics = Metrics("host:1", connections=2)
    metrics.committed(
        Receipt(RunId("r"), 0, 9, stored=7, duplicates=3, steps=(0, 1), samples=0, events=0, ended=False), 0.004
    )
    metrics.committed(
        Receipt(RunId("r"), 0, 9, stored=1, duplicates=0, steps=(1, 1), samples=0, events=0, ended=False), 60.0
    )
    text = metrics.exposition(runs={"running": 1, "silent": 2}, pages=4, judged=5, failing=(6, 7), hears=True)
    lines = text.splitlines()
    assert text.endswith("\n")
    assert {
        'scalescope_server_info{server="host:1"} 1',
        'scalescope_runs{state="running"} 1',
        'scalescope_runs{state="silent"} 2',
        "scalescope_ingest_connections 2",
        "scalescope_records_stored_total 8",
        "scalescope_records_duplicate_total 3",
        "scalescope_pages 4",
        "scalescope_judged_runs 5",
        "scalescope_judge_failures_total 6",
        "scalescope_unjudgeable_runs 7",
        "scalescope_hears_servers 1",
        'scalescope_commit_seconds_bucket{le="0.0025"} 0',
        'scalescope_commit_seconds_bucket{le="0.005"} 1',
        'scalescope_commit_seconds_bucket{le="10.0"} 1',
        'scalescope_commit_seconds_bucket{le="+Inf"} 2',
        "scalescope_commit_seconds_sum 60.004",
        "scalescope_commit_seconds_count 2",
    } <= set(lines)
    assert all(line.startswith(("# HELP", "# TYPE")) or SAMPLE.fullmatch(line) for line in lines)
