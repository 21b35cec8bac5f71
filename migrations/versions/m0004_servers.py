"""What several servers on one database agree upon: who judges a run, and which connection of a rank is the last."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "m0004"
down_revision = "m0003"

key = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("ledger", sa.Column("connection", sa.BigInteger, nullable=False, server_default="0"))
    op.create_table(
        "lease",
        sa.Column("run", key, sa.ForeignKey("run.key", ondelete="CASCADE"), primary_key=True),
        sa.Column("holder", sa.String(128), nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older revision")
