"""``scalescope export RUN``: everything that is stored of a run, out of a database or from a server, into files."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, get_args
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from scalescope.errors import CommandError, UsageError
from scalescope.progress import ProgressLine

from scalescope_server.answers import ErrorAnswer
from scalescope_server.errors import InvalidError, UnavailableError
from scalescope_server.exporting.encoding import Format
from scalescope_server.exporting.streams import FIRST, checked_tables, stream
from scalescope_server.store.extract.reading import TABLES, Extract
from scalescope_server.store.extract.tables import TableName

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - argparse names it no other way

# Told how many tables are done.
OnPage = Callable[[float], None]

# A page of the slowest table may take a while to read.
TIMEOUT_S = 60.0
PIECE_BYTES = 1024 * 1024
ENDINGS: dict[Format, str] = {"json": "jsonl", "csv": "csv", "parquet": "parquet"}


class Exporter(Protocol):
    """Where the files of one run come from: pieces of one that holds the tables named."""

    @property
    def steps(self) -> int | None:
        """How many there are to be gone through for each table, where that is known."""

    def pieces(self, format_: Format, asked: Sequence[TableName], on_page: OnPage) -> Iterator[bytes]: ...


@dataclass(frozen=True, slots=True)
class DatabaseExporter:
    """All files tell of one moment, in which the extract began."""

    extract: Extract

    @property
    def steps(self) -> int | None:
        return self.extract.steps

    def pieces(self, format_: Format, asked: Sequence[TableName], on_page: OnPage) -> Iterator[bytes]:
        return stream(self.extract, format_, asked, on_page)


@dataclass(frozen=True, slots=True)
class ServerExporter:
    """A server, at an address as :class:`~scalescope_server.listing.ServerSource` takes it; asked for each file."""

    url: str
    run: str
    token: str | None = field(default=None, repr=False)

    @property
    def steps(self) -> int | None:
        return None

    def pieces(self, format_: Format, asked: Sequence[TableName], _: OnPage) -> Iterator[bytes]:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        query = urlencode([("format", format_), *(("what", name) for name in asked)])
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        with contextlib.closing(kind(parts.netloc, timeout=TIMEOUT_S)) as connection:
            try:
                path = f"{parts.path.rstrip('/')}/api/runs/{quote(self.run, safe='')}/export?{query}"
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
                if answer.status != http.client.OK:
                    raise CommandError(_said(self.url, answer))
                while piece := answer.read(PIECE_BYTES):
                    yield piece
            except http.client.IncompleteRead as error:
                raise CommandError(f"{self.url} ended in the middle of the export; its log says why") from error
            except (OSError, http.client.HTTPException) as error:
                raise UnavailableError(f"no answer from {self.url}: {error}") from error


def add_export(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command, all but where runs are read."""
    parser = subparsers.add_parser(
        "export",
        help="write everything stored of a run to files",
        description="Write every row of a run: as JSON lines all tables in one file; as CSV or Parquet one table a "
        "file, all of them into a folder.",
    )
    parser.add_argument("run_id", metavar="RUN", help="the run's id")
    parser.add_argument("--format", choices=get_args(Format), default="json", help="default: %(default)s")
    parser.add_argument(
        "--what", choices=TABLES, action="append", default=[], help=f"a table (repeatable; default: all, or {FIRST})"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="file or folder to write to (default: standard output)")
    return parser


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for on the command line."""

    format: Format
    what: tuple[TableName, ...]
    output: Path | None
    into_folder: bool


def wanted_of(arguments: argparse.Namespace) -> Wanted:
    """Raises :class:`UsageError` for what does not go together."""
    output = None if arguments.output in (None, "-") else Path(arguments.output)
    into_folder = output is not None and (output.is_dir() or arguments.output.endswith(("/", os.sep)))
    what = tuple(arguments.what)
    try:
        checked_tables(arguments.format, what[:1] if into_folder else what)
    except InvalidError as error:
        raise UsageError(f"--{error.field}: {error}") from error
    if output is None and arguments.format == "parquet" and sys.stdout.isatty():
        raise UsageError("-o: expected a file for Parquet, got a terminal")
    return Wanted(arguments.format, what, output, into_folder)


def export(exporter: Exporter, wanted: Wanted, out: BinaryIO) -> None:
    """Write the files; progress goes to standard error, and what is left half done leaves no file."""
    if wanted.output is None:
        asked = checked_tables(wanted.format, wanted.what)
        out.writelines(exporter.pieces(wanted.format, asked, lambda _: None))
        return
    if wanted.into_folder:
        wanted.output.mkdir(parents=True, exist_ok=True)
        for name in wanted.what or TABLES:
            _write(exporter, wanted, (name,), wanted.output / f"{name}.{ENDINGS[wanted.format]}")
    else:
        _write(exporter, wanted, checked_tables(wanted.format, wanted.what), wanted.output)


def _write(exporter: Exporter, wanted: Wanted, asked: Sequence[TableName], path: Path) -> None:
    unfinished = path.with_name(path.name + ".part")
    line, written = _line(exporter, len(asked)), 0
    try:
        with unfinished.open("wb") as file:
            for piece in exporter.pieces(wanted.format, asked, lambda done: _show(line, exporter, done, path.name)):
                written += file.write(piece)
                if line.total is None:
                    line.show(written // 1000, path.name)
        unfinished.replace(path)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    line.finish(f"{path}: {written // 1000} kB")


def _line(exporter: Exporter, files: int) -> ProgressLine:
    """A bar over the steps of all tables, where they are known; else how much has come."""
    if exporter.steps is None:
        return ProgressLine(sys.stderr, None, "kB")
    return ProgressLine(sys.stderr, exporter.steps * files, "steps")


def _show(line: ProgressLine, exporter: Exporter, done: float, text: str) -> None:
    line.show(round((exporter.steps or 0) * done), text)


def _said(url: str, answer: http.client.HTTPResponse) -> str:
    try:
        return msgspec.json.decode(answer.read(), type=ErrorAnswer).error.message
    except msgspec.DecodeError:
        return f"{url} answered HTTP {answer.status}"
