"""The tables, in types that SQLite and Postgres share.

Inside, runs and segments are integers; the ids that people and trainers use stand once, in ``run`` and
``segment``. Deleting a run deletes everything that refers to it. Steps are counted on the run's axis, so a
resumed segment goes on where the last one stopped, and the segment is part of the key: a late delivery from
an older segment overlaps the newer one and overwrites nothing.

Floats that may be NaN or infinite are a nullable value beside a flag (see ``values``).
"""

from __future__ import annotations

from scalescope_server.store.tables.alerts import (
    alert,
    channel,
    delivery,
    forgotten,
    rule,
    rulebook,
    silence,
    transition,
)
from scalescope_server.store.tables.base import metadata
from scalescope_server.store.tables.history import event, finding, judgement, lease, setup, window
from scalescope_server.store.tables.ranks import ALL_RANKS, disagreement, gathered
from scalescope_server.store.tables.retention import pruned
from scalescope_server.store.tables.runs import deleted, layout, ledger, module, parameter, run, segment
from scalescope_server.store.tables.samples import probe, sample, sample_rollup, tally, tally_rollup
from scalescope_server.store.tables.scalars import STEP_COLUMNS, rollup, scalar, series, step

__all__ = [
    "ALL_RANKS",
    "STEP_COLUMNS",
    "alert",
    "channel",
    "deleted",
    "delivery",
    "disagreement",
    "event",
    "finding",
    "forgotten",
    "gathered",
    "judgement",
    "layout",
    "lease",
    "ledger",
    "metadata",
    "module",
    "parameter",
    "probe",
    "pruned",
    "rollup",
    "rule",
    "rulebook",
    "run",
    "sample",
    "sample_rollup",
    "scalar",
    "segment",
    "series",
    "setup",
    "silence",
    "step",
    "tally",
    "tally_rollup",
    "transition",
    "window",
]
