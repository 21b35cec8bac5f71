"""A database that answers as a server would, without one: what notebooks read it through.

Named in the entry-point group ``scalescope.databases``, so that the hook's package reads databases without importing
this one.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from scalescope.recorded.sources import Call, Options, ReadError
from scalescope.wire import SampleKind

from scalescope_server.answers import FindingsAnswer, SeriesAnswer, run_answer, series_columns
from scalescope_server.errors import ServerError, from_store
from scalescope_server.exporting.encoding import Format
from scalescope_server.exporting.streams import checked_tables, stream
from scalescope_server.layer_rows import SAMPLED, TALLIED, LayerMeasure
from scalescope_server.layers import Layers, Range
from scalescope_server.lock import open_beside
from scalescope_server.store.errors import StoreError
from scalescope_server.store.extract.tables import Chosen, TableName
from scalescope_server.store.location import sqlite_file
from scalescope_server.store.reader import Reader
from scalescope_server.store.records import RunId


class LocalDatabase:
    """An open database, which is closed when nobody reads it any more."""

    def __init__(self, database: str) -> None:
        file = sqlite_file(database)
        if file is not None and not file.exists():
            raise ReadError(f"there is no database at {file}")
        store = open_beside(database)
        self._reader = store.reader
        weakref.finalize(self, store.close)

    def ask(self, run: str, call: Call, options: Options) -> Iterator[bytes]:
        """See :class:`scalescope.recorded.sources.Source`."""
        try:
            if call == "export":
                yield from _export(self._reader, RunId(run), options)
            else:
                yield msgspec.json.encode(_ANSWERS[call](self._reader, RunId(run), options))
        except StoreError as error:
            raise ReadError(from_store(error).message) from error
        except ServerError as error:
            raise ReadError(error.message) from error


def open_database(database: str) -> LocalDatabase:
    """The database at ``database``, a path or URL. Raises :class:`ReadError`."""
    try:
        return LocalDatabase(database)
    except (StoreError, ServerError) as error:
        raise ReadError(str(error)) from error


def _run(reader: Reader, run: RunId, _: Options) -> object:
    return run_answer(reader.run(run), time.time())


def _findings(reader: Reader, run: RunId, _: Options) -> object:
    reader.latest(run)
    return FindingsAnswer(reader.findings(run), None)


def _series(reader: Reader, run: RunId, options: Options) -> object:
    bucket, found = reader.series(run, _texts(options, "name"), **_range(options))
    return SeriesAnswer(bucket, {name: series_columns(series) for name, series in found.items()})


def _layers(reader: Reader, run: RunId, options: Options) -> object:
    layers, measure = Layers(reader, run, _range(options)), cast("LayerMeasure", options["measure"])
    if (tallied := TALLIED.get(measure)) is not None:
        return layers.tallied(tallied, None)
    if measure not in SAMPLED:
        raise ReadError(f"expected one of {', '.join((*SAMPLED, *TALLIED))} as the measure, got {measure!r}")
    return layers.sampled(SAMPLED[measure], _kind(options))


def _histogram(reader: Reader, run: RunId, options: Options) -> object:
    return Layers(reader, run, _range(options)).histogram(str(options["parameter"]), _kind(options))


def _export(reader: Reader, run: RunId, options: Options) -> Iterator[bytes]:
    format_ = cast("Format", options.get("format", "json"))
    asked = checked_tables(format_, cast("Sequence[TableName]", _texts(options, "what")))
    given = _range({**options, "points": 0})
    chosen = Chosen(
        start=given["start"],
        stop=given["stop"],
        rank=given["rank"],
        series=tuple(_texts(options, "series")) or None,
        kinds=cast("Any", tuple(_texts(options, "kind"))) or None,
    )
    return stream(reader.extract(run, chosen), format_, asked)


def _range(options: Options) -> Range:
    start, stop, rank = (cast("int | None", options.get(name)) for name in ("from", "to", "rank"))
    return Range(start=start, stop=stop, points=cast("int", options["points"]), rank=rank)


def _kind(options: Options) -> SampleKind:
    return cast("SampleKind", options["kind"])


def _texts(options: Options, name: str) -> list[str]:
    value = options.get(name, ())
    return [value] if isinstance(value, str) else [str(each) for each in cast("Sequence[str]", value)]


_ANSWERS: Mapping[Call, Callable[[Reader, RunId, Options], object]] = {
    "": _run,
    "series": _series,
    "layers": _layers,
    "histogram": _histogram,
    "findings": _findings,
}
