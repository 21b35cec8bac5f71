"""Figures over HTTP, for the pages: read the store in its thread, draw, answer.

One call answers all charts a page shows, so that a page has one request in flight and its charts agree on
what the newest update is. Palette and width are arguments: the same data is drawn for light, dark and phones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from scalescope_server.compressed import AcceptedHere, compressed_answer
from scalescope_server.figures.answers import draw_layer, draw_layers, draw_overview
from scalescope_server.figures.chart import Look
from scalescope_server.figures.palette import PALETTES, PaletteName
from scalescope_server.figures.reads import Wanted
from scalescope_server.figures.told import draw_told
from scalescope_server.inputs import AnyRank, RunHere, SpanHere
from scalescope_server.layer_rows import LayerMeasure
from scalescope_server.rooms import RoomsHere
from scalescope_server.store.curves import MAX_POINTS

router = APIRouter(prefix="/api/runs/{run}/figures", tags=["figures"])

# The narrowest chart is still legible with so many.
MIN_POINTS = 16


def wanted(
    span: SpanHere,
    palette: PaletteName = "light",
    compact: bool = False,
    points: int = 800,
) -> Wanted:
    """What part of the run, and how to draw it. ``points`` is clamped, never refused."""
    return Wanted(
        look=Look(PALETTES[palette], compact),
        points=min(max(points, MIN_POINTS), MAX_POINTS),
        start=span.start,
        stop=span.stop,
    )


WantedHere = Annotated[Wanted, Depends(wanted)]


@router.get("")
async def overview(
    run: RunHere,
    rooms: RoomsHere,
    wanted: WantedHere,
    chart: Annotated[list[str] | None, Query(max_length=64)] = None,
    rank: AnyRank = None,
    accepted: AcceptedHere = "",
) -> Response:
    """The named charts of the run (by default all), the names of all it has, and what the tiles show.

    ``rank``: the lines are those of that rank alone; marks, walls and tiles are the run's own.
    """
    wanted = replace(wanted, rank=rank)
    return await compressed_answer(rooms.reading, accepted, draw_overview, rooms.store.reader, run, wanted, chart)


@router.get("/facts")
async def facts(run: RunHere, rooms: RoomsHere, accepted: AcceptedHere = "") -> Response:
    """What an ordinary window of the run looks like, in words, what was unusual, and the set-up."""
    return await compressed_answer(rooms.reading, accepted, draw_told, rooms.store.reader, run)


@router.get("/layers")
async def layers(
    run: RunHere,
    rooms: RoomsHere,
    wanted: WantedHere,
    measure: LayerMeasure = "subnormal_share",
    match: Annotated[str, Query(max_length=512)] = "",
    accepted: AcceptedHere = "",
) -> Response:
    """The heat map of one measure over the parameters, or modules, whose name contains ``match``."""
    return await compressed_answer(
        rooms.reading, accepted, draw_layers, rooms.store.reader, run, wanted, measure, match
    )


@router.get("/layers/{parameter:path}")
async def layer(
    run: RunHere, parameter: str, rooms: RoomsHere, wanted: WantedHere, accepted: AcceptedHere = ""
) -> Response:
    """One parameter's exponent histogram over time, and the readings behind it."""
    return await compressed_answer(rooms.reading, accepted, draw_layer, rooms.store.reader, run, wanted, parameter)
