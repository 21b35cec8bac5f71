"""Rules, alerts with their transitions, the outbox of notifications, silences, channels; how far rules are judged."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "m0008"
down_revision = "m0007"

key = sa.BigInteger().with_variant(sa.Integer, "sqlite")
json = sa.JSON(none_as_null=True)


def upgrade() -> None:
    op.add_column("judgement", sa.Column("rules_segment", sa.Integer))
    op.add_column("judgement", sa.Column("rules_step", sa.BigInteger))
    _rules()
    _alerts()
    _telling()


def _rules() -> None:
    op.create_table(
        "rule",
        sa.Column("key", key, primary_key=True),
        sa.Column("name", sa.String(256), nullable=False, unique=True),
        sa.Column("enabled", sa.Boolean, nullable=False),
        sa.Column("spec", json, nullable=False),
        sa.Column("pack", sa.Integer),
        sa.Column("edited", sa.Boolean, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("changed_at", sa.Double, nullable=False),
    )
    op.create_table(
        "rulebook",
        sa.Column("key", key, primary_key=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
    )


def _alerts() -> None:
    op.create_table(
        "alert",
        sa.Column("key", key, primary_key=True),
        sa.Column("run", key, sa.ForeignKey("run.key", ondelete="CASCADE"), nullable=False),
        sa.Column("rule", key, sa.ForeignKey("rule.key", ondelete="SET NULL")),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("since_step", sa.BigInteger),
        sa.Column("since_at", sa.Double, nullable=False),
        sa.Column("value", sa.Double, nullable=False),
        sa.Column("value_flag", sa.SmallInteger, nullable=False),
        sa.Column("culprit", sa.Text),
        sa.Column("sentence", sa.Text, nullable=False),
        sa.Column("firings", sa.BigInteger, nullable=False),
        sa.Column("is_open", sa.Boolean, nullable=False),
        sa.Column("acknowledged_at", sa.Double),
        sa.Column("muted_until", sa.Double),
        sa.Column("kept", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("run", "rule"),
        postgresql_with={"fillfactor": 50},
    )
    op.create_index("alert_state", "alert", ["state", "key"])
    op.create_index("alert_rule", "alert", ["rule"])
    op.create_table(
        "transition",
        sa.Column("key", key, primary_key=True),
        sa.Column("alert", key, sa.ForeignKey("alert.key", ondelete="CASCADE"), nullable=False),
        sa.Column("firing", sa.BigInteger, nullable=False),
        sa.Column("from_state", sa.String(16), nullable=False),
        sa.Column("to_state", sa.String(16), nullable=False),
        sa.Column("step", sa.BigInteger),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("value", sa.Double, nullable=False),
        sa.Column("value_flag", sa.SmallInteger, nullable=False),
        sa.Column("culprit", sa.Text),
        sa.Column("sentence", sa.Text, nullable=False),
    )
    op.create_index("transition_alert", "transition", ["alert", "key"])


def _telling() -> None:
    op.create_table(
        "delivery",
        sa.Column("key", key, primary_key=True),
        sa.Column("run", key, sa.ForeignKey("run.key", ondelete="CASCADE"), nullable=False),
        sa.Column("channel", sa.String(128), nullable=False),
        sa.Column("rule", sa.String(256), nullable=False),
        sa.Column("firing", sa.BigInteger, nullable=False),
        sa.Column("happened", sa.String(16), nullable=False),
        sa.Column("id", sa.String(64), nullable=False, unique=True),
        sa.Column("notice", json, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("due_at", sa.Double, nullable=False),
        sa.Column("message", sa.String(64)),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("holder", sa.String(128)),
        sa.Column("leased_until", sa.Double),
        sa.Column("tried_at", sa.Double),
        sa.Column("took_s", sa.Double),
        sa.Column("error", sa.Text),
    )
    op.create_index("delivery_due", "delivery", ["state", "due_at"])
    op.create_index("delivery_run", "delivery", ["run", "key"])
    op.create_table(
        "silence",
        sa.Column("key", key, primary_key=True),
        sa.Column("project", sa.String(512), nullable=False),
        sa.Column("starts_at", sa.Double, nullable=False),
        sa.Column("ends_at", sa.Double, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    op.create_table(
        "channel",
        sa.Column("key", key, primary_key=True),
        sa.Column("name", sa.String(128), nullable=False, unique=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("config", json, nullable=False),
        sa.Column("enabled", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("a database is never taken back to an older revision")
