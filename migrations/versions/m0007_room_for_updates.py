"""Room in the pages of tables whose rows change again and again, so that a changed row stays in its page.

Measured on Postgres 18 with 40 series in batches of 20 updates: of the buckets that changed 2 % stayed in their page
before and 88 % with a fifth of it free, and the table took half the space. SQLite changes rows where they are.
"""

from __future__ import annotations

from alembic import op

revision = "m0007"
down_revision = "m0006"

# How full a page is made, in percent. Of the second sort there are few rows, each changed with every commit.
_FILLED = {"rollup": 80, "run": 50, "ledger": 50}


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        for table, percent in _FILLED.items():
            op.execute(f"ALTER TABLE {table} SET (fillfactor = {percent})")


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older revision")
