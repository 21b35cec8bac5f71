"""One short round of each fault; ``make chaos`` plays more of them, longer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.compare import Told, compare
from tests.chaos.databases import postgres_cluster, sqlite_file
from tests.chaos.faults import FAULTS
from tests.chaos.rounds import drawn, play
from tests.chaos.stage import Stage, stage
from tests.chaos.training import Plan, read_record, train
from tests.serving import serving

# Beside other tests an answer is late for many reasons: that it comes is looked at here.
SHORT: dict[str, Any] = {"updates": 100, "locked_s": 1.0, "healthy_within_s": 10.0}


@pytest.fixture(scope="module")
def on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("chaos")
    with sqlite_file(folder) as database, stage(folder, database) as staged:
        yield staged


@pytest.fixture(scope="module")
def on_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("chaos")
    with postgres_cluster(folder) as database, stage(folder, database) as staged:
        yield staged


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "kill-database"])
def test_nothing_is_lost_and_nothing_doubled(on_sqlite: Stage, fault: str) -> None:
    outcome = play(on_sqlite, fault, "a", **SHORT)
    assert outcome.wrong == ()
    assert outcome.rows > 0


@pytest.mark.parametrize("fault", ["kill-database", "locked"])
def test_nothing_is_lost_and_nothing_doubled_on_postgres(on_postgres: Stage, fault: str) -> None:
    outcome = play(on_postgres, fault, "a", **SHORT)
    assert outcome.wrong == ()
    assert outcome.rows > 0


TAMPERED = {
    "DELETE FROM step WHERE step = 50": "updates: expected updates 0 to 99, got 0 to 49, 51 to 99",
    "UPDATE step SET loss = loss + 1 WHERE step = 50": "updates: update 50: expected",
    "UPDATE scalar SET value = value + 1 WHERE step = 50": "own values: update 50: expected",
    "DELETE FROM event WHERE kind = 'skip'": "events: lacks",
    "INSERT INTO event (run, step, kind, rank, segment, at, data, culprit, of_run) "
    "SELECT run, step, kind, rank, segment, at, data, culprit, of_run FROM event": "events: 2 times",
    "DELETE FROM sample WHERE step = 50": "samples: none of update 50",
    "UPDATE sample SET step = 51 WHERE step = 50": "samples:",
    "UPDATE ledger SET ending = NULL": "delivery: expected that it is finished, got None",
    "UPDATE run SET attempted = attempted - 1": "expected 100 updates in the list of runs, got 99",
    "DELETE FROM rollup WHERE level = 2 AND bucket = 1": "level=2, bucket=1",
    "UPDATE rollup SET max = max + 1 WHERE level = 1 AND bucket = 0": "level=1, bucket=0): max",
    "DELETE FROM sample_rollup WHERE level = 2": "sample_rollup Key",
    "UPDATE tally_rollup SET bucket = bucket + 100": "tally_rollup Key",
}


def test_the_comparison_finds_what_is_wrong(tmp_path: Path) -> None:
    record = tmp_path / "record"
    with sqlite_file(tmp_path) as database, serving(database.url) as served:
        train(Plan(served.url, "run", record, tmp_path / "spool", seed=1, updates=100, pause_s=0.0))
        told = [Told(read_record(record))]
        with served.store._writing.connect() as connection:
            assert compare(connection, "run", told).wrong == ()
            connection.rollback()
            for tampering, sentence in TAMPERED.items():
                connection.exec_driver_sql(tampering)
                assert sentence in " ".join(compare(connection, "run", told).wrong)
                connection.rollback()


def test_each_fault_is_drawn_as_often_as_any_other_and_again_from_the_same_seed() -> None:
    faults = list(FAULTS)
    rounds = list(drawn(faults, 14, 7))
    assert sorted(fault for fault, _ in rounds) == sorted(faults * 2)
    assert rounds == list(drawn(faults, 14, 7)) != list(drawn(faults, 14, 8))
