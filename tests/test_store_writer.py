"""The writer: one commit for all that waits, a failure for those alone whose it is, and no half batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from scalescope.wire import Column, Steps
from scalescope_server.store import tables, totals
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.errors import BadRecord, Busy, NotFound, Unavailable
from scalescope_server.store.judging import Judged
from scalescope_server.store.records import FindingRow, RunId
from scalescope_server.store.transaction import Transaction
from scalescope_server.store.writer import GROUP_JOBS, WAITING
from sqlalchemy import event

from tests.batches import Dictation, batch, hello, histograms

pytestmark = pytest.mark.both_engines

DEADLINE_S = 20.0


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database)
    yield opened
    opened.close()


class Gate:
    """A write that keeps the writer's thread until it is opened, so that others gather behind it."""

    def __init__(self, store: Store) -> None:
        self._open = threading.Event()
        entered = threading.Event()

        def work(_: Transaction) -> None:
            entered.set()
            assert self._open.wait(DEADLINE_S)

        self.future = store.writer._submit(work)
        assert entered.wait(DEADLINE_S)

    def open(self) -> None:
        self._open.set()


def bad_steps() -> Steps:
    return Steps(sequence=0, first=0, count=1, at=b"\0" * 8, columns={"loss": Column(b"\0", b"")})


def attempted(store: Store) -> dict[str, int]:
    return {summary.id: summary.attempted for summary in store.reader.runs()[0]}


def test_all_that_waits_is_committed_at_once(store: Store) -> None:
    commits: list[int] = []
    for i in range(20):
        store.writer.append(batch(hello(f"run{i}"), Dictation().steps(0, 1))).result(DEADLINE_S)
    gate = Gate(store)
    event.listen(store._writing, "commit", lambda _: commits.append(1))
    futures = [store.writer.append(batch(hello(f"run{i}"), Dictation(1).steps(1, 1))) for i in range(20)]
    gate.open()
    assert [future.result(DEADLINE_S).stored for future in futures] == [1] * 20
    assert len(commits) == 2
    assert set(attempted(store).values()) == {2}


def test_a_bad_batch_fails_alone(store: Store) -> None:
    gate = Gate(store)
    good = [store.writer.append(batch(hello(f"good{i}"), Dictation().steps(0, 2))) for i in range(2)]
    bad = store.writer.append(batch(hello("bad"), bad_steps()))
    good.append(store.writer.append(batch(hello("good2"), Dictation().steps(0, 2))))
    gate.open()
    assert [future.result(DEADLINE_S).stored for future in good] == [1, 1, 1]
    with pytest.raises(BadRecord, match="steps 0: expected") as caught:
        bad.result(DEADLINE_S)
    assert (caught.value.record, caught.value.sequence) == ("steps", 0)
    assert attempted(store) == {"good0": 2, "good1": 2, "good2": 2}


