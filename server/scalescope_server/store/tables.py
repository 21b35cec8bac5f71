"""The tables, in types that SQLite and Postgres share.

Inside, runs and segments are integers; the ids that people and trainers use stand once, in ``run`` and
``segment``. Deleting a run deletes everything that refers to it. Steps are counted on the run's axis, so a
resumed segment goes on where the last one stopped, and the segment is part of the key: a late delivery from
an older segment overlaps the newer one and overwrites nothing.

Floats that may be NaN or infinite are a nullable value beside a flag (see ``values``).
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
)

# The series that are columns of ``step``. The order is stored (two bits each in ``nonfinite``): only append.
STEP_COLUMNS = ("scale", "skipped", "growth_tracker", "loss", "learning_rate", "step_ms", "tokens")

metadata = MetaData()

# SQLite numbers rows by itself only for a column whose type is exactly INTEGER.
_Key = BigInteger().with_variant(Integer, "sqlite")
_Json = JSON(none_as_null=True)


def _run_key() -> Column[int]:
    return Column("run", _Key, ForeignKey("run.key", ondelete="CASCADE"), nullable=False)


run = Table(
    "run",
    metadata,
    Column("key", _Key, primary_key=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("project", String(512), nullable=False),
    Column("name", String(512), nullable=False),
    Column("tags", _Json, nullable=False),
    Column("note", Text, nullable=False),
    Column("healthy", Boolean),
    Column("config", _Json, nullable=False),
    Column("environment", _Json, nullable=False),
    Column("scaler", _Json),
    Column("optimizers", _Json, nullable=False),
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
    Index("run_newest", "started_at", "key"),
    Index("run_project", "project", "started_at", "key"),
)

segment = Table(
    "segment",
    metadata,
    Column("key", _Key, primary_key=True),
    _run_key(),
    Column("id", String(64), nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("ending", String(16)),
    Column("detail", Text),
    Column("backward_order", String(16), nullable=False),
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

# Delivery of one rank of one segment, and the facts of its last heartbeat.
ledger = Table(
    "ledger",
    metadata,
    Column("segment", _Key, ForeignKey("segment.key", ondelete="CASCADE"), nullable=False),
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
    PrimaryKeyConstraint("segment", "rank"),
    sqlite_with_rowid=False,
)

# What the indexes of one rank's records mean: ``positions`` int32 into ``parameter``, ``formats`` uint8 codes.
layout = Table(
    "layout",
    metadata,
    Column("segment", _Key, ForeignKey("segment.key", ondelete="CASCADE"), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("positions", LargeBinary, nullable=False),
    Column("formats", LargeBinary, nullable=False),
    PrimaryKeyConstraint("segment", "rank"),
)

parameter = Table(
    "parameter",
    metadata,
    _run_key(),
    Column("position", Integer, nullable=False),
    Column("name", String(512), nullable=False),
    Column("module", String(512), nullable=False),
    Column("shape", _Json, nullable=False),
    Column("dtype", String(512), nullable=False),
    Column("numel", BigInteger, nullable=False),
    Column("compute_format", String(512)),
    Column("backward", Integer),
    PrimaryKeyConstraint("run", "position"),
    UniqueConstraint("run", "name"),
    sqlite_with_rowid=False,
)

step = Table(
    "step",
    metadata,
    _run_key(),
    Column("rank", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("segment", _Key, nullable=False),
    Column("at", Double, nullable=False),
    Column("scale", Double),
    Column("skipped", SmallInteger, nullable=False),
    Column("growth_tracker", BigInteger),
    Column("loss", Double),
    Column("learning_rate", Double),
    Column("step_ms", Double),
    Column("tokens", Double),
    Column("nonfinite", Integer, nullable=False),
    PrimaryKeyConstraint("run", "rank", "step", "segment"),
    sqlite_with_rowid=False,
)

series = Table(
    "series",
    metadata,
    Column("key", _Key, primary_key=True),
    _run_key(),
    Column("name", String(512), nullable=False),
    UniqueConstraint("run", "name"),
)

scalar = Table(
    "scalar",
    metadata,
    Column("series", _Key, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("segment", _Key, nullable=False),
    Column("value", Double),
    Column("flag", SmallInteger, nullable=False),
    PrimaryKeyConstraint("series", "rank", "step", "segment"),
    ForeignKeyConstraint(["series"], ["series.key"], ondelete="CASCADE"),
    sqlite_with_rowid=False,
)

# ``min``, ``max`` and ``sum`` (null once it left the range of float64) fold the ``n`` finite values; ``last`` is
# the value at ``last_step``, null if not finite.
rollup = Table(
    "rollup",
    metadata,
    Column("series", _Key, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("level", SmallInteger, nullable=False),
    Column("bucket", BigInteger, nullable=False),
    Column("n", BigInteger, nullable=False),
    Column("min", Double),
    Column("max", Double),
    Column("last", Double),
    Column("last_step", BigInteger, nullable=False),
    Column("sum", Double),
    Column("nan", BigInteger, nullable=False),
    Column("inf", BigInteger, nullable=False),
    PrimaryKeyConstraint("series", "rank", "level", "bucket"),
    ForeignKeyConstraint(["series"], ["series.key"], ondelete="CASCADE"),
    sqlite_with_rowid=False,
)

# A packed table (see ``scalescope.packing``): its header in columns, then its body. ``positions`` is int32 into
# ``parameter``, null when the rows are the run's first parameters in order.
sample = Table(
    "sample",
    metadata,
    Column("key", _Key, primary_key=True),
    _run_key(),
    Column("kind", String(16), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("segment", _Key, nullable=False),
    Column("at", Double, nullable=False),
    Column("reason", String(16), nullable=False),
    Column("scale", Double, nullable=False),
    Column("scale_flag", SmallInteger, nullable=False),
    Column("micro_batches", BigInteger),
    Column("positions", LargeBinary),
    Column("rows", Integer, nullable=False),
    Column("low", SmallInteger, nullable=False),
    Column("bins", SmallInteger, nullable=False),
    Column("width", SmallInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("sample_step", "run", "kind", "rank", "step"),
)

# The samples of one bucket at one scale added up, rows in parameter order; ``samples`` is zstd of int64 [rows].
sample_rollup = Table(
    "sample_rollup",
    metadata,
    _run_key(),
    Column("kind", String(16), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("level", SmallInteger, nullable=False),
    Column("bucket", BigInteger, nullable=False),
    Column("periodic", Boolean, nullable=False),
    Column("scale", Double, nullable=False),
    Column("scale_flag", SmallInteger, nullable=False),
    Column("samples", LargeBinary, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("low", SmallInteger, nullable=False),
    Column("bins", SmallInteger, nullable=False),
    Column("width", SmallInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("run", "kind", "rank", "level", "bucket", "periodic", "scale", "scale_flag"),
)

event = Table(
    "event",
    metadata,
    Column("key", _Key, primary_key=True),
    _run_key(),
    Column("step", BigInteger, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("segment", _Key, nullable=False),
    Column("at", Double, nullable=False),
    Column("data", _Json, nullable=False),
    Column("culprit", Text),
    Index("event_step", "run", "step", "key"),
    Index("event_kind", "run", "kind", "step", "key"),
)

finding = Table(
    "finding",
    metadata,
    _run_key(),
    Column("code", String(64), nullable=False),
    Column("subject", String(512), nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("severity", String(16), nullable=False),
    Column("sentence", Text, nullable=False),
    Column("evidence", _Json, nullable=False),
    Column("advice", Text, nullable=False),
    Column("last_step", BigInteger),
    Column("seen_step", BigInteger, nullable=False),
    PrimaryKeyConstraint("run", "code", "subject", "first_step"),
    sqlite_with_rowid=False,
)

judgement = Table(
    "judgement",
    metadata,
    Column("run", _Key, ForeignKey("run.key", ondelete="CASCADE"), primary_key=True),
    Column("updates", BigInteger, nullable=False),
    Column("state", LargeBinary, nullable=False),
)
