"""The lease on the run in hand: kept while a pass lasts, and by nobody whom another has succeeded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from scalescope_server.judge import Judge
from scalescope_server.judge_lease import MOST_RENEWALS, Renewal
from scalescope_server.store import tables
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.records import RunId
from sqlalchemy import event, select

from tests.batches import Dictation, batch, hello
from tests.small_link import until

RUN = RunId("run")

pytestmark = pytest.mark.both_engines


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with closing(open_store(database)) as opened:
        opened.writer.append(batch(hello(), Dictation().steps(0, 5))).result()
        yield opened


def ends(store: Store) -> float:
    """Until when the run is somebody's."""
    with store._reading.connect() as connection:
        return float(connection.execute(select(tables.lease.c.until)).scalar_one())


def test_a_pass_that_lasts_keeps_its_run_and_a_short_one_writes_nothing(store: Store) -> None:
    fence = store.writer.claim(RUN, "one").result().fence
    renewal = Renewal(store.writer)
    store.writer.release("one").result()
    with renewal.of(RUN, fence):
        assert renewal.in_hand == RUN
        assert renewal.tend() is None
        assert ends(store) == 0.0
        asked = renewal.tend()
        assert asked is not None
        assert asked.result()
        assert ends(store) > 0.0
    assert renewal.tend() is None
    with renewal.of(RUN, fence):
        assert renewal.tend() is None


def test_who_was_succeeded_takes_nothing_back(store: Store) -> None:
    fence = store.writer.claim(RUN, "one").result().fence
    store.writer.release("one").result()
    assert store.writer.claim(RUN, "other").result().fence == fence + 1
    store.writer.release("other").result()
    renewal = Renewal(store.writer)
    with renewal.of(RUN, fence):
        renewal.tend()
        asked = renewal.tend()
        assert asked is not None
        assert not asked.result()
    assert ends(store) == 0.0


def test_who_hangs_is_succeeded_after_all(store: Store) -> None:
    fence = store.writer.claim(RUN, "one").result().fence
    renewal = Renewal(store.writer)
    with renewal.of(RUN, fence):
        renewal.tend()
        for _ in range(MOST_RENEWALS):
            asked = renewal.tend()
            assert asked is not None
            asked.result()
        assert renewal.tend() is None


def test_the_judge_has_the_run_in_hand_while_it_judges(store: Store) -> None:
    class Audience:
        def changed(self, run: RunId) -> None:
            pass

    judge = Judge(store, Audience(), holder="one", pack=False)
    seen: list[RunId | None] = []
    event.listen(store._reading, "before_cursor_execute", lambda *_: seen.append(judge._renewal.in_hand))
    judge.start()
    until(lambda: store.reader.judgement(RUN)[0] == 5)
    judge.stop()
    assert RUN in seen
