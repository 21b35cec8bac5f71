"""When each start of a trainer was there, as it is stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from scalescope.wire import Heartbeat
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.starts import StartRow

from tests.batches import STARTED_AT, Dictation, batch, hello
from tests.watched import RUN

pytestmark = pytest.mark.both_engines


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with closing(open_store(database)) as opened:
        yield opened


def test_each_start_is_told_with_its_last_update_its_last_sign_of_life_and_its_end(store: Store) -> None:
    say = Dictation()
    for rank, seen in ((0, 2_000.0), (1, 2_050.0)):
        told = Dictation().steps(0, 3, scale=[1.0] * 3)
        store.writer.append(batch(hello(rank=rank), told, at=seen)).result()
    again = hello(segment="second", world_size=1, started_at=3_000.0)
    store.writer.append(batch(again, say.steps(0, 2, scale=[1.0] * 2), at=3_010.0)).result()
    beat = Heartbeat(at=3_100.0, step=1, progress_at=3_005.0, pending=0, dropped=0)
    store.writer.heartbeat(again, beat, 3_100.0).result()
    store.writer.append(batch(again, say.bye("crashed"), at=3_101.0)).result()
    store.writer.heartbeat(hello(segment="third", started_at=4_000.0), beat, 4_001.0).result()
    assert store.reader.starts(RUN) == [
        StartRow(0, STARTED_AT, None, None, updated_at=2.0, heard_at=2_000.0, seen_at=2_050.0),
        StartRow(1, 3_000.0, STARTED_AT + 1, "crashed", updated_at=1.0, heard_at=3_005.0, seen_at=3_101.0),
        StartRow(2, 4_000.0, None, None, updated_at=None, heard_at=None, seen_at=4_001.0),
    ]
