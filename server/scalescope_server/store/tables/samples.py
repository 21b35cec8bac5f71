"""Samples and tallies, one by one and folded into levels."""

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
)

from scalescope_server.store.tables.base import Json, Key, metadata, run_key

# A packed table (see ``scalescope.packing``): its header in columns, then its body. ``positions`` is int32 into
# ``parameter``, null when the rows are the run's first parameters in order.
sample = Table(
    "sample",
    metadata,
    Column("key", Key, primary_key=True),
    run_key(),
    Column("kind", String(16), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("segment", Key, nullable=False),
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
    run_key(),
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

# Sums and maxima of one step: ``names`` are its columns, ``body`` is zstd of float64 [columns, rows]. ``kind`` is what
# they count: those of a "parameter" or "module", or of the parameters in a "probe".
tally = Table(
    "tally",
    metadata,
    Column("key", Key, primary_key=True),
    run_key(),
    Column("kind", String(16), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("segment", Key, nullable=False),
    Column("at", Double, nullable=False),
    Column("reason", String(16), nullable=False),
    Column("scale", Double, nullable=False),
    Column("scale_flag", SmallInteger, nullable=False),
    Column("positions", LargeBinary),
    Column("rows", Integer, nullable=False),
    Column("names", Json, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("tally_step", "run", "kind", "rank", "step"),
)

# The tallies of one bucket at one scale folded, rows in order; ``tallies`` is zstd of int64 [rows].
tally_rollup = Table(
    "tally_rollup",
    metadata,
    run_key(),
    Column("kind", String(16), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("level", SmallInteger, nullable=False),
    Column("bucket", BigInteger, nullable=False),
    Column("periodic", Boolean, nullable=False),
    Column("scale", Double, nullable=False),
    Column("scale_flag", SmallInteger, nullable=False),
    Column("tallies", LargeBinary, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("names", Json, nullable=False),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("run", "kind", "rank", "level", "bucket", "periodic", "scale", "scale_flag"),
)

# A reference probe: what is told of it beside its tally.
probe = Table(
    "probe",
    metadata,
    Column("tally", Key, ForeignKey("tally.key", ondelete="CASCADE"), primary_key=True),
    Column("data", Json, nullable=False),
)
