"""The shapes of answers about measurements, in the manner of :mod:`scalescope_server.answers`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from scalescope_server.answers import Numbers
from scalescope_server.store.records import FactsRow, ProbeRow, Single
from scalescope_server.tallies import cosine, relative_error, true_underflow


class FactsAnswer(Struct, frozen=True):
    """``items``: stretches of updates whose windows were alike; ``setup``: in force at the end of the range."""

    items: list[FactsRow]
    setup: dict[str, object]
    next: str | None


class ProbeLine(Struct, frozen=True, kw_only=True):
    """A reference probe before update ``step``. A row of the lists for each of ``parameters``; null: 0 of 0."""

    step: int
    rank: int
    at: float
    data: dict[str, object]
    parameters: list[str]
    true_underflow: Numbers
    relative_error: Numbers
    cosine: Numbers


class ProbesAnswer(Struct, frozen=True):
    items: list[ProbeLine]
    next: str | None


class LayersAnswer(Struct, frozen=True, kw_only=True):
    """One measure as a grid: ``values[i][j]`` of ``parameters[i]`` over the bucket that begins at ``step[j]``.

    Null: not known. ``samples[j]`` is how many samples, tallies or probes column j rests on. Of the kinds
    ``forward``, ``grad_output`` and ``module`` the names are those of modules.
    """

    measure: str
    kind: str
    bucket: int
    parameters: list[str]
    step: list[int]
    samples: list[int]
    values: Sequence[Sequence[float | None]]


class HistogramAnswer(Struct, frozen=True, kw_only=True):
    """One parameter's or module's exponent histograms, a row for each (bucket, scale).

    ``counts[i][j]`` counts the values with 2^e <= abs(x) < 2^(e + 1) where e is ``exponents[j]``, of the
    tensor as it stood, gradients scaled by ``scale[i]``; exponents outside are not in use.
    """

    parameter: str
    kind: str
    bucket: int
    exponents: list[int]
    step: list[int]
    scale: list[Single]
    counts: list[list[int]]
    zero: list[int]
    inf: list[int]
    nan: list[int]
    samples: list[int]


# What of these the description of the API (OpenAPI) names.
SHAPES = (FactsAnswer, ProbesAnswer, LayersAnswer, HistogramAnswer)


def probe_line(names: list[str], probe: ProbeRow) -> ProbeLine:
    """``names``: of the run's parameters in order."""
    return ProbeLine(
        step=probe.step,
        rank=probe.rank,
        at=probe.at,
        data=probe.data,
        parameters=[names[position] for position in probe.positions.tolist()],
        true_underflow=true_underflow(probe).tolist(),
        relative_error=relative_error(probe).tolist(),
        cosine=cosine(probe).tolist(),
    )
