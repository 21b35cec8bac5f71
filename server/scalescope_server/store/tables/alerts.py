"""Rules, what is judged by them, and what is told of it.

``at`` of alerts and transitions is the time of the update or moment that was judged; ``created_at`` and the like are by
the clock of the server that wrote them. All in seconds since the epoch.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from scalescope_server.store.tables.base import Json, Key, metadata, run_key
from scalescope_server.store.tables.runs import CHANGING

# ``spec``: the whole rule (``rules.spec``); ``name`` and ``enabled`` are its own. ``pack``: the version of the
# built-in pack that it comes from, null for a user's; ``edited``: whether a user has changed it since. ``revision``:
# that of the rule book at its last change.
rule = Table(
    "rule",
    metadata,
    Column("key", Key, primary_key=True),
    Column("name", String(256), nullable=False, unique=True),
    Column("enabled", Boolean, nullable=False),
    Column("spec", Json, nullable=False),
    Column("pack", Integer),
    Column("edited", Boolean, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("changed_at", Double, nullable=False),
)

# One row, whose ``revision`` grows with each change of any rule: who judges sees in one look whether theirs still hold.
rulebook = Table(
    "rulebook",
    metadata,
    Column("key", Key, primary_key=True),
    Column("revision", BigInteger, nullable=False),
)

# What one rule says of one run, once it has had anything to say. ``rule`` is null once the rule is deleted, so its name
# and severity are kept. ``kept``: all that the state machine remembers (``rules.alert``), of which the columns repeat
# what is asked for. ``firings``: how often it began to fire; ``is_open``: the last of them is not over, whatever its
# state. ``acknowledged_at``: of that firing.
alert = Table(
    "alert",
    metadata,
    Column("key", Key, primary_key=True),
    run_key(),
    Column("rule", Key, ForeignKey("rule.key", ondelete="SET NULL")),
    Column("name", String(256), nullable=False),
    Column("severity", String(16), nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("since_step", BigInteger),
    Column("since_at", Double, nullable=False),
    Column("value", Double, nullable=False),
    Column("value_flag", SmallInteger, nullable=False),
    Column("culprit", Text),
    Column("sentence", Text, nullable=False),
    Column("firings", BigInteger, nullable=False),
    Column("is_open", Boolean, nullable=False),
    Column("acknowledged_at", Double),
    Column("muted_until", Double),
    Column("kept", LargeBinary, nullable=False),
    UniqueConstraint("run", "rule"),
    Index("alert_state", "state", "key"),
    Index("alert_rule", "rule"),
    Index("alert_since", "since_at", "key"),
    postgresql_with=CHANGING,
)

# Each change of an alert's state, in the order of the keys. ``firing``: the number of the firing that it belongs to, 0
# before the first. ``step`` is null where time passed and no update came. ``sentence``: why it could not be evaluated,
# or what ended it beside its condition.
transition = Table(
    "transition",
    metadata,
    Column("key", Key, primary_key=True),
    Column("alert", Key, ForeignKey("alert.key", ondelete="CASCADE"), nullable=False),
    Column("firing", BigInteger, nullable=False),
    Column("from_state", String(16), nullable=False),
    Column("to_state", String(16), nullable=False),
    Column("step", BigInteger),
    Column("at", Double, nullable=False),
    Column("value", Double, nullable=False),
    Column("value_flag", SmallInteger, nullable=False),
    Column("culprit", Text),
    Column("sentence", Text, nullable=False),
    Index("transition_alert", "alert", "key"),
)

# The outbox: what one turn of an alert has to tell one channel (see ``delivery``). ``alert``: the key of its row, which
# goes with the run only; null of rows that were stored before there was this column and whose alert had another name.
# ``notice`` is all that its message is made of, ``id`` the same at each attempt and for no other. ``state``: waiting,
# delivered, failed (given up) or suppressed (acknowledged before it was tried, or it fired again before that).
# ``due_at`` and ``leased_until`` are by the database's clock; what goes out as one has the same ``message``.
# ``reached``: those of the channel's targets that have it already, by their digests.
delivery = Table(
    "delivery",
    metadata,
    Column("key", Key, primary_key=True),
    run_key(),
    Column("channel", String(128), nullable=False),
    Column("rule", String(256), nullable=False),
    Column("firing", BigInteger, nullable=False),
    Column("happened", String(16), nullable=False),
    Column("id", String(64), nullable=False, unique=True),
    Column("notice", Json, nullable=False),
    Column("at", Double, nullable=False),
    Column("state", String(16), nullable=False),
    Column("due_at", Double, nullable=False),
    Column("message", String(64)),
    Column("attempts", Integer, nullable=False),
    Column("holder", String(128)),
    Column("leased_until", Double),
    Column("tried_at", Double),
    Column("took_s", Double),
    Column("error", Text),
    Column("alert", Key),
    Column("reached", Json),
    Index("delivery_due", "state", "due_at"),
    Index("delivery_run", "run", "key"),
    Index("delivery_alert", "alert", "channel", "state", "key"),
)

# How many of a channel's deliveries had arrived or were given up of those that are not kept any more.
forgotten = Table(
    "forgotten",
    metadata,
    Column("channel", String(128), primary_key=True),
    Column("delivered", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
)

# Nothing is told of the runs of the projects that ``project`` (a glob) matches, between the two times.
silence = Table(
    "silence",
    metadata,
    Column("key", Key, primary_key=True),
    Column("project", String(512), nullable=False),
    Column("starts_at", Double, nullable=False),
    Column("ends_at", Double, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", Double, nullable=False),
)

# Where notices go, as users set it up. ``kind``: webhook, apprise or browser; ``config``: its address and secrets.
channel = Table(
    "channel",
    metadata,
    Column("key", Key, primary_key=True),
    Column("name", String(128), nullable=False, unique=True),
    Column("kind", String(16), nullable=False),
    Column("config", Json, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("created_at", Double, nullable=False),
)
