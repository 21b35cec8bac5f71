"""What pages ask is looked up in an index, on both engines: no table that grows with a run is read from end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from scalescope.wire import Record
from scalescope_server.figures.answers import draw_layer, draw_layers, draw_overview
from scalescope_server.figures.chart import Look
from scalescope_server.figures.palette import LIGHT
from scalescope_server.figures.reads import Wanted
from scalescope_server.figures.told import draw_told
from scalescope_server.store import tables
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.judging import Position
from scalescope_server.store.reader import Reader
from scalescope_server.store.records import RunId
from sqlalchemy import Connection, event, func, select

from tests.batches import Dictation, batch, hello, histograms

pytestmark = pytest.mark.both_engines

# Those with rows for every update, sample or thing that happened.
GROWING = {"step", "scalar", "rollup", "sample", "sample_rollup", "tally", "tally_rollup"}
GROWING |= {"event", "window", "setup", "gathered", "probe", "pruned"}
RUN = RunId("run")


@dataclass
class Plans:
    """Notes of every statement on a growing table, that was run while it watched, each that reads one whole."""

    engine: str
    asked: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)

    def watch(self, connection: Connection, _: Any, statement: str, parameters: Any, *__: Any) -> None:
        raw: Any = connection.connection.driver_connection
        if not statement.lstrip().startswith(("SELECT", "WITH")):
            return
        read = self._of_sqlite if self.engine == "sqlite" else self._of_postgres
        for table, looked_up in read(raw, statement, parameters):
            if table in GROWING:
                self.asked.add(table)
                if not looked_up:
                    self.whole.add(f"{table}: {statement}")

    def _of_sqlite(self, raw: Any, statement: str, parameters: Any) -> Iterator[tuple[str, bool]]:
        for *_, detail in raw.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall():
            word, _, rest = detail.partition(" ")
            if word in ("SCAN", "SEARCH"):
                yield _named(rest.split()[0]), word == "SEARCH"

    def _of_postgres(self, raw: Any, statement: str, parameters: Any) -> Iterator[tuple[str, bool]]:
        # A few rows are read fastest as a whole: what matters is whether there is an index to look them up in.
        raw.execute("SET LOCAL enable_seqscan = off")
        ((explained,),) = raw.execute(f"EXPLAIN (FORMAT JSON) {statement}", parameters).fetchall()
        yield from _nodes(explained[0]["Plan"])


def _nodes(plan: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    if "Relation Name" in plan:
        looked_up = "Index Cond" in plan or plan["Node Type"] == "Bitmap Heap Scan"
        yield plan["Relation Name"], looked_up
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)


def _named(alias: str) -> str:
    """The table behind an alias that SQLAlchemy gave: "step_1"."""
    name, _, number = alias.rpartition("_")
    return name if number.isdecimal() else alias


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database)
    say = Dictation()
    told: list[Record] = [
        say.layout(("a", "fp16"), ("b", "fp16"), modules=["m"]),
        say.setup(0, autocast={"cuda": "float16"}),
        say.steps(0, 400, (400, {"micro_batches": 1}), loss=[1.0] * 400, own=[2.0] * 400, scale=[8.0] * 400),
        *(say.sample(step, histograms([0], [1])) for step in range(400)),
        *(say.tally(step, looked=[1.0, 2.0], intended=[1.0, 1.0]) for step in range(0, 400, 4)),
        say.tally(3, subject="module", forward_amax=[2.0]),
        say.probe(7, {"loss": 1.0}, lost=[1.0, 1.0], reference_nonzero=[2.0, 2.0]),
        say.event(5, "skip"),
    ]
    for name, world_size in (("run", 1), ("ranks", 2)):
        opened.writer.append(batch(hello(name, world_size=world_size), *told)).result()
    opened.writer.append(batch(hello("ranks", rank=1), *told)).result()
    yield opened
    opened.close()


@pytest.fixture
def plans(store: Store, database: str) -> Iterator[Plans]:
    watching = Plans("postgres" if database.startswith("postgresql:") else "sqlite")
    with store.reader.reading() as connection:
        engine = connection.engine
    event.listen(engine, "before_cursor_execute", watching.watch)
    yield watching
    event.remove(engine, "before_cursor_execute", watching.watch)


def pages(reader: Reader, run: RunId) -> list[Callable[[Wanted], object]]:
    return [
        lambda wanted: draw_overview(reader, run, wanted, None),
        lambda wanted: draw_layers(reader, run, wanted, "subnormal_share", ""),
        lambda wanted: draw_layers(reader, run, wanted, "absorbed_share", ""),
        lambda wanted: draw_layers(reader, run, wanted, "forward_headroom", ""),
        lambda wanted: draw_layer(reader, run, wanted, "a"),
    ]


def test_no_page_reads_a_growing_table_from_end_to_end(store: Store, plans: Plans) -> None:
    reader = store.reader
    for run in (RUN, RunId("ranks")):
        for draw in pages(reader, run):
            for start, stop, points in ((None, None, 16), (100, 200, 800)):
                draw(Wanted(Look(LIGHT), points, start, stop))
        draw_told(reader, run)
        reader.run(run)
        reader.latest(run)
        reader.events(run, kind="skip", start=3, merged=True)
        reader.events(run)
        reader.series(run, ["own", "loss", "amax"], start=10, stop=20, rank=1)
        reader.probes(run)
        reader.facts(run, start=3)
        reader.findings(run)
    reader.runs(text="r")
    reader.states()
    assert plans.whole == set()
    assert plans.asked >= {
        "step",
        "scalar",
        "rollup",
        "sample",
        "sample_rollup",
        "tally",
        "tally_rollup",
        "event",
        "window",
    }


def test_the_judge_looks_up_what_it_reads(store: Store, plans: Plans) -> None:
    store.reader.steps_after(RUN, Position(0, 10), 100)
    store.reader.setting(RUN)
    store.reader.setting("ranks")
    store.reader.judgement(RUN)
    store.reader.unjudged()
    assert plans.whole == set()
    assert plans.asked >= {"step", "window", "setup", "scalar"}


def test_a_table_that_is_read_from_end_to_end_is_noticed(store: Store, plans: Plans) -> None:
    with store.reader.reading() as connection:
        connection.execute(select(func.count()).select_from(tables.step).where(tables.step.c.loss > 0.5))
    assert len(plans.whole) == 1
