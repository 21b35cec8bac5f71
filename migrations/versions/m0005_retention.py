"""What retention has removed of runs, and runs that are deleted piece by piece."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "m0005"
down_revision = "m0004"

key = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("run", sa.Column("pruned_below", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("run", sa.Column("doomed", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_table(
        "pruned",
        sa.Column("segment", key, sa.ForeignKey("segment.key", ondelete="CASCADE"), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("first_step", sa.BigInteger, nullable=False),
        sa.Column("run", key, sa.ForeignKey("run.key", ondelete="CASCADE"), nullable=False),
        sa.Column("last_step", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("segment", "rank", "first_step"),
        sqlite_with_rowid=False,
    )
    op.create_index("pruned_step", "pruned", ["run", "rank", "first_step"])


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older revision")
