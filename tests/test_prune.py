"""``scalescope prune``: what it removes it says, and what it says in a dry run it removes."""

from __future__ import annotations

import io
import re
from contextlib import closing
from pathlib import Path

import pytest
from scalescope.cli import main
from scalescope_server.cli_prune import Pruning, prune
from scalescope_server.judge_pass import judge_once
from scalescope_server.store.engine import open_store
from scalescope_server.store.records import RunId
from scalescope_server.upkeep import MIN_REST_S

from tests.batches import Dictation, batch, hello
from tests.exported import rows
from tests.serving import DEADLINE_S


@pytest.fixture
def filled(database: str) -> str:
    """A run of 1970 with a skip."""
    with closing(open_store(database)) as store:
        says = Dictation()
        own = [1.0] * 2048
        records = (says.steps(0, 2048, mine=own), says.event(1024))
        store.writer.append(batch(hello(world_size=1), *records, at=1.0)).result(DEADLINE_S)
        judge_once(store, RunId("run"))
    return database


def left(database: str) -> int:
    with closing(open_store(database)) as store:
        return len(rows(store.reader, "updates"))


def test_a_dry_run_says_what_pruning_then_removes(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", "--database", filled, "--dry-run"]) == 0
    would, space = capsys.readouterr().out.splitlines()
    assert left(filled) == 2048
    assert main(["prune", "--database", filled]) == 0
    done = capsys.readouterr().out.splitlines()[0]
    assert would.replace("Would remove", "Removed") == done
    assert re.fullmatch(r"Removed 1,912 updates, 1,912 values, 0 samples, 0 tallies of 1 run: about 0\.\d MB\.", done)
    assert re.fullmatch(r"The database takes \d\.\d MB, \d\.\d MB of it free for what comes next \(--compact .*", space)
    assert left(filled) == 136


def test_what_is_young_stays(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", "--database", filled, "--older-than", "99999w"]) == 0
    assert "Removed 0 updates" in capsys.readouterr().out
    assert left(filled) == 2048


def test_the_file_becomes_smaller_where_that_is_asked_for(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path(filled).stat().st_size
    assert main(["prune", "--database", filled, "--compact"]) == 0
    assert re.search(r"scalescope\.db: .* MB before, .* MB now\n", capsys.readouterr().out)
    assert Path(filled).stat().st_size < before
    assert left(filled) == 136


def test_on_postgres_nothing_is_removed_where_a_smaller_file_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", "--database", "postgresql://nobody@127.0.0.1:1/none", "--compact"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "--compact: expected a SQLite file" in told.err


def test_runs_that_were_deleted_are_erased_as_well(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(open_store(filled)) as store:
        store.writer.delete_run(RunId("run")).result(DEADLINE_S)
    assert main(["prune", "--database", filled]) == 0
    assert "of 0 runs" in capsys.readouterr().out
    with closing(open_store(filled)) as store, store.reader.reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM step").scalar_one() == 0


def test_a_server_beside_it_gets_its_turn_after_each_piece(filled: str) -> None:
    with closing(open_store(filled)) as store:
        store.writer.append(batch(hello("other"), Dictation().steps(0, 8), at=1.0)).result(DEADLINE_S)
        store.writer.delete_run(RunId("other")).result(DEADLINE_S)
        rests: list[float] = []
        prune(store, Pruning(1e9, 1.0, dry_run=True), io.StringIO(), rest=rests.append)
        assert rests == []
        prune(store, Pruning(1e9, 1.0, dry_run=False), io.StringIO(), rest=rests.append)
    # The last of what is erased, that nothing is left, four pieces of the run, and that nothing follows.
    assert len(rests) >= 7
    assert min(rests) >= MIN_REST_S


@pytest.mark.parametrize("age", ["30", "d", "-1d", "0d", "1y"])
def test_an_age_that_is_none_is_bad_usage(age: str, filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", "--database", filled, f"--older-than={age}"]) == 2
    assert "--older-than: expected an age such as" in capsys.readouterr().err
