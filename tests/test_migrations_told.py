"""How far an upgrade is: of the copy that is made first, and of the revisions."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from scalescope.cli import main
from scalescope_server.store.engine import migrate_store


@pytest.fixture
def old(tmp_path: Path) -> str:
    """A database of the first revision."""
    database = str(tmp_path / "old.db")
    script = Path(__file__).parent.joinpath("samples", "m0001.sql").read_text(encoding="utf-8")
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(script)
    return database


def test_an_upgrade_tells_how_far_it_is(old: str) -> None:
    told: list[tuple[str, int, int]] = []
    migrate_store(old, lambda what, done, of: told.append((what, done, of)))
    copied = [(done, of) for what, done, of in told if what == "pages copied"]
    assert copied[-1][0] == copied[-1][1] > 0
    revisions = [(done, of) for what, done, of in told if what == "revisions"]
    assert revisions == [(done, len(revisions) - 1) for done in range(len(revisions))]
    assert len(revisions) > 4
    told.clear()
    migrate_store(old, lambda what, done, of: told.append((what, done, of)))
    assert told == []


def test_the_command_says_what_it_did(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "--database", old]) == 0
    assert capsys.readouterr().out.startswith(f"{old} is up to date. As it was before it is kept in ")
