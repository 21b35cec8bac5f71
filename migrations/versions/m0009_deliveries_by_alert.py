"""Deliveries by the alert that they are of, who of a service's targets was reached, and the counts of what is gone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "m0009"
down_revision = "m0008"

key = sa.BigInteger().with_variant(sa.Integer, "sqlite")

# Several alerts of a run had one name where a rule was made again: the first that fired so often.
_OWNED = """
UPDATE delivery SET alert = (
    SELECT min(alert.key) FROM alert
    WHERE alert.run = delivery.run AND alert.name = delivery.rule AND alert.firings >= delivery.firing
)
"""


def upgrade() -> None:
    op.add_column("delivery", sa.Column("alert", key))
    op.add_column("delivery", sa.Column("reached", sa.JSON(none_as_null=True)))
    op.execute(_OWNED)
    op.create_index("delivery_alert", "delivery", ["alert", "channel", "state", "key"])
    op.create_index("alert_since", "alert", ["since_at", "key"])
    op.create_table(
        "forgotten",
        sa.Column("channel", sa.String(128), primary_key=True),
        sa.Column("delivered", sa.BigInteger, nullable=False),
        sa.Column("failed", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older revision")
