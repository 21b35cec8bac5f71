"""The words that the store and the rooms above it share for what comes out of it.

Plain frozen structs, no SQL. Times are seconds since the epoch (float). A ``None`` value with a flag beside
it is how NaN and infinity are told from absence; nothing here holds a NaN that an answer would have to hide.
"""

from __future__ import annotations

from typing import Literal, NewType

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scalescope.numerics.exponents import Histograms
from scalescope.packing import Trimmed

RunId = NewType("RunId", str)
RunState = Literal["running", "finished", "crashed", "silent"]
RankState = Literal["running", "stalled", "silent", "crashed", "finished", "absent"]
# A single number as answers hold it: text where it is not finite.
Single = float | Literal["inf", "-inf", "nan"] | None
TallyKind = Literal["parameter", "module", "probe"]
Severity = Literal["info", "warning", "critical", "fatal"]


class FindingRow(Struct, frozen=True, kw_only=True):
    """A named cause. One row for each (run, code, subject) and episode; ``last_step`` null while it is open."""

    code: str
    subject: str
    severity: Severity
    sentence: str
    evidence: dict[str, object]
    advice: str
    first_step: int
    last_step: int | None
    seen_step: int


class LedgerRow(Struct, frozen=True, kw_only=True):
    """Delivery of one rank of one segment. ``lost`` = missing and not accounted for by ``dropped``."""

    segment: str
    rank: int
    received: int
    duplicate: int
    dropped: int
    lost: int
    highest: int
    last_seen_at: float


class RankRow(Struct, frozen=True, kw_only=True):
    """How one rank of the newest segment fares. ``absent``: it has never called, and all else is not known.

    ``stalled``: it gives signs of life and closes no update. ``last_step``: its last update, as it was stored or as its
    last heartbeat told; ``lag``: how many fewer than the farthest rank's. ``sent_bytes``, ``thread_cpu_s``: of this
    start, repetitions included; seconds of the hook's own thread. ``progress_at``: when it closed its last update.
    """

    rank: int
    segment: str
    state: RankState
    last_step: int | None = None
    lag: int | None = None
    attempted: int = 0
    skipped: int = 0
    scale: float | None = None
    received: int = 0
    dropped: int = 0
    lost: int = 0
    pending: int | None = None
    sent_bytes: int | None = None
    bytes_per_update: float | None = None
    thread_cpu_s: float | None = None
    last_seen_at: float | None = None
    progress_at: float | None = None


class Opinion(Struct, frozen=True):
    """What some ranks told alike."""

    value: Single
    ranks: list[int]


class Disagreement(Struct, frozen=True):
    """The first update of a segment at which its ranks told another ``scale`` or ``skipped`` (the ``name``)."""

    name: str
    step: int
    segment: str
    opinions: list[Opinion]


class RunSummary(Struct, frozen=True, kw_only=True):
    """A line of the runs list. ``sparkline``: log2(scale) of up to 60 updates, or both extremes of up to 60
    buckets of them; null where there is no scale.

    ``last_step``: the last stored update of rank 0, None before the first. With a gap in the steps it is more
    than ``attempted - 1``.
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
    scale: float | None
    findings: dict[str, int]
    worst: str | None
    firing: int
    sparkline: list[float | None]


class ParameterRow(Struct, frozen=True, kw_only=True):
    name: str
    module: str
    shape: list[int]
    dtype: str
    numel: int
    compute_format: str | None
    index: int
    backward: int | None


class ModuleRow(Struct, frozen=True, kw_only=True):
    """A watched module: its class, and its place in forward order. "" is the model itself."""

    name: str
    kind: str
    index: int


class SegmentRow(Struct, frozen=True, kw_only=True):
    """One start of the trainer. ``first_step``: the run's step that the segment's update 0 became."""

    id: str
    ordinal: int
    started_at: float
    ended_at: float | None
    end: Literal["finished", "crashed"] | None
    detail: str | None
    first_step: int
    order: str


class RunDetail(Struct, frozen=True, kw_only=True):
    """Everything kept about a run but its numbers.

    ``pruned_below``: updates before it are only kept exactly around events, 0 where all are.
    """

    summary: RunSummary
    config: dict[str, object]
    environment: dict[str, str]
    scaler: dict[str, object] | None
    optimizers: list[dict[str, object]]
    parameters: list[ParameterRow]
    modules: list[ModuleRow]
    segments: list[SegmentRow]
    world_size: int
    ranks: list[int]
    rank_states: list[RankRow]
    disagreements: list[Disagreement]
    ledger: list[LedgerRow]
    note: str
    healthy: bool | None
    every: int
    pruned_below: int


class Series(Struct, frozen=True):
    """One series over a range: a row for each bucket that holds a value.

    ``step`` is the first step of the bucket. ``min``, ``max`` and ``sum`` fold the ``n`` finite values only
    and are NaN where there is none (told as null in answers); ``last`` is NaN for anything not finite;
    ``nan`` and ``inf`` count the values that are not finite.
    """

    step: NDArray[np.int64]
    n: NDArray[np.int64]
    min: NDArray[np.float64]
    max: NDArray[np.float64]
    last: NDArray[np.float64]
    sum: NDArray[np.float64]
    nan: NDArray[np.int64]
    inf: NDArray[np.int64]


class EventRow(Struct, frozen=True, kw_only=True):
    id: int
    kind: str
    step: int
    rank: int
    at: float
    data: dict[str, object]


class FactsRow(Struct, frozen=True, kw_only=True):
    """The updates ``first_step`` to ``last_step``, both in it, whose windows were alike: the facts of each."""

    first_step: int
    last_step: int
    segment: str
    rank: int
    facts: dict[str, object]


class SampleBucket(Struct, frozen=True):
    """Histograms of one bucket of steps at one scale, rows in parameter order.

    ``scale`` is None without a scaler. ``periodic`` separates the samples that averages may use from those
    taken because something went wrong. ``samples`` int64 [parameters]: how many each row rests on.
    """

    step: int
    scale: float | None
    periodic: bool
    samples: NDArray[np.int64]
    trimmed: Trimmed

    @property
    def table(self) -> Histograms:
        """The same with every column: made at each call."""
        return self.trimmed.whole()


class TallyBucket(Struct, frozen=True):
    """Sums and maxima of one bucket of steps at one scale, rows in order.

    ``columns``: float64 [rows] by a name of :mod:`scalescope.numerics.tallies`, NaN where it is not known. ``scale``
    and ``periodic`` as in :class:`SampleBucket`; ``tallies`` int64 [rows]: how many each row rests on.
    """

    step: int
    scale: float | None
    periodic: bool
    tallies: NDArray[np.int64]
    columns: dict[str, NDArray[np.float64]]


class ProbeRow(Struct, frozen=True):
    """A reference probe before update ``step``: what was told of it, and its columns.

    ``positions`` int64 [rows]: the run's parameter that each row is of.
    """

    step: int
    rank: int
    at: float
    data: dict[str, object]
    positions: NDArray[np.int64]
    columns: dict[str, NDArray[np.float64]]


class Listed(Struct, frozen=True, kw_only=True):
    """What the rows of samples and tallies are, and what tells the formats of modules."""

    parameters: list[ParameterRow]
    modules: list[ModuleRow]
    setup: dict[str, object]
