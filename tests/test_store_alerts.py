"""Alerts as they are stored: which are open, and what of their past is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from scalescope_server.store.engine import Store, open_store
from scalescope_server.watching.keeper import Keeper

from tests.watched import RUN, Clock, Training, add_rule, look, state_of

pytestmark = pytest.mark.both_engines


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with closing(open_store(database, clock=Clock())) as opened:
        yield opened


@pytest.fixture
def keeper(store: Store) -> Keeper:
    return Keeper(store.reader, Clock())


def open_alerts(store: Store, *, is_open: bool = True) -> list[str]:
    return [found.alert.name for found in store.reader.alerts(run=RUN, is_open=is_open)[0]]


def test_an_alert_that_fired_and_has_no_data_now_is_open_until_an_answer_ends_it(store: Store, keeper: Keeper) -> None:
    add_rule(store, "when mean(loss, 2 steps) > 2")
    training = Training(store)
    training.tell(1.0, 1.0, loss=[1.0, 5.0])
    look(store, keeper)
    assert (state_of(store), open_alerts(store)) == ("firing", ["mine"])
    training.tell(*[1.0] * 40)
    look(store, keeper)
    assert state_of(store) == "no data"
    assert (open_alerts(store), open_alerts(store, is_open=False)) == (["mine"], [])
    assert [run.firing for run in store.reader.runs(limit=1)[0]] == [1]
    (band,) = store.reader.firings(RUN)
    assert (band.first_step, band.last_step) == (1, None)
    training.tell(1.0, 1.0, loss=[1.0, 1.0])
    look(store, keeper)
    assert (state_of(store), open_alerts(store), open_alerts(store, is_open=False)) == ("quiet", [], ["mine"])
    assert [run.firing for run in store.reader.runs(limit=1)[0]] == [0]
    assert [(band.first_step, band.last_step) for band in store.reader.firings(RUN)] == [(1, training.step - 2)]
