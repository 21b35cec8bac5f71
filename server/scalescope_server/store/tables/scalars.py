"""Updates and scalars, exact and folded into levels."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    UniqueConstraint,
)

from scalescope_server.store.tables.base import Key, metadata, run_key

# The series that are columns of ``step``. The order is stored (two bits each in ``nonfinite``): only append.
STEP_COLUMNS = (
    *("scale", "skipped", "growth_tracker", "loss", "learning_rate", "step_ms", "tokens"),
    *("clip_coefficient", "forward_ms", "backward_ms", "optimizer_ms", "scheduler_steps"),
    "hook_ms",
)

# Neither an update nor a scalar or bucket refers to what it belongs to: Postgres would look it up for each of them,
# which takes as long as storing it. Who stores any holds the run, and who deletes a run erases them (see ``erasing``).
step = Table(
    "step",
    metadata,
    Column("run", Key, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("segment", Key, nullable=False),
    Column("at", Double, nullable=False),
    Column("scale", Double),
    Column("skipped", SmallInteger, nullable=False),
    Column("growth_tracker", BigInteger),
    Column("loss", Double),
    Column("learning_rate", Double),
    Column("step_ms", Double),
    Column("tokens", Double),
    Column("clip_coefficient", Double),
    Column("forward_ms", Double),
    Column("backward_ms", Double),
    Column("optimizer_ms", Double),
    Column("scheduler_steps", Double),
    Column("hook_ms", Double),
    Column("nonfinite", Integer, nullable=False),
    PrimaryKeyConstraint("run", "rank", "step", "segment"),
    sqlite_with_rowid=False,
)

series = Table(
    "series",
    metadata,
    Column("key", Key, primary_key=True),
    run_key(),
    Column("name", String(512), nullable=False),
    UniqueConstraint("run", "name"),
)

scalar = Table(
    "scalar",
    metadata,
    Column("series", Key, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("segment", Key, nullable=False),
    Column("value", Double),
    Column("flag", SmallInteger, nullable=False),
    PrimaryKeyConstraint("series", "rank", "step", "segment"),
    sqlite_with_rowid=False,
)

# ``min``, ``max`` and ``sum`` (null once it left the range of float64) fold the ``n`` finite values; ``last`` is
# the value at ``last_step``, null if not finite.
rollup = Table(
    "rollup",
    metadata,
    Column("series", Key, nullable=False),
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
    sqlite_with_rowid=False,
    # In percent: a bucket changes with each batch, and stays in its page where there is room.
    postgresql_with={"fillfactor": 80},
)
