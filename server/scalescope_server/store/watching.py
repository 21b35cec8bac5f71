"""What the judge remembers of the rules on a run, and what a pass over them commits at once."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, insert, select, update

from scalescope_server.store import tables
from scalescope_server.store.alert_records import AlertJudged, Committed, KeptAlert, TransitionRow, Watched
from scalescope_server.store.edits import enter_judgement, run_key
from scalescope_server.store.judging import Judged
from scalescope_server.store.leases import renew
from scalescope_server.store.notices import enter_deliveries
from scalescope_server.store.rules import read_revision
from scalescope_server.store.trimming import trim_alert
from scalescope_server.store.values import scale_key


def read_kept(connection: Connection, run: int) -> list[KeptAlert]:
    """What is remembered of the rules on a run."""
    row = tables.alert.c
    query = select(row.rule, row.revision, row.firings, row.acknowledged_at, row.muted_until, row.kept)
    found = connection.execute(query.where(row.run == run, row.rule.is_not(None))).all()
    return [KeptAlert(*stored) for stored in found]


def commit_watched(connection: Connection, watched: Watched, judged: Judged | None) -> Committed:
    """Store alerts, their transitions, notices and how far the rules were evaluated, and ``judged`` if there is any."""
    key = run_key(connection, watched.run)
    if watched.fence is not None and not renew(connection, key, watched.fence):
        return Committed.SUPERSEDED
    if watched.alerts and read_revision(connection, keep=True) != watched.revision:
        return Committed.OUTDATED
    if watched.attempted is not None and _attempted(connection, key) != watched.attempted:
        return Committed.OUTDATED
    if judged is not None:
        enter_judgement(connection, key, judged)
    reached = {"rules_segment": watched.position.segment, "rules_step": watched.position.step}
    connection.execute(update(tables.judgement).where(tables.judgement.c.run == key).values(reached))
    for alert in watched.alerts:
        _enter(connection, key, alert)
    return Committed.DONE


def _attempted(connection: Connection, run: int) -> int:
    return int(connection.execute(select(tables.run.c.attempted).where(tables.run.c.key == run)).scalar_one())


def _enter(connection: Connection, run: int, judged: AlertJudged) -> None:
    key = _enter_alert(connection, run, judged)
    if judged.transitions:
        connection.execute(insert(tables.transition), [_transition_columns(key, moved) for moved in judged.transitions])
    enter_deliveries(connection, run, judged.deliveries, key)
    if judged.transitions or judged.deliveries:
        trim_alert(connection, key, judged.firings)


def _enter_alert(connection: Connection, run: int, judged: AlertJudged) -> int:
    """The key of the alert's row."""
    row, columns = tables.alert.c, _alert_columns(judged)
    stored = select(row.key, row.firings).where(row.run == run, row.rule == judged.rule)
    found = connection.execute(stored).one_or_none()
    if found is None:
        new = insert(tables.alert).values(run=run, rule=judged.rule, **columns).returning(row.key)
        return int(connection.execute(new).scalar_one())
    if found.firings != judged.firings:
        # The one before was acknowledged.
        columns["acknowledged_at"] = None
    connection.execute(update(tables.alert).where(row.key == found.key).values(columns))
    return int(found.key)


def _alert_columns(judged: AlertJudged) -> dict[str, Any]:
    return {
        "name": judged.name,
        "severity": judged.severity,
        "revision": judged.revision,
        "state": judged.state,
        "since_step": judged.since_step,
        "since_at": judged.since_at,
        "culprit": judged.culprit,
        "sentence": judged.sentence,
        "firings": judged.firings,
        "is_open": judged.is_open,
        "kept": judged.kept,
        **_value_columns(judged.value),
    }


def _transition_columns(alert: int, transition: TransitionRow) -> dict[str, Any]:
    return {
        "alert": alert,
        "firing": transition.firing,
        "from_state": transition.before,
        "to_state": transition.after,
        "step": transition.step,
        "at": transition.at,
        "culprit": transition.culprit,
        "sentence": transition.sentence,
        **_value_columns(transition.value),
    }


def _value_columns(value: float | None) -> dict[str, Any]:
    stored, flag = scale_key(value)
    return {"value": stored, "value_flag": flag}
