"""A run out of the store: everything that was sent, page by page, as it stood when the extract began."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.errors import NotFound
from scalescope_server.store.extract import happenings, measured, updates
from scalescope_server.store.extract.reading import TABLES
from scalescope_server.store.extract.tables import Chosen, TableName
from scalescope_server.store.records import RunId

from tests.batches import Dictation, batch, hello, histograms
from tests.exported import INF, NAN, alike, fill, picked, rows

pytestmark = pytest.mark.both_engines

RUN = RunId("run")


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    store = open_store(database)
    yield store
    store.close()


@pytest.fixture
def filled(store: Store) -> Store:
    fill(store)
    return store


def test_every_update_of_every_rank_and_segment_is_there_with_all_its_series(filled: Store) -> None:
    found = rows(filled.reader, "updates")
    place = picked(found, "segment", "rank", "step")
    assert place[:7] == [("first", 0, step) for step in range(5)] + [("second", 0, 5), ("second", 0, 6)]
    assert place[7:] == [("first", 1, step) for step in range(5)]
    first = found[:5]
    assert alike(picked(first, "loss", "mine"), [(2.5, 1.0), (NAN, NAN), (INF, -INF), (None, None), (None, None)])
    assert picked(first, "scale", "skipped") == [(65536.0, 0)] * 3 + [(None, 0), (None, 1)]
    assert picked(found[5:7], "loss") == [(9.0,), (8.0,)]
    assert found[0]["at"] == 0.0
    # Read out of the samples of gradients: of both parameters together.
    assert found[0]["zero_share"] == 2 / 6


def test_a_series_that_is_called_as_a_column_of_ours_has_a_name_of_its_own(filled: Store) -> None:
    assert picked(rows(filled.reader, "updates")[:5], "rank", "series/rank")[4] == (0, 7.0)


def test_what_was_measured_of_an_update_that_never_came_is_there_without_a_time(store: Store) -> None:
    says = Dictation()
    records = (says.layout(("a", "fp16")), says.sample(9, histograms([1])), says.steps(0, 2))
    store.writer.append(batch(hello(world_size=1), *records)).result()
    found = rows(store.reader, "updates")
    assert picked(found, "step", "at", "amax") == [(0, 0.0, None), (1, 1.0, None), (9, None, 2 / 65536)]


def test_a_gap_of_a_billion_steps_is_stepped_over(store: Store) -> None:
    says = Dictation()
    store.writer.append(batch(hello(), says.steps(0, 1), says.steps(2**30, 1, mine=[3.0]))).result()
    assert picked(rows(store.reader, "updates"), "step", "mine") == [(0, None), (2**30, 3.0)]


def test_the_series_of_all_ranks_merged_are_a_table_of_their_own(filled: Store) -> None:
    found = rows(filled.reader, "merged")
    assert picked(found, "segment", "step", "zero_share", "ranks_missing")[0] == ("first", 0, 2 / 6, None)
    assert "rank" not in found[0]
    assert rows(filled.reader, "merged", rank=1) == []


def test_every_histogram_is_a_row_with_its_counts(filled: Store) -> None:
    found = rows(filled.reader, "samples", rank=1)
    shown = picked(found, "step", "kind", "reason", "name", "first_exponent", "counts", "zero", "inf", "nan", "amax")
    assert shown == [
        (0, "grad", "periodic", "a.weight", -3, [2, 0, 0, 0, 0, 0, 0, 0, 1], 1, 0, 0, 32.0),
        (0, "grad", "periodic", "b.weight", -3, [0, 0, 0, 1, 0, 0, 0, 0, 0], 1, 0, 0, 1.0),
        (1, "grad", "skip", "b.weight", 1, [1], 0, 2, 1, 2.0),
        (2, "forward", "periodic", "a", 7, [1, 0], 0, 0, 0, 128.0),
        (2, "forward", "periodic", "b", 7, [0, 1], 0, 0, 0, 256.0),
    ]
    assert {(row["segment"], row["rank"], row["scale"], row["micro_batches"]) for row in found} == {
        ("first", 1, 65536.0, 1)
    }
    assert len(rows(filled.reader, "samples")) == 10


def test_events_facts_setups_tallies_and_probes_are_all_there(filled: Store) -> None:
    events = rows(filled.reader, "events")
    assert picked(events, "segment", "rank", "step", "kind") == [("first", 0, 1, "skip"), ("first", 1, 1, "skip")]
    assert events[0]["data"]["nonfinite"] == {"a.weight": 3}
    assert picked(rows(filled.reader, "windows"), "rank", "first_step", "last_step", "facts") == [
        (0, 0, 1, {"micro_batches": 1}),
        (1, 0, 1, {"micro_batches": 1}),
    ]
    assert picked(rows(filled.reader, "setups"), "rank", "step", "data") == [
        (0, 0, {"flags": {"tf32": False}}),
        (1, 0, {"flags": {"tf32": False}}),
    ]
    tallies = picked(rows(filled.reader, "tallies", rank=0), "step", "subject", "name", "update_squares", "intended")
    assert alike(tallies, [(2, "parameter", "a.weight", 1.0, None), (2, "parameter", "b.weight", NAN, None)])
    probes = picked(rows(filled.reader, "probes"), "step", "name", "data", "lost", "error_squares")
    assert probes == [(2, "a.weight", {"loss": 1.5}, 1.0, None), (2, "b.weight", {"loss": 1.5}, 2.0, None)]


def test_what_a_run_says_of_itself_is_there(filled: Store) -> None:
    (run,) = rows(filled.reader, "run")
    assert (run["id"], run["steps"], run["world_size"], run["environment"]) == ("run", 7, 2, {"torch": "2.13.0"})
    assert picked(rows(filled.reader, "parameters"), "index", "name", "shape") == [
        (0, "a.weight", [2, 4]),
        (1, "b.weight", [2, 4]),
    ]
    assert picked(rows(filled.reader, "modules"), "index", "name") == [(0, "a"), (1, "b")]
    assert picked(rows(filled.reader, "segments"), "id", "first_step") == [("first", 0), ("second", 5)]
    assert picked(rows(filled.reader, "ranks"), "segment", "rank", "lost") == [
        ("first", 0, 0),
        ("first", 1, 0),
        ("second", 0, 0),
    ]


def test_pages_of_any_size_give_the_same_rows(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {name: rows(filled.reader, name) for name in TABLES}
    monkeypatch.setattr(updates, "MOST_STEPS", 2)
    monkeypatch.setattr(updates, "FEWEST_STEPS", 2)
    monkeypatch.setattr(happenings, "ROWS", 1)
    monkeypatch.setattr(measured, "ROWS", 1)
    assert alike({name: rows(filled.reader, name) for name in TABLES}, whole)
    done = [page.done for page in filled.reader.extract(RUN).pages("updates")]
    assert (done, done[-1]) == (sorted(done), 1.0)
    assert 0 < done[0] < 0.5


def test_what_comes_while_it_is_read_is_left_out(filled: Store) -> None:
    extract = filled.reader.extract(RUN)
    says = Dictation(9)
    more = (says.steps(5, 4, loss=[1.0] * 4), says.event(6), says.sample(6, histograms([1], [1])))
    filled.writer.append(batch(hello(rank=1), *more)).result()
    filled.writer.append(batch(hello(segment="third"), Dictation().steps(0, 3))).result()
    held: dict[TableName, int] = {name: sum(page.rows for page in extract.pages(name)) for name in TABLES}
    assert [held[name] for name in ("updates", "events", "samples", "windows", "segments")] == [12, 2, 10, 2, 2]


def test_a_run_that_is_deleted_while_it_is_read_is_no_shorter_run(filled: Store) -> None:
    pages = filled.reader.extract(RUN).pages("updates")
    next(pages)
    filled.writer.delete_run(RUN).result()
    with pytest.raises(NotFound):
        next(pages)


def test_only_what_is_chosen_is_read(filled: Store) -> None:
    some = rows(filled.reader, "updates", series=("loss",), rank=0, start=1, stop=3)
    assert alike(picked(some, "step", "loss", "scale"), [(1, NAN, None), (2, INF, None)])
    assert set(some[0]) == {"segment", "rank", "step", "at", "loss"}
    assert picked(rows(filled.reader, "samples", names=("b",), rank=0), "name", "kind") == [("b", "forward")]
    assert rows(filled.reader, "events", kinds=("growth",)) == []
    assert len(rows(filled.reader, "samples", kinds=("grad",), rank=0)) == 3


def test_a_run_without_anything_has_empty_tables(store: Store) -> None:
    store.writer.append(batch(hello())).result()
    extract = store.reader.extract(RUN, Chosen())
    held = {name for name in TABLES if sum(page.rows for page in extract.pages(name))}
    assert held == {"run", "segments", "ranks"}
