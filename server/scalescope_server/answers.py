"""The answers' shapes: plain structs, encoded as JSON that holds no NaN and no infinity.

Floats in lists become null where they are not finite, single values the text "inf", "-inf" or "nan".
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
from msgspec import Struct
from starlette.responses import Response

from scalescope_server.errors import ServerError
from scalescope_server.ranks import rank_sentences
from scalescope_server.store.records import (
    Disagreement,
    EventRow,
    FindingRow,
    LedgerRow,
    ModuleRow,
    ParameterRow,
    RankRow,
    RankState,
    RunDetail,
    RunState,
    RunSummary,
    SegmentRow,
    Series,
    Single,
)

Numbers = list[float | None]

_encoder = msgspec.json.Encoder()


class ErrorBody(Struct, frozen=True):
    """What went wrong: a code for programs, a sentence for people, and the input to blame, if one is."""

    code: str
    message: str
    field: str | None


class ErrorAnswer(Struct, frozen=True):
    """Every answer with a status of 400 or more."""

    error: ErrorBody


class HealthAnswer(Struct, frozen=True):
    """``status``: "ok" for a living server, "ready" for one whose database answers."""

    status: Literal["ok", "ready"]
    version: str


class RunLine(Struct, frozen=True, kw_only=True):
    """A run in the list. Times are seconds since the epoch; ``sparkline`` holds log2 of the scale.

    ``last_step``: the last stored update, null before the first.
    """

    id: str
    project: str
    name: str
    state: RunState
    tags: list[str]
    started_at: float
    last_seen_at: float
    attempted: int
    applied: int
    skipped: int
    last_step: int | None
    scale: Single
    findings: dict[str, int]
    worst: str | None
    firing: int
    sparkline: Numbers


class RunsAnswer(Struct, frozen=True):
    items: list[RunLine]
    next: str | None


class ModuleLine(Struct, frozen=True):
    """A module: how many parameters it owns itself, and of how many elements.

    ``kind``: its class, null for one that is known by its parameters alone.
    """

    name: str
    kind: str | None
    parameters: int
    numel: int


class RankLine(Struct, frozen=True, kw_only=True):
    """How one rank of the newest start fares.

    ``stalled``: it gives signs of life and closes no update; ``absent``: it has never called. ``lag``: how many updates
    it is behind the farthest rank. ``sent_bytes``, ``thread_cpu_s``: what this start has put on the wire, repetitions
    included, and the CPU seconds of the hook's own thread; null where it has not told yet. Times by the server's clock.
    """

    rank: int
    segment: str
    state: RankState
    last_step: int | None
    lag: int | None
    attempted: int
    skipped: int
    scale: Single
    received: int
    dropped: int
    lost: int
    pending: int | None
    sent_bytes: int | None
    bytes_per_update: float | None
    thread_cpu_s: float | None
    last_seen_at: float | None
    progress_at: float | None


class RunAnswer(RunLine, frozen=True, kw_only=True):
    """A run whole, but for its numbers over time.

    ``ranks`` have called so far, of ``world_size``; ``rank_sentences`` say what is the matter with them, if anything.
    ``pruned_below``: updates before it are only kept exactly around events, 0 where all are.
    """

    note: str
    healthy: bool | None
    every: int
    pruned_below: int
    config: dict[str, object]
    environment: dict[str, str]
    scaler: dict[str, object] | None
    optimizers: list[dict[str, object]]
    parameters: list[ParameterRow]
    modules: list[ModuleLine]
    segments: list[SegmentRow]
    world_size: int
    ranks: list[int]
    rank_states: list[RankLine]
    rank_sentences: list[str]
    disagreements: list[Disagreement]
    ledger: list[LedgerRow]


class SeriesColumns(Struct, frozen=True):
    """One series, a row for each bucket that holds a value.

    ``n`` counts the finite values, which ``min``, ``max`` and ``sum`` fold (null where there is none);
    ``nan`` and ``inf`` count the others; ``last`` is null where it is not finite.
    """

    step: list[int]
    n: list[int]
    min: Numbers
    max: Numbers
    last: Numbers
    sum: Numbers
    nan: list[int]
    inf: list[int]


class SeriesAnswer(Struct, frozen=True):
    """``bucket``: updates that one row stands for; 1 means every value is here."""

    bucket: int
    series: dict[str, SeriesColumns]


class EventsAnswer(Struct, frozen=True):
    items: list[EventRow]
    next: str | None


class FindingsAnswer(Struct, frozen=True):
    items: list[FindingRow]
    next: str | None


# What of these the description of the API (OpenAPI) names.
SHAPES = (
    ErrorAnswer,
    HealthAnswer,
    RunsAnswer,
    RunAnswer,
    SeriesAnswer,
    EventsAnswer,
    FindingsAnswer,
)


def json_answer(content: object, status: int = 200) -> Response:
    """``content`` as JSON. Floats that are not finite become null (msgspec's rule)."""
    return Response(_encoder.encode(content), status, {"cache-control": "no-store"}, "application/json")


def error_answer(error: ServerError) -> Response:
    return json_answer(ErrorAnswer(ErrorBody(error.code, error.message, error.field)), error.status)


def single(value: float | None) -> Single:
    """A single number as answers hold it: text where it is not finite."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def run_line(summary: RunSummary) -> RunLine:
    return RunLine(**(msgspec.structs.asdict(summary) | {"scale": single(summary.scale)}))


def run_answer(detail: RunDetail, now: float) -> RunAnswer:
    rest = msgspec.structs.asdict(detail)
    del rest["summary"]
    line = msgspec.structs.asdict(run_line(detail.summary))
    made = {
        "modules": _modules(detail.modules, detail.parameters),
        "rank_states": [_rank_line(rank) for rank in detail.rank_states],
        "rank_sentences": rank_sentences(detail, now),
    }
    return RunAnswer(**(line | rest | made))


def _rank_line(rank: RankRow) -> RankLine:
    return RankLine(**(msgspec.structs.asdict(rank) | {"scale": single(rank.scale)}))


def series_columns(series: Series) -> SeriesColumns:
    return SeriesColumns(**{name: getattr(series, name).tolist() for name in SeriesColumns.__struct_fields__})


def _modules(told: list[ModuleRow], parameters: list[ParameterRow]) -> list[ModuleLine]:
    """The modules that were told, then the others that own parameters, in the order of their first."""
    kinds = {module.name: module.kind for module in told}
    sizes: dict[str, list[int]] = {name: [] for name in kinds}
    for parameter in parameters:
        sizes.setdefault(parameter.module, []).append(parameter.numel)
    return [ModuleLine(name, kinds.get(name), len(numels), sum(numels)) for name, numels in sizes.items()]
