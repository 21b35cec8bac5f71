"""The judge over a real store: woken, killed, locked out, judged anew."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from scalescope.rows import column
from scalescope.wire import Event, Hello, Layout, Record, Steps
from scalescope_server import judge as judging
from scalescope_server.findings.catalogue import Case, remember
from scalescope_server.judge import Judge
from scalescope_server.judge_findings import PASS_ROWS
from scalescope_server.judge_pass import Outcome, judge_once
from scalescope_server.store import leases, sqlite, tables
from scalescope_server.store.delivery import Batch
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.errors import NotFound
from scalescope_server.store.judging import Judged, StepRow
from scalescope_server.store.records import RunId
from sqlalchemy import event, update

from tests.batches import Dictation, batch
from tests.batches import hello as greeting
from tests.serving import DEADLINE_S
from tests.small_link import until
from tests.test_findings import timeline
from tests.test_wire import HELLO

RUN = RunId(HELLO.run)


class Audience:
    """Counts what it is told, and lets a test wait for it."""

    def __init__(self) -> None:
        self.told = threading.Semaphore(0)

    def changed(self, run: RunId) -> None:
        assert run == RUN
        self.told.release()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "scalescope.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with closing(open_store(str(path))) as opened:
        yield opened


def hello(interval: int) -> Hello:
    assert HELLO.scaler is not None
    scaler = msgspec.structs.replace(HELLO.scaler, growth_interval=interval)
    return msgspec.structs.replace(HELLO, scaler=scaler)


def thrashing(updates: int, *, interval: int = 20) -> list[StepRow]:
    return timeline(updates, interval=interval, start=2.0**20, ceiling=lambda _: 2.0**19)


def send(
    store: Store, rows: Sequence[StepRow], *, interval: int = 20, sequence: int = 0, segment: str = HELLO.segment
) -> int:
    """Store ``rows`` as a trainer would; the answer is the next sequence."""
    records: list[Record] = [Layout(sequence=sequence, parameters=[], order="unknown", backward=[])]
    for row in rows:
        if row.skipped:
            data = msgspec.json.encode({"scale": row.scale, "parameter": "head.weight"}).decode()
            records.append(Event(sequence=sequence + len(records), step=row.step, at=1.0, kind="skip", data=data))
    every = np.arange(len(rows))
    columns = {
        "scale": column(every, np.array([row.scale for row in rows], np.float64)),
        "skipped": column(every, np.array([row.skipped for row in rows], np.float64)),
    }
    at, number = np.ones(len(rows)).tobytes(), sequence + len(records)
    records.append(Steps(sequence=number, first=rows[0].step, count=len(rows), at=at, columns=columns))
    sender = msgspec.structs.replace(hello(interval), segment=segment)
    store.writer.append(Batch(sender, tuple(records), 1.0, 100)).result()
    return sequence + len(records)


def is_fifth(step: int) -> bool:
    """One step in five, without a rhythm."""
    return (step * 2_654_435_761 >> 16) % 5 == 0


def codes(store: Store) -> list[str]:
    return [finding.code for finding in store.reader.findings(RUN)]


def test_committed_updates_become_findings_and_are_counted(store: Store) -> None:
    send(store, thrashing(300))
    assert judge_once(store, RUN) is Outcome.DONE
    assert codes(store)[0] == "SCALE_THRASH"
    assert store.reader.judgement(RUN)[0] == 300
    assert "head.weight overflows first" in store.reader.findings(RUN)[0].sentence


def test_the_trainers_own_growth_interval_is_used(store: Store) -> None:
    send(store, thrashing(600, interval=200), interval=200)
    judge_once(store, RUN)
    assert set(codes(store)) == {"CALIBRATION", "HEALTHY_PROBING"}


def test_a_finding_that_no_longer_holds_is_taken_back(store: Store) -> None:
    sequence = send(store, thrashing(300, interval=100), interval=100)
    judge_once(store, RUN)
    assert "HEALTHY_PROBING" in codes(store)
    worse = [StepRow(step, 0, 2.0**15, is_fifth(step), 0, None) for step in range(300, 400)]
    send(store, worse, interval=100, sequence=sequence)
    judge_once(store, RUN)
    assert "HEALTHY_PROBING" not in codes(store)
    assert "SCALE_THRASH" in codes(store)


def test_a_pass_without_news_changes_nothing(store: Store) -> None:
    send(store, thrashing(30))
    judge_once(store, RUN)
    before = store.reader.judgement(RUN)
    assert judge_once(store, RUN) is Outcome.NOTHING
    assert store.reader.judgement(RUN) == before


def test_a_long_run_is_judged_in_several_passes_with_the_same_answer(store: Store) -> None:
    send(store, thrashing(PASS_ROWS + 500))
    assert judge_once(store, RUN) is Outcome.MORE
    assert judge_once(store, RUN) is Outcome.DONE
    assert store.reader.judgement(RUN)[0] == PASS_ROWS + 500


def test_a_state_of_another_version_is_judged_anew_from_the_first_update(store: Store) -> None:
    send(store, thrashing(300))
    store.writer.commit_judgement(Judged(RUN, 300, remember(Case(version=0)), ())).result()
    assert codes(store) == []
    send(store, thrashing(301)[300:], sequence=1000)
    judge_once(store, RUN)
    assert "SCALE_THRASH" in codes(store)


def test_updates_of_an_older_segment_that_come_late_are_judged_as_if_they_had_come_in_time(store: Store) -> None:
    """The first segment crashed with data in its spool, the second went on, then the spool was pushed."""
    calm = [StepRow(step, 0, 2.0**15, False, 0, None) for step in range(300)]
    sequence = send(store, calm[:10], segment="a")
    send(store, calm, segment="b")
    judge_once(store, RUN)
    assert codes(store) == []
    late = [StepRow(step, 0, 2.0**15, step % 7 in (2, 5), 0, None) for step in range(10, 200)]
    send(store, late, sequence=sequence, segment="a")
    assert store.reader.unjudged() == [RUN]
    judge_once(store, RUN)
    assert "SCALE_THRASH" in codes(store)
    assert store.reader.judgement(RUN)[0] == 500
    assert store.reader.unjudged() == []


def test_a_deleted_run_is_told_as_such(store: Store) -> None:
    with pytest.raises(NotFound):
        judge_once(store, RUN)


def test_the_thread_judges_what_it_is_woken_for_and_tells(store: Store) -> None:
    audience = Audience()
    judge = Judge(store, audience)
    judge.start()
    send(store, thrashing(300))
    judge.wake(RUN)
    assert audience.told.acquire(timeout=DEADLINE_S)
    judge.stop()
    assert "SCALE_THRASH" in codes(store)


def test_what_was_committed_before_a_crash_is_judged_at_the_next_start(store: Store) -> None:
    send(store, thrashing(300))
    audience = Audience()
    judge = Judge(store, audience)
    judge.start()
    assert audience.told.acquire(timeout=DEADLINE_S)
    judge.stop()
    assert store.reader.judgement(RUN)[0] == 300


@contextmanager
def news_of_another_run(judge: Judge) -> Iterator[None]:
    """There is always some."""
    ended = threading.Event()

    def wake() -> None:
        while not ended.wait(0.001):
            judge.wake(RunId("another"))

    waking = threading.Thread(target=wake)
    waking.start()
    try:
        yield
    finally:
        ended.set()
        waking.join()


def test_updates_that_waited_for_a_rank_are_judged_when_it_has_died_whatever_else_there_is(path: Path) -> None:
    now = [0.0]
    with closing(open_store(str(path), clock=lambda: now[0], silent_after_s=60.0)) as store:
        other = msgspec.structs.replace(hello(20), rank=1, world_size=2)
        layout = Layout(sequence=0, parameters=[], order="unknown", backward=[])
        store.writer.append(Batch(other, (layout,), 0.0, 100)).result()
        send(store, thrashing(400))
        audience = Audience()
        judge = Judge(store, audience, look_again_s=0.05)
        judge.start()
        with news_of_another_run(judge):
            assert judge_once(store, RUN) is Outcome.NOTHING
            now[0] = 61.0
            while store.reader.judgement(RUN)[0] < 400:
                assert audience.told.acquire(timeout=DEADLINE_S)
        judge.stop()


def test_waking_for_a_run_that_is_gone_is_no_accident(store: Store) -> None:
    audience = Audience()
    judge = Judge(store, audience)
    judge.start()
    judge.wake(RunId("gone"))
    send(store, thrashing(30))
    judge.wake(RUN)
    assert audience.told.acquire(timeout=DEADLINE_S)
    judge.stop()


def test_a_locked_database_delays_a_judgement_and_never_loses_it(store: Store, path: Path) -> None:
    send(store, thrashing(300))
    locker = sqlite3.connect(path, isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")
    audience = Audience()
    judge = Judge(store, audience)
    judge.start()
    assert not audience.told.acquire(timeout=0.3)
    locker.execute("ROLLBACK")
    locker.close()
    assert audience.told.acquire(timeout=DEADLINE_S)
    judge.stop()
    assert "SCALE_THRASH" in codes(store)


def test_that_it_waits_for_the_database_is_told_once(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_MS", 5)
    monkeypatch.setattr(judging, "RETRY_S", 0.01)
    with closing(open_store(str(path))) as store, closing(sqlite3.connect(path, isolation_level=None)) as locker:
        send(store, thrashing(300))
        tries: list[int] = []
        event.listen(store._writing, "checkout", lambda *_: tries.append(1))
        locker.execute("BEGIN IMMEDIATE")
        judge = Judge(store, Audience())
        judge.start()
        until(lambda: len(tries) > 5)
        locker.execute("ROLLBACK")
        until(lambda: store.reader.judgement(RUN)[0] == 300)
        judge.stop()
    assert caplog.messages == ["judging waits for the database: the database does not answer: database is locked"]


def test_of_two_judges_one_judges_a_run_and_the_other_goes_on_when_it_stops(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None loses its turn because the machine is busy.
    for module in (leases, judging):
        monkeypatch.setattr(module, "TERM_S", 5 * DEADLINE_S)
    monkeypatch.setattr(leases, "LONGEST_S", 10 * DEADLINE_S)
    sequence = send(store, thrashing(300))
    audiences = Audience(), Audience()
    first, second = (Judge(store, audience, holder=str(n)) for n, audience in enumerate(audiences))
    first.start()
    assert audiences[0].told.acquire(timeout=DEADLINE_S)
    second.start()
    send(store, thrashing(600)[300:], sequence=sequence)
    second.hear(RUN)
    first.wake(RUN)
    assert audiences[0].told.acquire(timeout=DEADLINE_S)
    assert (store.reader.judgement(RUN)[0], first.holding(), second.holding()) == (600, 1, 0)
    first.stop()
    send(store, thrashing(900)[600:], sequence=sequence + 1000)
    second.wake(RUN)
    assert audiences[1].told.acquire(timeout=DEADLINE_S)
    assert (store.reader.judgement(RUN)[0], second.holding()) == (900, 1)
    second.stop()


def test_a_run_whose_judge_was_killed_is_judged_by_another_once_its_lease_is_over(store: Store) -> None:
    send(store, thrashing(300))
    assert store.writer.claim(RUN, "killed").result().mine
    audience = Audience()
    judge = Judge(store, audience, holder="heir")
    judge.start()
    judge.wake(RUN)
    assert not audience.told.acquire(timeout=0.2)
    # Its time is over at once.
    store.writer.release("killed").result()
    assert audience.told.acquire(timeout=DEADLINE_S)
    judge.stop()
    assert "SCALE_THRASH" in codes(store)


def test_a_judge_that_slept_through_its_lease_does_not_write_over_its_successor(store: Store) -> None:
    send(store, thrashing(300))
    slept = store.writer.claim(RUN, "asleep").result().fence
    store.writer.release("asleep").result()
    heir = store.writer.claim(RUN, "heir").result().fence
    assert judge_once(store, RUN, slept) is Outcome.SUPERSEDED
    assert store.reader.judgement(RUN)[0] == 0
    assert judge_once(store, RUN, heir) is Outcome.DONE


def test_runs_that_another_judges_are_looked_at_with_one_query_for_all(store: Store) -> None:
    runs = [RunId(f"run{number}") for number in range(20)]
    for run in runs:
        store.writer.append(batch(greeting(run), Dictation().steps(0, 5))).result()
        assert store.writer.claim(run, "another").result().mine
    asked: list[str] = []
    event.listen(store._reading, "before_cursor_execute", lambda *given: asked.append(given[2]))
    now = [0.0]
    judge = Judge(store, Audience(), holder="one", clock=lambda: now[0])
    for run in runs:
        judge.wake(run)
    judge.start()
    until(lambda: sum("lease" in statement for statement in asked) > 0)
    for now[0] in (1.0, 2.0, 3.0):
        judge.hear(RunId("gone"))
    judge.stop()
    assert sum("lease" in statement for statement in asked) <= 5
    assert judge.holding() == 0


def test_a_run_that_always_fails_is_tried_less_and_less_told_of_once_and_counted(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    send(store, thrashing(300))
    set_scaler(store, ["damaged"])
    now = [0.0]
    judge = Judge(store, Audience(), clock=lambda: now[0])
    judge.start()
    until(lambda: judge.failing() == (1, 1))
    for _ in range(50):
        judge.wake(RUN)
        judge.hear(RUN)
    for count, now[0] in ((2, 1.0), (3, 3.0), (4, 7.0)):
        judge.wake(RUN)
        until(partial(failed, judge, count))
    set_scaler(store, {"growth_interval": 20})
    now[0] = 15.0
    judge.wake(RUN)
    until(lambda: judge.failing() == (4, 0))
    judge.stop()
    assert "SCALE_THRASH" in codes(store)
    assert [record.getMessage() for record in caplog.records] == [
        f"run {RUN!r} cannot be judged; it is tried again after longer and longer pauses"
    ]


def failed(judge: Judge, times: int) -> bool:
    return judge.failing() == (times, 1)


def set_scaler(store: Store, scaler: object) -> None:
    with store._writing.begin() as connection:
        connection.execute(update(tables.run).values(scaler=scaler))
