"""What the ranks of one segment tell together, and where they do not agree.

In the tables of roll-ups and scalars the rank ``ALL_RANKS`` stands for the merge of all of them.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Integer, LargeBinary, PrimaryKeyConstraint, String, Table

from scalescope_server.store.tables.base import Key, metadata, run_key

ALL_RANKS = -1

# What the series of one step are read out of, added up over the ranks that have told it: ``ranks`` int32, ``sums``
# float64 (see ``derived``), and how many ranks are expected. ``kind``: "grad" or "update".
gathered = Table(
    "gathered",
    metadata,
    run_key(),
    Column("kind", String(16), nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("segment", Key, nullable=False),
    Column("ranks", LargeBinary, nullable=False),
    Column("expected", Integer, nullable=False),
    Column("sums", LargeBinary, nullable=False),
    PrimaryKeyConstraint("run", "kind", "step", "segment"),
    sqlite_with_rowid=False,
)

# The first step at which two ranks told another value of the series ``name``.
disagreement = Table(
    "disagreement",
    metadata,
    Column("segment", Key, ForeignKey("segment.key", ondelete="CASCADE"), nullable=False),
    Column("name", String(16), nullable=False),
    Column("step", BigInteger, nullable=False),
    PrimaryKeyConstraint("segment", "name"),
    sqlite_with_rowid=False,
)
