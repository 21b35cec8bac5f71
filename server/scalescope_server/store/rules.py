"""Rules in the database: each change raises the revision of the rule book, so that who judges sees it at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from scalescope_server.store import tables
from scalescope_server.store.alert_records import RuleBook, RuleRow
from scalescope_server.store.closing import Ending, close_alerts
from scalescope_server.store.errors import NoRule, RuleChanged, RuleTaken
from scalescope_server.store.upsert import insert_for

Spec = dict[str, object]

# The rule book is one row.
_BOOK = 1
# What of a rule says when an alert is in which state. Where it changes, its alerts begin anew.
_DECIDES = ("when", "keep_firing", "project", "run", "tag")


def read_book(connection: Connection) -> RuleBook:
    """All rules in the order of their names."""
    found = connection.execute(select(tables.rule).order_by(tables.rule.c.name)).all()
    return RuleBook(read_revision(connection), tuple(map(_rule, found)))


def read_revision(connection: Connection, *, keep: bool = False) -> int:
    """How often any rule was changed. ``keep``: and nobody changes one until this transaction ends."""
    asked = select(tables.rulebook.c.revision).where(tables.rulebook.c.key == _BOOK)
    return int(connection.execute(asked.with_for_update(read=True) if keep else asked).scalar_one_or_none() or 0)


def read_rule(connection: Connection, key: int) -> RuleRow:
    """Raises :class:`NoRule`."""
    found = connection.execute(select(tables.rule).where(tables.rule.c.key == key)).one_or_none()
    if found is None:
        raise NoRule(key)
    return _rule(found)


def add_rule(connection: Connection, spec: Spec, at: float, pack: int | None = None) -> RuleRow:
    """Store a rule under a new id. Raises :class:`RuleTaken` if there is one of its name."""
    revision = _raised(connection)
    _check_free(connection, str(spec["name"]), None)
    row = {**_columns(spec, at, revision), "pack": pack, "edited": False, "created_at": at}
    key = connection.execute(insert(tables.rule).values(row).returning(tables.rule.c.key)).scalar_one()
    return read_rule(connection, key)


def change_rule(
    connection: Connection, key: int, spec: Spec, at: float, ending: Ending, seen: int | None = None
) -> RuleRow:
    """Put ``spec`` in the place of a rule, where its revision is still the one ``seen`` (None: whatever it is).

    Raises :class:`NoRule`, :class:`RuleTaken`, :class:`RuleChanged`.
    """
    revision = _raised(connection)
    before = read_rule(connection, key)
    if seen is not None and seen != before.revision:
        raise RuleChanged(before.name, seen, before.revision)
    _check_free(connection, str(spec["name"]), key)
    row = {**_columns(spec, at, revision), "edited": True}
    connection.execute(update(tables.rule).where(tables.rule.c.key == key).values(row))
    if not spec["enabled"]:
        close_alerts(connection, key, at, "the rule was switched off", ending)
    elif any(before.spec.get(name) != spec.get(name) for name in _DECIDES):
        close_alerts(connection, key, at, "the rule was changed", ending)
    return read_rule(connection, key)


def switch_rule(connection: Connection, key: int, *, enabled: bool, at: float, ending: Ending) -> RuleRow:
    """Switch a rule on or off, whatever else it says by now. Raises :class:`NoRule`."""
    _lock_book(connection)
    before = read_rule(connection, key)
    if before.enabled == enabled:
        return before
    return change_rule(connection, key, {**before.spec, "enabled": enabled}, at, ending)


def delete_rule(connection: Connection, key: int, at: float, ending: Ending) -> None:
    """Its alerts end, and stay as what was. Raises :class:`NoRule`."""
    _raised(connection)
    read_rule(connection, key)
    close_alerts(connection, key, at, "the rule was deleted", ending)
    connection.execute(delete(tables.rule).where(tables.rule.c.key == key))


def import_rules(
    connection: Connection,
    specs: Sequence[Spec],
    at: float,
    ending: Ending,
    pack: Sequence[Spec] = (),
    version: int = 0,
) -> tuple[int, int]:
    """Store rules, those whose name is there in its place; (how many are new, how many have changed).

    ``pack``: the built-in rules of ``version``. One that is among ``specs`` is edited, unless it says what the pack's
    says.
    """
    _lock_book(connection)
    built_in = {str(spec["name"]): spec for spec in pack}
    if any(spec["name"] in built_in for spec in specs):
        enter_pack(connection, pack, version, at, ending)
    known = {rule.name: rule for rule in read_book(connection).rules}
    new = [spec for spec in specs if spec["name"] not in known]
    for spec in new:
        add_rule(connection, spec, at)
    changed = [spec for spec in specs if spec["name"] in known and known[str(spec["name"])].spec != spec]
    for spec in changed:
        change_rule(connection, known[str(spec["name"])].id, spec, at, ending)
    as_built_in = [spec["name"] for spec in specs if built_in.get(str(spec["name"])) == spec]
    row = tables.rule.c
    unedited = update(tables.rule).where(row.name.in_(as_built_in), row.edited)
    connection.execute(unedited.values(pack=version, edited=False))
    return len(new), len(changed)


def enter_pack(connection: Connection, specs: Sequence[Spec], version: int, at: float, ending: Ending) -> int:
    """Bring the built-in rules to ``version``; how many have changed. Those that a user has edited stay as they are.

    A server of an older version leaves what a newer one has entered alone.
    """
    # Several servers may begin at once.
    _lock_book(connection)
    wanted = {str(spec["name"]): spec for spec in specs}
    known = {rule.name: rule for rule in read_book(connection).rules if rule.pack is not None}
    if any((rule.pack or 0) > version for rule in known.values()):
        return 0
    new = [spec for name, spec in wanted.items() if name not in known]
    old = [known[name] for name in wanted if name in known]
    stale = [rule for rule in old if not rule.edited and (rule.pack != version or rule.spec != wanted[rule.name])]
    gone = [rule for rule in known.values() if rule.name not in wanted]
    for spec in new:
        add_rule(connection, spec, at, version)
    for rule in stale:
        if rule.spec != wanted[rule.name]:
            change_rule(connection, rule.id, wanted[rule.name], at, ending)
        own = update(tables.rule).where(tables.rule.c.key == rule.id)
        connection.execute(own.values(pack=version, edited=False))
    for rule in gone:
        delete_rule(connection, rule.id, at, ending)
    return len(new) + len(stale) + len(gone)


def _lock_book(connection: Connection) -> None:
    """Who changes rules, and who commits what was judged by them, wait for one another here."""
    # A row that is there can be locked.
    blank = insert_for(connection.dialect.name, tables.rulebook).on_conflict_do_nothing()
    connection.execute(blank, {"key": _BOOK, "revision": 0})
    connection.execute(select(tables.rulebook.c.revision).where(tables.rulebook.c.key == _BOOK).with_for_update())


def _raised(connection: Connection) -> int:
    """The next revision, with the book locked."""
    _lock_book(connection)
    raised = update(tables.rulebook).where(tables.rulebook.c.key == _BOOK)
    raised = raised.values(revision=tables.rulebook.c.revision + 1).returning(tables.rulebook.c.revision)
    return int(connection.execute(raised).scalar_one())


def _check_free(connection: Connection, name: str, key: int | None) -> None:
    row = tables.rule.c
    found = connection.execute(select(row.key).where(row.name == name)).scalar_one_or_none()
    if found is not None and found != key:
        raise RuleTaken(name)


def _columns(spec: Spec, at: float, revision: int) -> dict[str, Any]:
    return {
        "name": spec["name"],
        "enabled": spec["enabled"],
        "spec": spec,
        "revision": revision,
        "changed_at": at,
    }


def _rule(stored: Row[Any]) -> RuleRow:
    return RuleRow(
        id=stored.key,
        name=stored.name,
        enabled=stored.enabled,
        spec=stored.spec,
        pack=stored.pack,
        edited=stored.edited,
        revision=stored.revision,
        created_at=stored.created_at,
        changed_at=stored.changed_at,
    )
