"""What of an alert's past is kept, however often it turns, and what goes on counting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from scalescope_server.store import tables
from scalescope_server.store.channels import Traffic, traffic
from scalescope_server.store.engine import backend_of, open_store
from scalescope_server.store.notices import enter_deliveries
from scalescope_server.store.trimming import KEPT_DELIVERIES, KEPT_TRANSITIONS, trim_alert
from scalescope_server.watching.notices import deliveries_of
from sqlalchemy import Connection, insert, select, update

from tests.batches import Dictation, batch, hello
from tests.notices import notice

pytestmark = pytest.mark.both_engines


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with closing(open_store(database)) as store:
        store.writer.append(batch(hello(), Dictation().steps(0, 5))).result()
    engine = backend_of(database).writing()
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def alert(connection: Connection) -> int:
    row = {"run": 1, "name": "mine", "severity": "warning", "revision": 1, "state": "firing", "since_at": 1.0}
    row |= {"value": 0.0, "value_flag": 0, "sentence": "", "firings": 1, "is_open": True, "kept": b""}
    return int(connection.execute(insert(tables.alert).values(row).returning(tables.alert.c.key)).scalar_one())


def move(connection: Connection, of: int, *moves: tuple[int, str, str]) -> None:
    """Let an alert have made moves: (of which firing, from, to)."""
    same = {"alert": of, "step": 1, "at": 1.0, "value": 0.0, "value_flag": 0, "sentence": ""}
    rows = [same | {"firing": firing, "from_state": before, "to_state": after} for firing, before, after in moves]
    connection.execute(insert(tables.transition), rows)


def kept_moves(connection: Connection, of: int) -> list[tuple[int, str]]:
    row = tables.transition.c
    found = connection.execute(select(row.firing, row.to_state).where(row.alert == of).order_by(row.key))
    return [(firing, state) for firing, state in found]


def test_the_newest_firings_are_kept_each_as_a_whole(connection: Connection) -> None:
    one, other = alert(connection), alert(connection)
    last = KEPT_TRANSITIONS
    flapping = [(n, *states) for n in range(1, last + 1) for states in (("quiet", "firing"), ("firing", "resolved"))]
    move(connection, one, (0, "quiet", "pending"), *flapping, (last + 1, "quiet", "firing"))
    move(connection, other, (1, "quiet", "firing"))
    trim_alert(connection, one, last + 1)
    # The one of which the cut took the beginning is gone, too.
    found = kept_moves(connection, one)
    assert found[0] == (last // 2 + 2, "firing")
    assert found[-1] == (last + 1, "firing")
    assert len(found) == KEPT_TRANSITIONS - 1
    assert kept_moves(connection, other) == [(1, "firing")]


def test_of_a_firing_that_recovers_without_an_end_its_beginning_is_kept(connection: Connection) -> None:
    one = alert(connection)
    swinging = [(1, "firing", "recovering"), (1, "recovering", "firing")] * KEPT_TRANSITIONS
    move(connection, one, (1, "pending", "firing"), *swinging)
    trim_alert(connection, one, 1)
    found = kept_moves(connection, one)
    assert len(found) == KEPT_TRANSITIONS + 1
    assert found[0] == (1, "firing")


def test_old_deliveries_are_counted_and_gone_and_those_of_the_newest_firing_stay(connection: Connection) -> None:
    one = alert(connection)
    channels = [f"channel {n}" for n in range(KEPT_DELIVERIES // 2)]
    for firing in (1, 2, 3):
        for happened in ("fired", "resolved"):
            enter_deliveries(connection, 1, deliveries_of(notice(firing=firing, happened=happened), channels), one)
    row = tables.delivery.c
    connection.execute(update(tables.delivery).where(row.firing != 2).values(state="delivered"))
    connection.execute(update(tables.delivery).where(row.firing == 2).values(state="failed"))
    waits = (row.firing == 1) & (row.channel == channels[0])
    connection.execute(update(tables.delivery).where(waits).values(state="waiting"))
    trim_alert(connection, one, 3)
    trim_alert(connection, one, 3)
    firings = connection.execute(select(row.firing, row.channel).order_by(row.key)).all()
    # What waits yet is never forgotten.
    assert [channel for firing, channel in firings if firing == 1] == [channels[0]] * 2
    assert [firing for firing, _ in firings if firing > 1] == [2] * KEPT_DELIVERIES + [3] * KEPT_DELIVERIES
    assert traffic(connection)[channels[0]] == Traffic(2, 2, 2)
    assert traffic(connection)[channels[1]] == Traffic(0, 4, 2)
