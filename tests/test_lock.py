"""One server for one SQLite file, by whatever name it is called."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from scalescope_server.errors import UnavailableError
from scalescope_server.lock import locked, open_beside
from scalescope_server.store.engine import is_current, open_store
from scalescope_server.store.location import database_file


def test_no_other_way_to_write_the_files_name_gets_round_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, linked_folder, link = tmp_path / "data", tmp_path / "folder", tmp_path / "link.db"
    folder.mkdir()
    linked_folder.symlink_to(folder, target_is_directory=True)
    link.symlink_to(folder / "scalescope.db")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    with locked(database_file(str(folder / "scalescope.db"))):
        for other in (
            *("scalescope.db", "./scalescope.db", "../data/scalescope.db", "../folder/scalescope.db", str(link)),
            *("sqlite:///scalescope.db", f"sqlite+pysqlite:///{folder}/scalescope.db", "sqlite:///~/scalescope.db"),
            "~/scalescope.db",
        ):
            with pytest.raises(UnavailableError, match="another server is using"), locked(database_file(other)):
                pass
        with locked(database_file("another.db")):
            pass


def test_a_place_where_nothing_can_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(UnavailableError, match=r"a\.db\.lock could not be written, beside the database: File exists"),
        locked(tmp_path / "file" / "a.db"),
    ):
        pass


def test_a_lock_is_free_again_once_its_holder_has_ended(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path / "scalescope.db"):
            pass


def test_whoever_only_reads_upgrades_no_file_under_a_server_of_the_version_before(tmp_path: Path) -> None:
    file = tmp_path / "scalescope.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(Path(__file__).parent.joinpath("samples", "m0003.sql").read_text(encoding="utf-8"))
    with locked(file):
        with pytest.raises(UnavailableError, match="another server is using"):
            open_beside(str(file))
        assert not is_current(str(file))
    open_beside(str(file)).close()
    with locked(file), closing(open_store(str(file))), closing(open_beside(str(file))) as beside:
        assert beside.is_ready()
