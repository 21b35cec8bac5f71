"""What several ranks tell together and where they disagree, the hook's own cost, and more of each rank's delivery."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "m0003"
down_revision = "m0002"

key = sa.BigInteger().with_variant(sa.Integer, "sqlite")

# A scale that is not there, as the store flags it.
_ABSENT = "4"


def upgrade() -> None:
    op.add_column("step", sa.Column("hook_ms", sa.Double))
    # How many ranks a stored segment had was not told. Its ranks stay apart until one of them connects again.
    for table in ("run", "segment"):
        op.add_column(table, sa.Column("world_size", sa.Integer, nullable=False, server_default="1"))
    _layouts()
    _ledgers()
    _events()
    _tables()


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older revision")


def _layouts() -> None:
    op.add_column("layout", sa.Column("parts", sa.LargeBinary))
    layout = sa.table("layout", sa.column("parts", sa.LargeBinary))
    op.execute(sa.update(layout).values(parts=b""))
    with op.batch_alter_table("layout") as altered:
        altered.alter_column("parts", existing_type=sa.LargeBinary(), nullable=False)


def _ledgers() -> None:
    for column in (
        sa.Column("sent_bytes", sa.BigInteger),
        sa.Column("thread_cpu_s", sa.Double),
        sa.Column("attempted", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("skipped", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("scale", sa.Double, nullable=False, server_default="0"),
        sa.Column("scale_flag", sa.SmallInteger, nullable=False, server_default=_ABSENT),
        sa.Column("scale_step", sa.BigInteger, nullable=False, server_default="-1"),
        sa.Column("reports", sa.Boolean),
    ):
        op.add_column("ledger", column)
    op.execute(
        "UPDATE ledger SET attempted = counted.attempted, skipped = counted.skipped FROM (SELECT segment, rank, "
        "COUNT(*) AS attempted, SUM(skipped) AS skipped FROM step GROUP BY segment, rank) AS counted "
        "WHERE counted.segment = ledger.segment AND counted.rank = ledger.rank"
    )
    # The clock of the trainer had been stored; which by ours is not known.
    op.execute("UPDATE ledger SET progress_at = NULL")


def _events() -> None:
    op.add_column("event", sa.Column("of_run", sa.Boolean, nullable=False, server_default=sa.true()))
    op.execute(
        "UPDATE event SET of_run = FALSE WHERE EXISTS (SELECT 1 FROM event AS other WHERE other.run = event.run AND "
        "other.kind = event.kind AND other.step = event.step AND other.segment = event.segment AND "
        "other.rank < event.rank)"
    )


def _tables() -> None:
    op.create_table(
        "gathered",
        sa.Column("run", key, sa.ForeignKey("run.key", ondelete="CASCADE"), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("segment", key, nullable=False),
        sa.Column("ranks", sa.LargeBinary, nullable=False),
        sa.Column("expected", sa.Integer, nullable=False),
        sa.Column("sums", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("run", "kind", "step", "segment"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "disagreement",
        sa.Column("segment", key, sa.ForeignKey("segment.key", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.String(16), nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("segment", "name"),
        sqlite_with_rowid=False,
    )
