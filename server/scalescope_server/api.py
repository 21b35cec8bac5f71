"""The HTTP API about runs: reads for pages, scripts and monitoring. Shapes are in :mod:`scalescope_server.answers`."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field
from scalescope.wire import EventKind

from scalescope_server.answers import (
    EventsAnswer,
    FindingsAnswer,
    RunAnswer,
    RunsAnswer,
    SeriesAnswer,
    json_answer,
    run_answer,
    run_line,
    series_columns,
)
from scalescope_server.inputs import AnyRank, Cursor, RunHere, SpanHere, clamped
from scalescope_server.openapi import answers
from scalescope_server.rooms import RoomsHere
from scalescope_server.store.curves import MAX_POINTS
from scalescope_server.store.reader import Reader
from scalescope_server.store.records import RunState
from scalescope_server.store.runs import MAX_RUNS

MAX_EVENTS = 1000
MAX_SERIES = 64

Name = Annotated[str, Field(min_length=1, max_length=512)]

router = APIRouter(prefix="/api/runs", tags=["runs"])


class RunPatch(BaseModel):
    """What people may say about a run. What is left out stays as it is; the defaults are never read."""

    model_config = ConfigDict(extra="forbid")

    name: Name = ""
    tags: Annotated[list[Name], Field(max_length=64)] = []
    note: Annotated[str, Field(max_length=16_384)] = ""
    healthy: bool | None = None


@router.get("", responses=answers(RunsAnswer, "Runs, the newest first."))
async def list_runs(
    rooms: RoomsHere,
    project: Annotated[str | None, Query(max_length=512)] = None,
    state: RunState | None = None,
    text: Annotated[str | None, Query(max_length=512)] = None,
    limit: int = 50,
    cursor: Cursor = None,
) -> Response:
    """Runs of a ``project``, in a ``state``, with ``text`` in their name or tags."""
    runs, following = await rooms.reading.read(
        rooms.store.reader.runs,
        project=project,
        state=state,
        text=text,
        limit=clamped(limit, MAX_RUNS),
        cursor=cursor,
    )
    return json_answer(RunsAnswer([run_line(run) for run in runs], following))


@router.get("/{run}", responses=answers(RunAnswer, "The run, all but its numbers over time."))
async def get_run(run: RunHere, rooms: RoomsHere) -> Response:
    """A run with its config, environment, parameters, segments, ranks and the ledger of deliveries."""
    return json_answer(run_answer(await rooms.reading.read(rooms.store.reader.run, run), rooms.clock()))


@router.patch("/{run}", responses=answers(RunAnswer, "The run as it is now."))
async def patch_run(run: RunHere, rooms: RoomsHere, patch: RunPatch) -> Response:
    """Set the name, tags or note of a run, or whether it is known to be healthy."""
    await asyncio.wrap_future(rooms.store.writer.patch_run(run, **patch.model_dump(exclude_unset=True)))
    rooms.hub.changed(run)
    rooms.judge.regard(run)
    return await get_run(run, rooms)


@router.delete("/{run}", status_code=204)
async def delete_run(run: RunHere, rooms: RoomsHere) -> Response:
    """Delete a run and everything stored of it. What its trainer still sends is refused.

    It is gone from then on; the space that it took becomes free behind that, piece by piece.
    """
    await asyncio.wrap_future(rooms.store.writer.delete_run(run))
    rooms.hub.gone(run)
    rooms.upkeep.wake()
    return Response(status_code=204)


@router.get("/{run}/series", responses=answers(SeriesAnswer, "Each named series, by bucket."))
async def get_series(
    run: RunHere,
    rooms: RoomsHere,
    span: SpanHere,
    name: Annotated[list[Name], Query(max_length=MAX_SERIES)] = [],  # noqa: B006 - FastAPI copies it
    points: int = MAX_POINTS,
    rank: AnyRank = None,
) -> Response:
    """The series called ``name`` (may be repeated; without any: all the run has, 64 at most)."""

    def read(reader: Reader) -> SeriesAnswer:
        names = name or reader.series_names(run)[:MAX_SERIES]
        bucket, found = reader.series(
            run, names, start=span.start, stop=span.stop, points=clamped(points, MAX_POINTS), rank=rank
        )
        return SeriesAnswer(bucket, {name: series_columns(series) for name, series in found.items()})

    return json_answer(await rooms.reading.read(read, rooms.store.reader))


@router.get("/{run}/events", responses=answers(EventsAnswer, "Events in order, none left out."))
async def get_events(
    run: RunHere,
    rooms: RoomsHere,
    span: SpanHere,
    kind: EventKind | None = None,
    cursor: Cursor = None,
    limit: int = 500,
) -> Response:
    """Every event, or those of one ``kind``."""
    items, following = await rooms.reading.read(
        rooms.store.reader.events,
        run,
        kind=kind,
        start=span.start,
        stop=span.stop,
        cursor=cursor,
        limit=clamped(limit, MAX_EVENTS),
    )
    return json_answer(EventsAnswer(items, following))


@router.get("/{run}/findings", responses=answers(FindingsAnswer, "What is known to be the matter."))
async def get_findings(run: RunHere, rooms: RoomsHere) -> Response:
    """The named causes found in this run, open and closed."""

    def read(reader: Reader) -> FindingsAnswer:
        reader.latest(run)
        return FindingsAnswer(reader.findings(run), None)

    return json_answer(await rooms.reading.read(read, rooms.store.reader))
