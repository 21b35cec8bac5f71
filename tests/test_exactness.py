"""However records come, split, out of order, repeated, of two starts at once: the store holds each once."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from scalescope.wire import Hello, Record, encode
from scalescope_server.store import tables
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.records import RunId
from sqlalchemy import Select, select
from websockets.frames import Frame, Opcode

from tests.batches import Dictation, batch, hello, histograms
from tests.fresh_folds import stale_levels
from tests.serving import Served
from tests.serving import hello as caller
from tests.serving import steps as updates

STEPS = 90
# What of a row says when or where it was stored, not what was told.
_OF_STORAGE = frozenset({"key", "run", "segment", "tally", "series", "last_seen_at", "duplicate", "of_run"})


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database)
    yield opened
    opened.close()


def told(run: str) -> dict[int, tuple[Hello, list[Record]]]:
    """What two ranks of a run tell, each with its layout first and its farewell last."""
    found = {}
    for rank in (0, 1):
        say = Dictation()
        records: list[Record] = [say.layout(("w", "fp16"), ("b", None), modules=["m"])]
        for first in range(0, STEPS, 10):
            values = [float((7 * first + n) % 13) for n in range(10)]
            records += [
                say.sample(first, histograms([first % 5], [-20]), scale=2.0 ** (first % 3)),
                say.tally(first, update_squares=[1.0, 2.0], weight_squares=[4.0, 8.0]),
                say.event(first, "skip", '{"parameter": "w"}'),
                say.steps(first, 10, (10, {"zero_grad": True}), scale=[8.0] * 10),
                # The losses come later than their updates.
                say.steps(first, 10, loss=values, own=values),
            ]
        found[rank] = (hello(run, rank=rank), [*records, say.bye()])
    return found


def contents(store: Store, run: str) -> dict[str, list[str]]:
    """All exact rows of a run, without what depends on when they came."""
    names = ("step", "event", "sample", "tally", "parameter", "module")
    with store._reading.connect() as connection:
        assert stale_levels(connection, run) == []
        key = connection.execute(select(tables.run.c.key).where(tables.run.c.id == run)).scalar_one()
        of_run = {name: tables.metadata.tables[name] for name in names}
        asked: dict[str, Select[Any]] = {name: select(t).where(t.c.run == key) for name, t in of_run.items()}
        of_segment = tables.segment.c.key == tables.ledger.c.segment
        asked["ledger"] = select(tables.ledger).join(tables.segment, of_segment).where(tables.segment.c.run == key)
        of_series = tables.series.c.key == tables.scalar.c.series
        points = select(tables.series.c.name, tables.scalar).join(tables.series, of_series)
        asked["scalar"] = points.where(tables.series.c.run == key)
        rows = {name: list(connection.execute(query).mappings()) for name, query in asked.items()}
    return {
        name: sorted(str({key: row[key] for key in row if key not in _OF_STORAGE}) for row in found)
        for name, found in rows.items()
    }


def in_disorder(records: list[Record], chance: random.Random) -> Iterator[list[Record]]:
    """Batches of the records: the layout first, the others in any order, some of them twice."""
    first, *others = records
    given = [*others, *chance.sample(others, len(others) // 3)]
    chance.shuffle(given)
    yield [first]
    while given:
        taken = chance.randint(1, 12)
        yield sorted(given[:taken], key=lambda record: record.sequence)
        given = given[taken:]


@pytest.mark.both_engines
@pytest.mark.parametrize("seed", [1, 2])
def test_records_in_any_order_and_some_of_them_twice_come_to_the_same(store: Store, database: str, seed: int) -> None:
    chance = random.Random(seed)
    waiting = [(who, some) for who, records in told("disordered").values() for some in in_disorder(records, chance)]
    # The two ranks take turns by chance.
    turns = [who.rank for who, _ in waiting]
    chance.shuffle(turns)
    of_rank = {rank: iter([each for each in waiting if each[0].rank == rank]) for rank in (0, 1)}
    for rank in turns:
        who, some = next(of_rank[rank])
        store.writer.append(batch(who, *some)).result()
    for who, records in told("in order").values():
        store.writer.append(batch(who, *records)).result()
    assert contents(store, "disordered") == contents(store, "in order")


def test_of_a_frame_that_was_cut_off_nothing_is_stored_and_what_comes_again_is_stored_once(served: Served) -> None:
    with served.trainer(caller()) as trainer:
        trainer.deliver(updates(0, 0, 10))
        whole = Frame(Opcode.BINARY, encode(updates(1, 10, 10))).serialize(mask=True)
        trainer.socket.socket.sendall(whole[: len(whole) // 2])
        trainer.socket.socket.shutdown(socket.SHUT_RDWR)
    with served.trainer(caller()) as trainer:
        trainer.deliver(updates(1, 10, 10), updates(2, 20, 10))
    ledger = served.store.reader.run(RunId("run-1")).ledger[0]
    assert (ledger.received, ledger.duplicate, ledger.lost) == (3, 0, 0)
    assert served.store.reader.latest(RunId("run-1")).attempted == 30
