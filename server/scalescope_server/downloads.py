"""``GET /api/runs/{run}/export``: everything that is stored of a run as a file, as it is read."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from fastapi import APIRouter, Query
from scalescope.wire import EventKind, SampleKind
from starlette.responses import StreamingResponse

from scalescope_server.exporting.encoding import Format
from scalescope_server.exporting.streams import MEDIA_TYPES, checked_tables, stream
from scalescope_server.inputs import AnyRank, RunHere, SpanHere
from scalescope_server.rooms import Rooms, RoomsHere
from scalescope_server.store.extract.tables import Chosen, TableName

MAX_NAMES = 64

Name = Annotated[str, Query(max_length=512)]
Names = Annotated[list[Name], Query(max_length=MAX_NAMES)]

router = APIRouter(prefix="/api/runs", tags=["runs"])


@router.get("/{run}/export", response_class=StreamingResponse)
async def export(
    run: RunHere,
    rooms: RoomsHere,
    span: SpanHere,
    format_: Annotated[Format, Query(alias="format")] = "json",
    what: Annotated[list[TableName], Query()] = [],  # noqa: B006 - FastAPI copies it
    rank: AnyRank = None,
    series: Names = [],  # noqa: B006
    name: Names = [],  # noqa: B006
    kind: Annotated[list[EventKind | SampleKind], Query()] = [],  # noqa: B006
) -> StreamingResponse:
    """All rows of a run, or of the tables ``what``, as they stand when it begins.

    ``series``, ``name`` (of parameters and modules) and ``kind`` (of events and samples) leave the others out.
    """
    asked = checked_tables(format_, what)
    chosen = Chosen(
        start=span.start,
        stop=span.stop,
        rank=rank,
        series=tuple(series) or None,
        names=tuple(name) or None,
        kinds=tuple(kind) or None,
    )
    extract = await rooms.reading.read(rooms.store.reader.extract, run, chosen)
    ending = "jsonl" if format_ == "json" else format_
    name_ = run if len(asked) > 1 or format_ == "json" else f"{run}-{asked[0]}"
    headers = {"cache-control": "no-store", "content-disposition": f'attachment; filename="{name_}.{ending}"'}
    pieces = stream(extract, format_, asked)
    return StreamingResponse(_read(rooms, pieces), media_type=MEDIA_TYPES[format_], headers=headers)


async def _read(rooms: Rooms, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """``pieces``, each in a turn of its own among the other reads."""
    while piece := await rooms.reading.read(_next_piece, pieces):
        yield piece


def _next_piece(pieces: Iterator[bytes]) -> bytes:
    """The next that is not empty; b"" at the end."""
    return next(itertools.dropwhile(lambda piece: not piece, pieces), b"")
