"""A run as files: what is written as JSON lines, CSV and Parquet is what was sent, to the last NaN."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from scalescope.cli import main
from scalescope_server.exporting import parquet
from scalescope_server.exporting.encoding import Format
from scalescope_server.exporting.streams import stream
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.extract.reading import TABLES
from scalescope_server.store.extract.tables import TableName
from scalescope_server.store.records import RunId

from tests.exported import Row, alike, fill, rows
from tests.serving import Served, error

TEXTS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


@pytest.fixture
def filled(database: str) -> Iterator[Store]:
    with closing(open_store(database)) as store:
        fill(store)
        yield store


def written(store: Store, format_: Format, *names: TableName) -> bytes:
    return b"".join(stream(store.reader.extract(RunId("run")), format_, names))


def read_lines(data: bytes) -> dict[TableName, list[Row]]:
    """The rows of each table, texts of numbers that are not finite as these numbers."""
    found: dict[TableName, list[Row]] = {name: [] for name in TABLES}
    for line in data.splitlines():
        row = json.loads(line, parse_constant=pytest.fail)
        found[row.pop("table")].append(
            {name: TEXTS.get(value, value) if isinstance(value, str) else value for name, value in row.items()}
        )
    return found


def read_csv(store: Store, name: TableName) -> list[Row]:
    kinds = {field.name: field.kind for field in store.reader.extract(RunId("run")).fields(name)}
    read: dict[str, Callable[[str], Any]] = {"text": str, "integer": int, "real": float}
    return [
        {key: read.get(kinds[key], json.loads)(value) for key, value in row.items() if value != ""}
        for row in csv.DictReader(io.StringIO(written(store, "csv", name).decode()))
    ]


def read_parquet(store: Store, name: TableName) -> list[Row]:
    kinds = {field.name: field.kind for field in store.reader.extract(RunId("run")).fields(name)}
    found = pyarrow.parquet.read_table(io.BytesIO(written(store, "parquet", name))).to_pylist()
    return [
        {key: json.loads(value) if kinds[key] == "json" else value for key, value in row.items() if value is not None}
        for row in found
    ]


def test_json_lines_hold_every_table(filled: Store) -> None:
    found = read_lines(written(filled, "json", *TABLES))
    assert alike(found, {name: rows(filled.reader, name) for name in TABLES})


def test_csv_and_parquet_hold_the_same(filled: Store) -> None:
    for name in TABLES:
        expected = rows(filled.reader, name)
        # Nothing between two commas is an empty text too.
        assert alike(read_csv(filled, name), [{k: v for k, v in row.items() if v != ""} for row in expected])
        assert alike(read_parquet(filled, name), expected)


def test_row_groups_are_written_as_they_fill(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 1)
    data = written(filled, "parquet", "updates")
    assert pyarrow.parquet.ParquetFile(io.BytesIO(data)).num_row_groups == 2
    assert len(read_parquet(filled, "updates")) == 12


def test_a_download_is_the_same_file(filled: Store, serve: Callable[..., AbstractContextManager[Served]]) -> None:
    expected = written(filled, "json", *TABLES), written(filled, "csv", "samples")
    filled.close()
    with serve() as served:
        lines, commas = served.get("/api/runs/run/export"), served.get("/api/runs/run/export?format=csv&what=samples")
        assert (lines.status, lines.headers["content-type"]) == (200, "application/x-ndjson")
        assert commas.headers["content-disposition"] == 'attachment; filename="run-samples.csv"'
        without_run = [b"".join(x.splitlines(keepends=True)[1:]) for x in (lines.body, expected[0])]
        assert (without_run[0], commas.body) == (without_run[1], expected[1])
        some = served.get("/api/runs/run/export?what=updates&series=loss&rank=1&from=1&to=2").body
        assert json.loads(some) == {
            "table": "updates", "segment": "first", "rank": 1, "step": 1, "at": 1.0, "loss": "nan"
        }  # fmt: skip


def test_what_cannot_be_exported_is_told_before_anything_is_sent(served: Served) -> None:
    fill(served.store)
    assert error(served, "/api/runs/none/export", 404)["field"] == "run"
    told = error(served, "/api/runs/run/export?format=csv&what=updates&what=events", 422)
    assert told["message"] == "a csv file holds one table: ask for each on its own, or for json"
    assert error(served, "/api/runs/run/export?what=weights", 422)["field"] == "what.0"


def test_without_pyarrow_parquet_says_what_to_install(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(served.store)
    monkeypatch.setattr(parquet, "find_spec", lambda _: None)
    sentence = "Parquet needs pyarrow: pip install 'scalescope[parquet]'"
    assert error(served, "/api/runs/run/export?format=parquet", 422)["message"] == sentence
    assert main(["export", "run", "--format", "parquet", "-o", "file", "--url", served.url]) == 2
    assert capsys.readouterr().err == f"scalescope: --format: {sentence}\n"


def test_the_command_writes_to_a_file_a_folder_and_standard_output(
    filled: Store, database: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    expected = written(filled, "csv", "events")
    filled.close()
    source = ("--database", database)
    assert main(["export", "run", "--format", "csv", "--what", "events", *source]) == 0
    sys.stdout.flush()
    assert capfdbinary.readouterr().out == expected
    assert main(["export", "run", "--format", "csv", "-o", str(tmp_path / "all") + "/", *source]) == 0
    assert {path.name for path in (tmp_path / "all").iterdir()} == {f"{name}.csv" for name in TABLES}
    assert (tmp_path / "all" / "events.csv").read_bytes() == expected
    assert main(["export", "run", "-o", str(tmp_path / "run.jsonl"), *source]) == 0
    assert read_lines((tmp_path / "run.jsonl").read_bytes())["events"]


def test_the_command_asks_a_server(served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(served.store)
    path = tmp_path / "updates.parquet"
    assert main(["export", "run", "--format", "parquet", "-o", str(path), "--url", served.url]) == 0
    assert pyarrow.parquet.read_table(path).num_rows == 12
    assert f"{path}: " in capsys.readouterr().err
    assert main(["export", "none", "-o", str(path), "--url", served.url]) == 1
    assert capsys.readouterr().err == "scalescope: there is no run 'none'\n"


def test_what_is_cut_off_leaves_no_file(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(served.store)
    pieces = stream(served.store.reader.extract(RunId("run")), "json", TABLES)

    def deleted_meanwhile(*_: object) -> Iterator[bytes]:
        yield next(piece for piece in pieces if piece)
        served.store.writer.delete_run(RunId("run")).result()
        yield from pieces

    monkeypatch.setattr("scalescope_server.downloads.stream", deleted_meanwhile)
    monkeypatch.setattr("scalescope_server.app.logger.disabled", True)
    assert main(["export", "run", "-o", str(tmp_path / "run.jsonl"), "--url", served.url]) == 1
    assert list(tmp_path.glob("*.jsonl*")) == []
