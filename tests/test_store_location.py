"""Every way to write where a database is leads to one file, or to one Postgres."""

from __future__ import annotations

from pathlib import Path

import pytest
from scalescope_server.store.errors import SchemaError
from scalescope_server.store.location import database_file, postgres_url, sqlite_file


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


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    for folder in (tmp_path, Path("/")):
        with pytest.raises(SchemaError, match="expected a file as the database, got the directory /"):
            database_file(str(folder))


@pytest.mark.parametrize(
    "url", ["", "sqlite://", "sqlite:///:memory:", ":memory:", "postgresql://h/n", "x://", "sqlite:///file:a?uri=true"]
)
def test_what_is_no_file_is_refused(url: str) -> None:
    with pytest.raises(SchemaError, match="expected sqlite:///PATH, a path"):
        database_file(url)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_every_way_to_write_it_is_the_same_postgres(scheme: str) -> None:
    url = f"{scheme}://user:pass%40word@host:5433/name?sslmode=require"
    found = postgres_url(url)
    assert found is not None
    assert (found.drivername, found.password, found.port) == ("postgresql+psycopg", "pass@word", 5433)
    assert found.query == {"sslmode": "require"}
    assert sqlite_file(url) is None


def test_a_file_is_no_postgres(tmp_path: Path) -> None:
    assert postgres_url("sqlite:///a.db") is None
    assert sqlite_file(str(tmp_path / "a.db")) == tmp_path / "a.db"


@pytest.mark.parametrize(
    "rest",
    [
        *("ql://user:secret@host", "ql+asyncpg://user:secret@host/name", "ql://u:secret@h:x/n"),
        "ql+asyncpg://host/name?user=user&password=secret",
    ],
)
def test_a_postgres_that_cannot_be_meant_is_refused_without_its_password(rest: str) -> None:
    with pytest.raises(SchemaError, match="or postgresql://USER:PASSWORD@HOST/NAME as the database, got") as caught:
        postgres_url(f"postgres{rest}")
    assert "secret" not in str(caught.value)
