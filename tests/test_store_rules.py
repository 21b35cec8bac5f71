"""Rules as they are stored: changed, imported, brought to the version of the pack; and what that does to alerts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest
from scalescope_server.store.alert_records import (
    AlertJudged,
    Committed,
    DeliveryRow,
    RuleRow,
    TransitionRow,
    Watched,
)
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.errors import NoRule, RuleTaken
from scalescope_server.store.judging import Position
from scalescope_server.store.records import RunId

from tests.batches import Dictation, batch, hello
from tests.postgres import Cluster

RUN = RunId("run")

pytestmark = pytest.mark.both_engines


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with closing(open_store(database)) as opened:
        opened.writer.append(batch(hello(), Dictation().steps(0, 3))).result()
        yield opened


def spec(name: str = "mine", **changes: object) -> dict[str, object]:
    return {"name": name, "when": "when scale < 1", "enabled": True, "channels": ["ops"], **changes}


def ending(notice: Mapping[str, object], channel: str, at: float, why: str) -> DeliveryRow:
    told = {**notice, "happened": "resolved", "reason": why}
    return DeliveryRow(
        id=f"{notice['id']}/over", channel=channel, rule="mine", firing=1, happened="resolved", notice=told, at=at
    )


def firing(store: Store, rule: RuleRow, **changes: Any) -> Committed:
    """Let ``rule`` have begun to fire at step 2, and tell a channel of it."""
    moved = TransitionRow(firing=1, before="quiet", after="firing", step=2, at=2.0, value=0.5, culprit="w", sentence="")
    told = DeliveryRow(id="1", channel="ops", rule=rule.name, firing=1, happened="fired", notice={"id": "1"}, at=2.0)
    alert = AlertJudged(
        rule=rule.id,
        name=rule.name,
        severity="warning",
        revision=rule.revision,
        state="firing",
        since_step=2,
        since_at=2.0,
        value=0.5,
        culprit="w",
        sentence="",
        firings=1,
        is_open=True,
        kept=b"state",
        transitions=(moved,),
        deliveries=(told,),
    )
    watched = Watched(
        RUN, **{"revision": store.reader.rule_book().revision} | changes, position=Position(0, 2), alerts=(alert,)
    )
    return store.writer.commit_watched(watched).result()


def test_each_change_of_any_rule_raises_the_revision_of_the_book(store: Store) -> None:
    assert store.reader.rule_book().revision == 0
    mine = store.writer.add_rule(spec(), 1.0).result()
    store.writer.add_rule(spec("other"), 2.0).result()
    changed = store.writer.change_rule(mine.id, spec(when="when scale < 2"), 3.0, ending).result()
    assert (changed.revision, changed.spec["when"], changed.edited) == (3, "when scale < 2", True)
    assert (changed.created_at, changed.changed_at) == (1.0, 3.0)
    store.writer.delete_rule(mine.id, 4.0, ending).result()
    book = store.reader.rule_book()
    assert (book.revision, [rule.name for rule in book.rules]) == (4, ["other"])


def test_names_are_unique_and_ids_are_of_rules_that_are_there(store: Store) -> None:
    mine = store.writer.add_rule(spec(), 1.0).result()
    other = store.writer.add_rule(spec("other"), 1.0).result()
    with pytest.raises(RuleTaken, match="there is a rule 'mine' already"):
        store.writer.add_rule(spec(), 2.0).result()
    with pytest.raises(RuleTaken):
        store.writer.change_rule(other.id, spec(), 2.0, ending).result()
    for missing in (store.writer.change_rule(99, spec(), 2.0, ending), store.writer.delete_rule(99, 2.0, ending)):
        with pytest.raises(NoRule):
            missing.result()
    with pytest.raises(NoRule):
        store.reader.rule(99)
    assert store.reader.rule(mine.id) == mine
    assert store.reader.rule_book().revision == 2


def test_an_import_puts_rules_in_the_place_of_those_with_their_names(store: Store) -> None:
    store.writer.import_rules([spec("a"), spec("b")], 1.0, ending).result()
    found = store.writer.import_rules([spec("b"), spec("a", when="when scale < 2"), spec("c")], 2.0, ending).result()
    assert found == (1, 1)
    assert [(rule.name, rule.changed_at) for rule in store.reader.rule_book().rules] == [
        ("a", 2.0),
        ("b", 1.0),
        ("c", 2.0),
    ]


def test_what_is_imported_of_the_pack_is_edited_unless_it_is_what_the_pack_says(store: Store) -> None:
    pack = [spec("pack/a"), spec("pack/b")]
    edit = spec("pack/a", enabled=False)
    assert store.writer.import_rules([edit, spec("mine")], 1.0, ending, pack, 1).result() == (1, 1)
    found = {rule.name: (rule.pack, rule.edited, rule.enabled) for rule in store.reader.rule_book().rules}
    assert found == {"pack/a": (1, True, False), "pack/b": (1, False, True), "mine": (None, False, True)}
    assert store.writer.import_rules([spec("pack/a")], 2.0, ending, pack, 1).result() == (0, 1)
    found = {rule.name: (rule.pack, rule.edited, rule.enabled) for rule in store.reader.rule_book().rules}
    assert found["pack/a"] == (1, False, True)


def test_the_pack_is_brought_to_its_version_and_what_a_user_edited_stays(store: Store) -> None:
    store.writer.enter_pack([spec("pack/a"), spec("pack/b"), spec("pack/c")], 1, 1.0, ending).result()
    rules = {rule.name: rule for rule in store.reader.rule_book().rules}
    store.writer.change_rule(rules["pack/b"].id, spec("pack/b", enabled=False), 2.0, ending).result()
    newer = [spec("pack/a", when="when scale < 2"), spec("pack/b", when="when scale < 2"), spec("pack/d")]
    store.writer.enter_pack(newer, 2, 3.0, ending).result()
    found = {
        rule.name: (rule.spec["when"], rule.enabled, rule.pack, rule.edited) for rule in store.reader.rule_book().rules
    }
    assert found == {
        "pack/a": ("when scale < 2", True, 2, False),
        "pack/b": ("when scale < 1", False, 1, True),
        "pack/d": ("when scale < 1", True, 2, False),
    }
    before = store.reader.rule_book()
    assert store.writer.enter_pack(newer, 2, 4.0, ending).result() == 0
    assert store.writer.enter_pack([spec("pack/a")], 1, 4.0, ending).result() == 0
    assert store.reader.rule_book() == before


def test_servers_that_begin_at_once_enter_the_pack_once(postgres: Cluster) -> None:
    pack = [spec(f"pack/{number}") for number in range(30)]
    url = postgres.new(postgres.template)
    with closing(open_store(url)) as first, closing(open_store(url)) as second:
        for version in range(1, 11):
            entering = [store.writer.enter_pack(pack, version, 1.0, ending) for store in (first, second)]
            assert sorted(entered.result() for entered in entering) == [0, 30]


@pytest.mark.parametrize(
    ("change", "why"),
    [({"when": "when scale < 2"}, "the rule was changed"), ({"enabled": False}, "the rule was switched off")],
)
def test_a_rule_that_says_something_else_lets_its_alerts_end_and_tells_who_was_told(
    store: Store, change: dict[str, Any], why: str
) -> None:
    mine = store.writer.add_rule(spec(), 1.0).result()
    assert firing(store, mine) is Committed.DONE
    store.writer.change_rule(mine.id, spec(**change), 9.0, ending).result()
    (found,), _ = store.reader.alerts()
    assert (found.alert.state, found.alert.is_open, found.alert.sentence) == ("quiet", False, why)
    moves = [(moved.before, moved.after, moved.firing, moved.sentence) for moved in found.transitions]
    assert moves == [("firing", "resolved", 1, why), ("quiet", "firing", 1, "")]
    assert [(line.happened, line.state) for line in found.deliveries] == [("resolved", "waiting"), ("fired", "waiting")]
    assert [kept.kept for kept in store.reader.kept_alerts(RUN)] == [b""]


def test_a_rule_that_is_only_told_otherwise_keeps_its_alerts(store: Store) -> None:
    mine = store.writer.add_rule(spec(), 1.0).result()
    firing(store, mine)
    store.writer.change_rule(mine.id, spec(severity="critical", channels=["other"]), 9.0, ending).result()
    (found,), _ = store.reader.alerts()
    assert (found.alert.state, len(found.transitions)) == ("firing", 1)


def test_of_a_deleted_rule_what_was_stays(store: Store) -> None:
    mine = store.writer.add_rule(spec(), 1.0).result()
    firing(store, mine)
    store.writer.delete_rule(mine.id, 9.0, ending).result()
    (found,), _ = store.reader.alerts()
    assert (found.alert.name, found.alert.rule, found.alert.state) == ("mine", None, "quiet")
    assert [moved.after for moved in found.transitions] == ["resolved", "firing"]
    assert store.reader.kept_alerts(RUN) == []


def test_nothing_is_stored_of_a_pass_over_rules_that_have_changed_since(store: Store) -> None:
    mine = store.writer.add_rule(spec(), 1.0).result()
    store.writer.change_rule(mine.id, spec(when="when scale < 2"), 2.0, ending).result()
    assert firing(store, mine, revision=1) is Committed.OUTDATED
    assert store.reader.alerts() == ([], None)
