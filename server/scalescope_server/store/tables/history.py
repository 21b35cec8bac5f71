"""What happened and what held: events, windows, set-ups; and what is found of it."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    true,
)

from scalescope_server.store.tables.base import Json, Key, metadata, run_key

event = Table(
    "event",
    metadata,
    Column("key", Key, primary_key=True),
    run_key(),
    Column("step", BigInteger, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("segment", Key, nullable=False),
    Column("at", Double, nullable=False),
    Column("data", Json, nullable=False),
    Column("culprit", Text),
    # Whether it is the run's own: the first that came of its kind and step, of several ranks that tell the same.
    Column("of_run", Boolean, nullable=False, server_default=true()),
    Index("event_step", "run", "step", "key"),
    Index("event_kind", "run", "kind", "step", "key"),
)

finding = Table(
    "finding",
    metadata,
    run_key(),
    Column("code", String(64), nullable=False),
    Column("subject", String(512), nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("severity", String(16), nullable=False),
    Column("sentence", Text, nullable=False),
    Column("evidence", Json, nullable=False),
    Column("advice", Text, nullable=False),
    Column("last_step", BigInteger),
    Column("seen_step", BigInteger, nullable=False),
    PrimaryKeyConstraint("run", "code", "subject", "first_step"),
    sqlite_with_rowid=False,
)

# ``updates`` went into ``state``, of which the findings are made. ``rules_segment``, ``rules_step``: the last update at
# which rules were evaluated; null before the first.
judgement = Table(
    "judgement",
    metadata,
    Column("run", Key, ForeignKey("run.key", ondelete="CASCADE"), primary_key=True),
    Column("updates", BigInteger, nullable=False),
    Column("state", LargeBinary, nullable=False),
    Column("rules_segment", Integer),
    Column("rules_step", BigInteger),
)

# Which server judges a run, until when by the database's clock, and how often that has changed (see ``leases``).
lease = Table(
    "lease",
    metadata,
    Column("run", Key, ForeignKey("run.key", ondelete="CASCADE"), primary_key=True),
    Column("holder", String(128), nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("until", Double, nullable=False),
)

# The facts of consecutive updates that are alike, ``first_step`` to ``last_step``. Those of one segment and rank do
# not overlap.
window = Table(
    "window",
    metadata,
    Column("segment", Key, ForeignKey("segment.key", ondelete="CASCADE"), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("first_step", BigInteger, nullable=False),
    run_key(),
    Column("last_step", BigInteger, nullable=False),
    Column("data", Json, nullable=False),
    PrimaryKeyConstraint("segment", "rank", "first_step"),
    Index("window_step", "run", "rank", "first_step", "segment"),
)

# What holds of a training from ``step`` on.
setup = Table(
    "setup",
    metadata,
    Column("key", Key, primary_key=True),
    run_key(),
    Column("rank", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("segment", Key, nullable=False),
    Column("at", Double, nullable=False),
    Column("data", Json, nullable=False),
    Index("setup_step", "run", "rank", "step", "key"),
)
