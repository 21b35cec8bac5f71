"""What is no longer kept exactly."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, PrimaryKeyConstraint, Table

from scalescope_server.store.tables.base import Key, metadata, run_key

# Updates ``first_step`` to ``last_step``, both in it, that a rank of a segment had told, and of which the roll-ups are
# what is left. Those of one rank do not overlap. What comes late of them must not be counted anew.
pruned = Table(
    "pruned",
    metadata,
    Column("segment", Key, ForeignKey("segment.key", ondelete="CASCADE"), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("first_step", BigInteger, nullable=False),
    run_key(),
    Column("last_step", BigInteger, nullable=False),
    PrimaryKeyConstraint("segment", "rank", "first_step"),
    Index("pruned_step", "run", "rank", "first_step"),
    sqlite_with_rowid=False,
)
