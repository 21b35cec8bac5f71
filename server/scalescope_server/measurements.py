"""The HTTP API about measurements: facts of windows, probes, layers and histograms."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from scalescope.wire import SampleKind

from scalescope_server.answers import json_answer
from scalescope_server.inputs import AnyRank, Cursor, Rank, RunHere, Span, SpanHere, clamped
from scalescope_server.layer_rows import SAMPLED, TALLIED, LayerMeasure
from scalescope_server.layers import Layers, NarrowFormat, Range
from scalescope_server.measured_answers import FactsAnswer, HistogramAnswer, LayersAnswer, ProbesAnswer, probe_line
from scalescope_server.openapi import answers
from scalescope_server.rooms import Rooms, RoomsHere
from scalescope_server.store.facts import MAX_FACTS
from scalescope_server.store.reader import Reader
from scalescope_server.store.records import RunId
from scalescope_server.store.tally_buckets import MAX_PROBES
from scalescope_server.store.views import MAX_BUCKETS

router = APIRouter(prefix="/api/runs", tags=["runs"])


@router.get("/{run}/facts", responses=answers(FactsAnswer, "What held of the windows, and of the set-up."))
async def get_facts(
    run: RunHere, rooms: RoomsHere, span: SpanHere, cursor: Cursor = None, limit: int = 500, rank: Rank = 0
) -> Response:
    """The facts of every update's window; neighbours that are alike are one item."""
    items, setup, following = await rooms.reading.read(
        rooms.store.reader.facts,
        run,
        start=span.start,
        stop=span.stop,
        cursor=cursor,
        limit=clamped(limit, MAX_FACTS),
        rank=rank,
    )
    return json_answer(FactsAnswer(items, setup, following))


@router.get("/{run}/probes", responses=answers(ProbesAnswer, "Reference probes in order, none left out."))
async def get_probes(
    run: RunHere, rooms: RoomsHere, span: SpanHere, cursor: Cursor = None, limit: int = 10, rank: Rank = 0
) -> Response:
    """What reference probes found: of each parameter what its gradient lost, and how far it is from that in fp32."""

    def read(reader: Reader) -> ProbesAnswer:
        names, probes, following = reader.probes(
            run, start=span.start, stop=span.stop, cursor=cursor, limit=clamped(limit, MAX_PROBES), rank=rank
        )
        return ProbesAnswer([probe_line(names, probe) for probe in probes], following)

    return json_answer(await rooms.reading.read(read, rooms.store.reader))


@router.get("/{run}/layers", responses=answers(LayersAnswer, "One measure, parameters by buckets of steps."))
async def get_layers(
    run: RunHere,
    rooms: RoomsHere,
    span: SpanHere,
    measure: LayerMeasure = "subnormal_share",
    kind: SampleKind = "grad",
    narrow: Annotated[NarrowFormat | None, Query(alias="format")] = None,
    points: int = MAX_BUCKETS,
    rank: AnyRank = None,
) -> Response:
    """One measure of every parameter, or of every module, over time; without ``rank`` of all ranks merged.

    ``kind``: of the samples, for measures of exponent histograms. ``format``: what absorbed shares and headrooms
    ask about, by default each layer's own.
    """
    layers = _layers(rooms, run, span, points, rank)

    def read() -> LayersAnswer:
        if (tallied := TALLIED.get(measure)) is not None:
            return layers.tallied(tallied, narrow)
        return layers.sampled(SAMPLED[measure], kind)

    return json_answer(await rooms.reading.read(read))


@router.get("/{run}/histogram", responses=answers(HistogramAnswer, "A row for each bucket and scale."))
async def get_histogram(
    run: RunHere,
    rooms: RoomsHere,
    span: SpanHere,
    parameter: Annotated[str, Query(max_length=512)],
    kind: SampleKind = "grad",
    points: int = MAX_BUCKETS,
    rank: AnyRank = None,
) -> Response:
    """The exponent histograms of one parameter over time, as it stood, scaled; without ``rank`` of all ranks merged.

    Of the kinds ``forward`` and ``grad_output`` the name is that of a module.
    """
    layers = _layers(rooms, run, span, points, rank)
    return json_answer(await rooms.reading.read(layers.histogram, parameter, kind))


def _layers(rooms: Rooms, run: RunId, span: Span, points: int, rank: int | None) -> Layers:
    read = Range(start=span.start, stop=span.stop, points=clamped(points, MAX_BUCKETS), rank=rank)
    return Layers(rooms.store.reader, run, read)
