"""The first tables: runs, their updates, samples, events, roll-ups, delivery and judgements."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "m0001"
down_revision = None

key = sa.BigInteger().with_variant(sa.Integer, "sqlite")
text_as_json = sa.JSON(none_as_null=True)


def upgrade() -> None:
    _runs()
    _parameters()
    _scalars()
    _samples()
    _happenings()


def downgrade() -> None:
    raise NotImplementedError("there is nothing before the first revision")


def _runs() -> None:
    op.create_table(
        "run",
        sa.Column("key", key, primary_key=True),
        sa.Column("id", sa.String(64), nullable=False, unique=True),
        sa.Column("project", sa.String(512), nullable=False),
        sa.Column("name", sa.String(512), nullable=False),
        sa.Column("tags", text_as_json, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("healthy", sa.Boolean),
        sa.Column("config", text_as_json, nullable=False),
        sa.Column("environment", text_as_json, nullable=False),
        sa.Column("scaler", text_as_json),
        sa.Column("optimizers", text_as_json, nullable=False),
        sa.Column("every", sa.BigInteger, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("last_seen_at", sa.Double, nullable=False),
        sa.Column("ending", sa.String(16)),
        sa.Column("attempted", sa.BigInteger, nullable=False),
        sa.Column("skipped", sa.BigInteger, nullable=False),
        sa.Column("scale", sa.Double, nullable=False),
        sa.Column("scale_flag", sa.SmallInteger, nullable=False),
        sa.Column("last_step", sa.BigInteger, nullable=False),
        sa.Column("next_step", sa.BigInteger, nullable=False),
        sa.Column("length", sa.BigInteger, nullable=False),
        sa.Column("levels", sa.SmallInteger, nullable=False),
        sa.Index("run_newest", "started_at", "key"),
        sa.Index("run_project", "project", "started_at", "key"),
    )
    op.create_table(
        "segment",
        sa.Column("key", key, primary_key=True),
        sa.Column("run", key, sa.ForeignKey("run.key", ondelete="CASCADE"), nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("ordinal", sa.Integer, nullable=False),
        sa.Column("first_step", sa.BigInteger, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double),
        sa.Column("ending", sa.String(16)),
        sa.Column("detail", sa.Text),
        sa.Column("backward_order", sa.String(16), nullable=False),
        sa.UniqueConstraint("run", "id"),
    )
    op.create_table(
        "deleted",
        sa.Column("run", sa.String(64), nullable=False),
        sa.Column("segment", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("run", "segment"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ledger",
        sa.Column("segment", key, sa.ForeignKey("segment.key", ondelete="CASCADE"), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("ranges", sa.LargeBinary, nullable=False),
        sa.Column("duplicate", sa.BigInteger, nullable=False),
        sa.Column("dropped", sa.BigInteger, nullable=False),
        sa.Column("dropped_numbers", sa.BigInteger, nullable=False),
        sa.Column("highest_step", sa.BigInteger, nullable=False),
        sa.Column("highest_sample", sa.BigInteger, nullable=False),
        sa.Column("last_seen_at", sa.Double, nullable=False),
        sa.Column("ending", sa.String(16)),
        sa.Column("beat_at", sa.Double),
        sa.Column("progress_step", sa.BigInteger),
        sa.Column("progress_at", sa.Double),
        sa.Column("pending", sa.BigInteger),
        sa.PrimaryKeyConstraint("segment", "rank"),
        sqlite_with_rowid=False,
    )


def _parameters() -> None:
    op.create_table(
        "layout",
        sa.Column("segment", key, sa.ForeignKey("segment.key", ondelete="CASCADE"), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("positions", sa.LargeBinary, nullable=False),
        sa.Column("formats", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("segment", "rank"),
    )
    op.create_table(
        "parameter",
        sa.Column("run", key, sa.ForeignKey("run.key", ondelete="CASCADE"), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("name", sa.String(512), nullable=False),
        sa.Column("module", sa.String(512), nullable=False),
        sa.Column("shape", text_as_json, nullable=False),
        sa.Column("dtype", sa.String(512), nullable=False),
        sa.Column("numel", sa.BigInteger, nullable=False),
        sa.Column("compute_format", sa.String(512)),
        sa.Column("backward", sa.Integer),
        sa.PrimaryKeyConstraint("run", "position"),
        sa.UniqueConstraint("run", "name"),
        sqlite_with_rowid=False,
    )


def _scalars() -> None:
    op.create_table(
        "step",
        sa.Column("run", key, sa.ForeignKey("run.key", ondelete="CASCADE"), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("segment", key, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("scale", sa.Double),
        sa.Column("skipped", sa.SmallInteger, nullable=False),
        sa.Column("growth_tracker", sa.BigInteger),
        sa.Column("loss", sa.Double),
        sa.Column("learning_rate", sa.Double),
        sa.Column("step_ms", sa.Double),
        sa.Column("tokens", sa.Double),
        sa.Column("nonfinite", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("run", "rank", "step", "segment"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "series",
        sa.Column("key", key, primary_key=True),
        sa.Column("run", key, sa.ForeignKey("run.key", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.String(512), nullable=False),
        sa.UniqueConstraint("run", "name"),
    )
    op.create_table(
        "scalar",
        sa.Column("series", key, nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("segment", key, nullable=False),
        sa.Column("value", sa.Double),
        sa.Column("flag", sa.SmallInteger, nullable=False),
        sa.PrimaryKeyConstraint("series", "rank", "step", "segment"),
        sa.ForeignKeyConstraint(["series"], ["series.key"], ondelete="CASCADE"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "rollup",
        sa.Column("series", key, nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("level", sa.SmallInteger, nullable=False),
        sa.Column("bucket", sa.BigInteger, nullable=False),
        sa.Column("n", sa.BigInteger, nullable=False),
        sa.Column("min", sa.Double),
        sa.Column("max", sa.Double),
        sa.Column("last", sa.Double),
        sa.Column("last_step", sa.BigInteger, nullable=False),
        sa.Column("sum", sa.Double),
        sa.Column("nan", sa.BigInteger, nullable=False),
        sa.Column("inf", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("series", "rank", "level", "bucket"),
        sa.ForeignKeyConstraint(["series"], ["series.key"], ondelete="CASCADE"),
        sqlite_with_rowid=False,
    )


def _samples() -> None:
    op.create_table(
        "sample",
        sa.Column("key", key, primary_key=True),
        sa.Column("run", key, sa.ForeignKey("run.key", ondelete="CASCADE"), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("segment", key, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("reason", sa.String(16), nullable=False),
        sa.Column("scale", sa.Double, nullable=False),
        sa.Column("scale_flag", sa.SmallInteger, nullable=False),
        sa.Column("micro_batches", sa.BigInteger),
        sa.Column("positions", sa.LargeBinary),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("low", sa.SmallInteger, nullable=False),
        sa.Column("bins", sa.SmallInteger, nullable=False),
        sa.Column("width", sa.SmallInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Index("sample_step", "run", "kind", "rank", "step"),
    )
    op.create_table(
        "sample_rollup",
        sa.Column("run", key, sa.ForeignKey("run.key", ondelete="CASCADE"), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("level", sa.SmallInteger, nullable=False),
        sa.Column("bucket", sa.BigInteger, nullable=False),
        sa.Column("periodic", sa.Boolean, nullable=False),
        sa.Column("scale", sa.Double, nullable=False),
        sa.Column("scale_flag", sa.SmallInteger, nullable=False),
        sa.Column("samples", sa.LargeBinary, nullable=False),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("low", sa.SmallInteger, nullable=False),
        sa.Column("bins", sa.SmallInteger, nullable=False),
        sa.Column("width", sa.SmallInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("run", "kind", "rank", "level", "bucket", "periodic", "scale", "scale_flag"),
    )


def _happenings() -> None:
    op.create_table(
        "event",
        sa.Column("key", key, primary_key=True),
        sa.Column("run", key, sa.ForeignKey("run.key", ondelete="CASCADE"), nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("segment", key, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("data", text_as_json, nullable=False),
        sa.Column("culprit", sa.Text),
        sa.Index("event_step", "run", "step", "key"),
        sa.Index("event_kind", "run", "kind", "step", "key"),
    )
    op.create_table(
        "finding",
        sa.Column("run", key, sa.ForeignKey("run.key", ondelete="CASCADE"), nullable=False),
        sa.Column("code", sa.String(64), nullable=False),
        sa.Column("subject", sa.String(512), nullable=False),
        sa.Column("first_step", sa.BigInteger, nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("sentence", sa.Text, nullable=False),
        sa.Column("evidence", text_as_json, nullable=False),
        sa.Column("advice", sa.Text, nullable=False),
        sa.Column("last_step", sa.BigInteger),
        sa.Column("seen_step", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("run", "code", "subject", "first_step"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "judgement",
        sa.Column("run", key, sa.ForeignKey("run.key", ondelete="CASCADE"), primary_key=True),
        sa.Column("updates", sa.BigInteger, nullable=False),
        sa.Column("state", sa.LargeBinary, nullable=False),
    )
