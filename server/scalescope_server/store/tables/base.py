"""What all tables share: their metadata, and the types of keys and JSON."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, ForeignKey, Integer, MetaData

metadata = MetaData()

# SQLite numbers rows by itself only for a column whose type is exactly INTEGER.
Key = BigInteger().with_variant(Integer, "sqlite")
Json = JSON(none_as_null=True)


def run_key() -> Column[int]:
    """The run that a row belongs to, and is deleted with."""
    return Column("run", Key, ForeignKey("run.key", ondelete="CASCADE"), nullable=False)
