"""Runs, their segments, what was delivered of each, and what the indexes in their records mean.

A default is what rows have that were stored before there was the column.
"""

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
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

from scalescope_server.store.tables.base import Json, Key, metadata, run_key
from scalescope_server.store.values import Flag

# In percent: few rows, each changed with every commit, and staying in its page where there is room.
CHANGING = {"fillfactor": 50}

run = Table(
    "run",
    metadata,
    Column("key", Key, primary_key=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("project", String(512), nullable=False),
    Column("name", String(512), nullable=False),
    Column("tags", Json, nullable=False),
    Column("note", Text, nullable=False),
    Column("healthy", Boolean),
    Column("config", Json, nullable=False),
    Column("environment", Json, nullable=False),
    Column("scaler", Json),
    Column("optimizers", Json, nullable=False),
    Column("every", BigInteger, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("last_seen_at", Double, nullable=False),
    Column("ending", String(16)),
    # Of rank 0, kept in the transaction that stores the steps.
    Column("attempted", BigInteger, nullable=False),
    Column("skipped", BigInteger, nullable=False),
    Column("scale", Double, nullable=False),
    Column("scale_flag", SmallInteger, nullable=False),
    Column("last_step", BigInteger, nullable=False),
    # Of all ranks: one more than the highest update, one more than the highest step of any update or sample, and
    # the levels of roll-ups kept so far.
    Column("next_step", BigInteger, nullable=False),
    Column("length", BigInteger, nullable=False),
    Column("levels", SmallInteger, nullable=False),
    # The largest of its segments'. Above 1, what its ranks measured is merged as well (see ``merging``).
    Column("world_size", Integer, nullable=False, server_default="1"),
    # One more than the last step that retention has looked at: below it, updates are only kept exactly around events.
    Column("pruned_below", BigInteger, nullable=False, server_default="0"),
    # Deleted, and being erased: its id is one that none can ask for, so only lists have to leave it out.
    Column("doomed", Boolean, nullable=False, server_default=false()),
    Index("run_newest", "started_at", "key"),
    Index("run_project", "project", "started_at", "key"),
    postgresql_with=CHANGING,
)

segment = Table(
    "segment",
    metadata,
    Column("key", Key, primary_key=True),
    run_key(),
    Column("id", String(64), nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("ending", String(16)),
    Column("detail", Text),
    Column("backward_order", String(16), nullable=False),
    Column("world_size", Integer, nullable=False, server_default="1"),
    UniqueConstraint("run", "id"),
)

# The segments of deleted runs, by the ids that their trainers use: some still run, or have yet to push a file.
deleted = Table(
    "deleted",
    metadata,
    Column("run", String(64), nullable=False),
    Column("segment", String(64), nullable=False),
    PrimaryKeyConstraint("run", "segment"),
    sqlite_with_rowid=False,
)

# Delivery of one rank of one segment, what it attempted, and the facts of its last heartbeat. Times are by our clock.
ledger = Table(
    "ledger",
    metadata,
    Column("segment", Key, ForeignKey("segment.key", ondelete="CASCADE"), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("ranges", LargeBinary, nullable=False),
    Column("duplicate", BigInteger, nullable=False),
    # All that the trainer says it dropped; and of these, those that had a number and leave a gap.
    Column("dropped", BigInteger, nullable=False),
    Column("dropped_numbers", BigInteger, nullable=False),
    Column("highest_step", BigInteger, nullable=False),
    Column("highest_sample", BigInteger, nullable=False),
    Column("last_seen_at", Double, nullable=False),
    Column("ending", String(16)),
    Column("beat_at", Double),
    Column("progress_step", BigInteger),
    Column("progress_at", Double),
    Column("pending", BigInteger),
    Column("sent_bytes", BigInteger),
    Column("thread_cpu_s", Double),
    Column("attempted", BigInteger, nullable=False, server_default="0"),
    Column("skipped", BigInteger, nullable=False, server_default="0"),
    # That of the update ``scale_step``, -1 before the first.
    Column("scale", Double, nullable=False, server_default="0"),
    Column("scale_flag", SmallInteger, nullable=False, server_default=str(int(Flag.ABSENT))),
    Column("scale_step", BigInteger, nullable=False, server_default="-1"),
    # Whether it reports gradients, or leaves all of them to other ranks; null before its layout.
    Column("reports", Boolean),
    # How often it has connected. Only its last connection is listened to, whichever server that is with.
    Column("connection", BigInteger, nullable=False, server_default="0"),
    PrimaryKeyConstraint("segment", "rank"),
    sqlite_with_rowid=False,
    postgresql_with=CHANGING,
)

# What the indexes of one rank's records mean: ``positions`` int32 into ``parameter``, ``formats`` uint8 codes,
# ``modules`` int32 into ``module``; and ``parts`` (see ``parts``), empty where the rank reports everything whole.
layout = Table(
    "layout",
    metadata,
    Column("segment", Key, ForeignKey("segment.key", ondelete="CASCADE"), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("positions", LargeBinary, nullable=False),
    Column("formats", LargeBinary, nullable=False),
    Column("modules", LargeBinary, nullable=False),
    Column("parts", LargeBinary, nullable=False),
    PrimaryKeyConstraint("segment", "rank"),
)

parameter = Table(
    "parameter",
    metadata,
    run_key(),
    Column("position", Integer, nullable=False),
    Column("name", String(512), nullable=False),
    Column("module", String(512), nullable=False),
    Column("shape", Json, nullable=False),
    Column("dtype", String(512), nullable=False),
    Column("numel", BigInteger, nullable=False),
    Column("compute_format", String(512)),
    Column("backward", Integer),
    PrimaryKeyConstraint("run", "position"),
    UniqueConstraint("run", "name"),
    sqlite_with_rowid=False,
)

module = Table(
    "module",
    metadata,
    run_key(),
    Column("position", Integer, nullable=False),
    Column("name", String(512), nullable=False),
    Column("kind", String(512), nullable=False),
    PrimaryKeyConstraint("run", "position"),
    UniqueConstraint("run", "name"),
    sqlite_with_rowid=False,
)
