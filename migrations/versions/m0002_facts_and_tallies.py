"""Facts of windows, set-ups, modules, tallies and probes; more columns of updates."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "m0002"
down_revision = "m0001"

key = sa.BigInteger().with_variant(sa.Integer, "sqlite")
text_as_json = sa.JSON(none_as_null=True)

_OF_UPDATES = ("clip_coefficient", "forward_ms", "backward_ms", "optimizer_ms", "scheduler_steps")


def upgrade() -> None:
    for name in _OF_UPDATES:
        op.add_column("step", sa.Column(name, sa.Double))
    _modules()
    _tallies()
    _facts()


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older revision")


def _modules() -> None:
    op.add_column("layout", sa.Column("modules", sa.LargeBinary))
    # Of the layouts that are stored no modules were told.
    layout = sa.table("layout", sa.column("modules", sa.LargeBinary))
    op.execute(sa.update(layout).values(modules=b""))
    with op.batch_alter_table("layout") as altered:
        altered.alter_column("modules", existing_type=sa.LargeBinary(), nullable=False)
    op.create_table(
        "module",
        sa.Column("run", key, sa.ForeignKey("run.key", ondelete="CASCADE"), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("name", sa.String(512), nullable=False),
        sa.Column("kind", sa.String(512), nullable=False),
        sa.PrimaryKeyConstraint("run", "position"),
        sa.UniqueConstraint("run", "name"),
        sqlite_with_rowid=False,
    )


def _tallies() -> None:
    op.create_table(
        "tally",
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
        sa.Column("positions", sa.LargeBinary),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("names", text_as_json, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Index("tally_step", "run", "kind", "rank", "step"),
    )
    op.create_table(
        "tally_rollup",
        sa.Column("run", key, sa.ForeignKey("run.key", ondelete="CASCADE"), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("level", sa.SmallInteger, nullable=False),
        sa.Column("bucket", sa.BigInteger, nullable=False),
        sa.Column("periodic", sa.Boolean, nullable=False),
        sa.Column("scale", sa.Double, nullable=False),
        sa.Column("scale_flag", sa.SmallInteger, nullable=False),
        sa.Column("tallies", sa.LargeBinary, nullable=False),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("names", text_as_json, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("run", "kind", "rank", "level", "bucket", "periodic", "scale", "scale_flag"),
    )
    op.create_table(
        "probe",
        sa.Column("tally", key, sa.ForeignKey("tally.key", ondelete="CASCADE"), primary_key=True),
        sa.Column("data", text_as_json, nullable=False),
    )


def _facts() -> None:
    op.create_table(
        "window",
        sa.Column("segment", key, sa.ForeignKey("segment.key", ondelete="CASCADE"), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("first_step", sa.BigInteger, nullable=False),
        sa.Column("run", key, sa.ForeignKey("run.key", ondelete="CASCADE"), nullable=False),
        sa.Column("last_step", sa.BigInteger, nullable=False),
        sa.Column("data", text_as_json, nullable=False),
        sa.PrimaryKeyConstraint("segment", "rank", "first_step"),
        sa.Index("window_step", "run", "rank", "first_step", "segment"),
    )
    op.create_table(
        "setup",
        sa.Column("key", key, primary_key=True),
        sa.Column("run", key, sa.ForeignKey("run.key", ondelete="CASCADE"), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("segment", key, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("data", text_as_json, nullable=False),
        sa.Index("setup_step", "run", "rank", "step", "key"),
    )
