"""Every way to write where a database is leads to one file."""

from __future__ import annotations

from pathlib import Path

import pytest
from scalescope_server.store.errors import SchemaError
from scalescope_server.store.location import database_file


def test_every_way_to_write_it_is_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "a.db"
    link = tmp_path / "link.db"
    link.symlink_to(file)
    ways = [str(file), f"sqlite:///{file}", f"sqlite+pysqlite:///{file}", "~/a.db", "sqlite:///~/a.db", "a.db"]
    for way in [*ways, "sqlite:///a.db", str(link), f"sqlite:///{link}", "x/../a.db"]:
        assert database_file(way) == file, way


def test_odd_signs_in_a_path_are_part_of_it(tmp_path: Path) -> None:
    odd = tmp_path / "100% #1 ?x=y.db"
    assert database_file(str(odd)) == odd


@pytest.mark.parametrize(
    "url", ["", "sqlite://", "sqlite:///:memory:", ":memory:", "postgresql://h/n", "x://", "sqlite:///file:a?uri=true"]
)
def test_what_is_no_file_is_refused(url: str) -> None:
    with pytest.raises(SchemaError, match="expected sqlite:///PATH, a path"):
        database_file(url)