def test_a_value_that_no_database_holds_refuses_its_batch_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no check before the database has found it."""
    monkeypatch.setattr(totals, "_dropped", lambda happening: 2**63)
    gate = Gate(store)
    good = [store.writer.append(batch(hello(f"good{i}"), Dictation().steps(0, 2))) for i in range(2)]
    bad = store.writer.append(batch(hello("bad"), Dictation().event(0)))
    gate.open()
    assert [future.result(DEADLINE_S).stored for future in good] == [1, 1]
    with pytest.raises(BadRecord, match="batch: the database cannot hold a value of it: ") as caught:
        bad.result(DEADLINE_S)
    assert caught.value.sequence is None
    assert attempted(store) == {"good0": 2, "good1": 2}


def test_a_rank_beyond_what_is_counted_is_refused_with_a_sentence(store: Store) -> None:
    with pytest.raises(BadRecord, match="hello: expected a rank below 2147483647, got 2147483647"):
        store.writer.admit(hello(rank=2**31 - 1), 1.0).result(DEADLINE_S)
    store.writer.admit(hello(rank=2**31 - 2), 1.0).result(DEADLINE_S)


def test_a_mistake_of_the_program_reaches_its_caller_and_the_writer_goes_on(store: Store) -> None:
    def mistaken(_: Transaction) -> None:
        raise KeyError("a mistake")

    with pytest.raises(KeyError):
        store.writer._submit(mistaken).result(DEADLINE_S)
    assert store.writer.append(batch(hello(), Dictation().steps(0, 1))).result(DEADLINE_S).stored == 1


def test_a_full_line_says_so_at_once(store: Store) -> None:
    gate = Gate(store)
    waiting = [store.writer.append(batch(hello(), Dictation(i).steps(i, 1))) for i in range(WAITING)]
    refused = store.writer.append(batch(hello(), Dictation(WAITING).steps(WAITING, 1)))
    with pytest.raises(Busy, match="are waiting"):
        refused.result(0)
    gate.open()
    assert all(future.result(DEADLINE_S).stored == 1 for future in waiting)
    assert attempted(store) == {"run": WAITING}
    assert WAITING > GROUP_JOBS


def test_a_caller_that_no_longer_waits_harms_nobody(store: Store) -> None:
    gate = Gate(store)
    given_up = store.writer.append(batch(hello("one"), Dictation().steps(0, 1)))
    kept = store.writer.append(batch(hello("two"), Dictation().steps(0, 1)))
    assert given_up.cancel()
    gate.open()
    assert kept.result(DEADLINE_S).stored == 1
    assert attempted(store) == {"two": 1}


def test_what_waits_is_written_when_the_store_is_closed(database: str) -> None:
    store = open_store(database)
    gate = Gate(store)
    futures = [store.writer.append(batch(hello(), Dictation(i).steps(i, 1))) for i in range(10)]
    gate.open()
    store.close()
    assert all(future.done() and future.result().stored == 1 for future in futures)
    with pytest.raises(Unavailable, match="closed"):
        store.writer.append(batch(hello(), Dictation(10).steps(10, 1))).result(0)


def test_deleting_a_run_empties_every_table_of_it(store: Store) -> None:
    say = Dictation()
    records = (
        say.layout(("w", None), modules=["m"]),
        say.steps(0, 100, (100, {"micro_batches": 1}), loss=[1.0] * 100, mine=[2.0]),
        say.sample(0, histograms([0])),
        say.tally(0, looked=[1.0]),
        say.probe(0, lost=[1.0]),
        say.setup(0, flags={"tf32": False}),
        say.event(0),
    )
    store.writer.append(batch(hello(), *records)).result(DEADLINE_S)
    found = FindingRow(
        code="UNDERFLOW",
        subject="w",
        severity="warning",
        sentence="",
        evidence={"share": float("nan")},
        advice="",
        first_step=0,
        last_step=None,
        seen_step=9,
    )
    store.writer.commit_judgement(Judged(RunId("run"), 99, b"state", (found,))).result(DEADLINE_S)
    store.writer.delete_run(RunId("run")).result(DEADLINE_S)
    while store.writer.erase().result(DEADLINE_S):
        pass
    with store._reading.connect() as connection:
        names = [*tables.metadata.tables, "alembic_version"]
        rows = {name: connection.exec_driver_sql(f'SELECT count(*) FROM "{name}"').scalar_one() for name in names}
    assert rows.pop("alembic_version") == 1
    # Its segment is known, so that nothing of it comes back.
    assert rows.pop("deleted") == 1
    assert set(rows.values()) == {0}


def test_writes_to_a_run_that_is_not_there_are_told(store: Store) -> None:
    absent = RunId("absent")
    for future in (
        store.writer.delete_run(absent),
        store.writer.patch_run(absent, name="x"),
        store.writer.commit_judgement(Judged(absent, 0, b"", ())),
    ):
        with pytest.raises(NotFound, match="'absent'"):
            future.result(DEADLINE_S)


def test_what_the_user_says_of_a_run_stays_when_the_trainer_resumes(store: Store) -> None:
    store.writer.append(batch(hello(), Dictation().steps(0, 1))).result(DEADLINE_S)
    told = store.writer.patch_run(RunId("run"), name="mine", tags=["good"], note="note", healthy=True)
    told.result(DEADLINE_S)
    store.writer.append(batch(hello(segment="second", tags=["new"]), Dictation().steps(0, 1))).result(DEADLINE_S)
    detail = store.reader.run("run")
    assert (detail.summary.name, detail.summary.tags, detail.note, detail.healthy) == ("mine", ["good"], "note", True)
    store.writer.patch_run(RunId("run"), name=None, healthy=None).result(DEADLINE_S)
    detail = store.reader.run("run")
    assert (detail.summary.name, detail.healthy) == ("mine", None)
