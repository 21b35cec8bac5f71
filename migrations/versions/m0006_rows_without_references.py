"""No reference from each update, scalar and bucket to what it belongs to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "m0006"
down_revision = "m0005"

key = sa.BigInteger().with_variant(sa.Integer, "sqlite")

_OWNERS = {"step": "run", "scalar": "series", "rollup": "series"}


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        for table, owner in _OWNERS.items():
            op.drop_constraint(f"{table}_{owner}_fkey", table, type_="foreignkey")
        return
    for rebuilt in (_step(), _scalar(), _rollup()):
        _rebuild(*rebuilt)


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older revision")


def _rebuild(name: str, columns: list[sa.Column[object]], keys: list[str]) -> None:
    """SQLite takes no constraint away from a table: its rows move to another one."""
    op.create_table(f"{name}_anew", *columns, sa.PrimaryKeyConstraint(*keys), sqlite_with_rowid=False)
    listed = ", ".join(f'"{column.name}"' for column in columns)
    op.execute(f"INSERT INTO {name}_anew ({listed}) SELECT {listed} FROM {name}")  # noqa: S608 - names of our own
    op.drop_table(name)
    op.rename_table(f"{name}_anew", name)


def _step() -> tuple[str, list[sa.Column[object]], list[str]]:
    numbers = ("loss", "learning_rate", "step_ms", "tokens", "clip_coefficient", "forward_ms", "backward_ms")
    columns = [
        sa.Column("run", key, nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("segment", key, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("scale", sa.Double),
        sa.Column("skipped", sa.SmallInteger, nullable=False),
        sa.Column("growth_tracker", sa.BigInteger),
        *(sa.Column(name, sa.Double) for name in (*numbers, "optimizer_ms", "scheduler_steps", "hook_ms")),
        sa.Column("nonfinite", sa.Integer, nullable=False),
    ]
    return "step", columns, ["run", "rank", "step", "segment"]


def _scalar() -> tuple[str, list[sa.Column[object]], list[str]]:
    columns = [
        sa.Column("series", key, nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("segment", key, nullable=False),
        sa.Column("value", sa.Double),
        sa.Column("flag", sa.SmallInteger, nullable=False),
    ]
    return "scalar", columns, ["series", "rank", "step", "segment"]


def _rollup() -> tuple[str, list[sa.Column[object]], list[str]]:
    columns = [
        sa.Column("series", key, nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("level", sa.SmallInteger, nullable=False),
        sa.Column("bucket", sa.BigInteger, nullable=False),
        sa.Column("n", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Double) for name in ("min", "max", "last")),
        sa.Column("last_step", sa.BigInteger, nullable=False),
        sa.Column("sum", sa.Double),
        sa.Column("nan", sa.BigInteger, nullable=False),
        sa.Column("inf", sa.BigInteger, nullable=False),
    ]
    return "rollup", columns, ["series", "rank", "level", "bucket"]
