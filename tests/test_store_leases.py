"""Leases in a real database: claimed, renewed by a commit, refused to who has been superseded, given back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.errors import NotFound
from scalescope_server.store.judging import Judged
from scalescope_server.store.leases import TERM_S, Claim
from scalescope_server.store.records import RunId
from sqlalchemy import event

from tests.batches import Dictation, batch, hello

RUN = RunId("run")

pytestmark = pytest.mark.both_engines


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with closing(open_store(database)) as opened:
        opened.writer.append(batch(hello(), Dictation().steps(0, 5))).result()
        yield opened


def claim(store: Store, holder: str) -> Claim:
    return store.writer.claim(RUN, holder).result()


def commit(store: Store, fence: int, updates: int) -> bool:
    return store.writer.commit_judgement(Judged(RUN, updates, b"state", (), fence)).result()


def test_the_first_to_ask_judges_a_run_and_others_are_told_for_how_long(store: Store) -> None:
    first, second = claim(store, "one"), claim(store, "two")
    assert (first.mine, first.fence) == (True, 1)
    assert first.left_s == pytest.approx(TERM_S, abs=0.01)
    assert (second.mine, second.fence) == (False, 1)
    assert 0 < second.left_s <= TERM_S
    outlook = store.reader.outlooks([RUN], "two")[RUN]
    assert (outlook.unjudged, outlook.claim.mine) == (True, False)
    assert 0 < outlook.claim.left_s <= TERM_S
    assert store.reader.outlooks([RUN], "one")[RUN].claim.mine


def test_what_a_superseded_holder_commits_does_not_count(store: Store) -> None:
    assert claim(store, "one").fence == 1
    store.writer.release("one").result()
    assert claim(store, "two").fence == 2
    assert commit(store, 2, 3)
    assert not commit(store, 1, 5)
    assert store.reader.judgement(RUN) == (3, b"state")


def test_a_commit_renews_the_lease_and_one_that_nobody_took_still_counts(store: Store) -> None:
    assert claim(store, "one").fence == 1
    store.writer.release("one").result()
    assert commit(store, 1, 5)
    assert not claim(store, "two").mine
    assert not store.reader.outlooks([RUN], "two")[RUN].unjudged


def test_a_run_that_is_gone_cannot_be_claimed(store: Store) -> None:
    store.writer.delete_run(RUN).result()
    with pytest.raises(NotFound):
        claim(store, "one")
    assert store.reader.outlooks([RUN], "one") == {}


def test_what_is_free_and_what_another_judges_is_found_with_one_look(store: Store) -> None:
    runs = [RunId(f"run{number}") for number in range(5)]
    for run in runs:
        store.writer.append(batch(hello(run), Dictation().steps(0, 5))).result()
    store.writer.claim(runs[1], "one").result()
    asked: list[str] = []
    event.listen(store._reading, "before_cursor_execute", lambda *given: asked.append(given[2]))
    found = store.reader.outlooks([RUN, *runs, RunId("gone")], "two")
    assert {run: outlook.claim.mine for run, outlook in found.items()} == {run: run != runs[1] for run in (RUN, *runs)}
    assert found[runs[0]].claim.fence == 0
    assert sum("lease" in statement for statement in asked) == 1
    assert store.reader.outlooks([], "two") == {}
