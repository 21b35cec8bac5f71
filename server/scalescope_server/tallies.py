"""Tallies as measures of layers, and probes as shares and angles. Pure, on arrays.

A measure is read over the tallies of one bucket of steps. Shares and ratios are of sums, over the periodic tallies
where a row has any; largest values are over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scalescope.numerics.formats import FP16, FloatFormat
from scalescope.numerics.measures import divided

from scalescope_server.store.columns import folded, unknown
from scalescope_server.store.records import ProbeRow, TallyBucket, TallyKind

TallyMeasure = Literal[
    "update_ratio",
    "absorbed_share",
    "unchanged_share",
    "true_underflow",
    "forward_amax",
    "forward_headroom",
    "grad_output_amax",
    "grad_output_headroom",
]

Values = NDArray[np.float64]
Parts = Sequence[TallyBucket]
Formats = Sequence[FloatFormat]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a measure is read from: a kind of tallies and some of their columns. ``read`` gives float64 [rows]."""

    kind: TallyKind
    columns: tuple[str, ...]
    read: Callable[[Parts, Formats], Values]


def true_underflow(probe: ProbeRow) -> Values:
    """Non-zero in the reference and zero in the training's precision, of the non-zeros; NaN for none."""
    return divided(_column(probe, "lost"), _column(probe, "reference_nonzero"))


def relative_error(probe: ProbeRow) -> Values:
    """norm(own - reference) / norm(reference); NaN where the reference is zero."""
    return np.sqrt(divided(_column(probe, "error_squares"), _column(probe, "reference_squares")))


def cosine(probe: ProbeRow) -> Values:
    """Of the angle between both gradients; NaN where one of them is zero."""
    with _silent():
        norms = np.sqrt(_column(probe, "own_squares")) * np.sqrt(_column(probe, "reference_squares"))
    return divided(_column(probe, "products"), norms)


def _update_ratio(parts: Parts, _: Formats) -> Values:
    return np.sqrt(divided(_sum(parts, "update_squares"), _sum(parts, "weight_squares")))


def _absorbed_share(parts: Parts, formats: Formats) -> Values:
    in_fp16 = np.array([target is FP16 for target in formats], np.bool_)
    absorbed = np.where(in_fp16, _sum(parts, "absorbed_fp16"), _sum(parts, "absorbed_bf16"))
    return divided(absorbed, _sum(parts, "intended"))


def _share(parts: Parts, _: Formats, *, part: str, whole: str) -> Values:
    return divided(_sum(parts, part), _sum(parts, whole))


def _amax(parts: Parts, _: Formats, *, column: str, scaled: bool) -> Values:
    # A scale of 0 leaves nothing to undo.
    with _silent():
        return reduce(np.fmax, [part.columns[column] / ((scaled and part.scale) or 1.0) for part in parts])


def _headroom(parts: Parts, formats: Formats, *, column: str) -> Values:
    """Octaves up to the largest finite value of each row's format, of values as they stood, scaled."""
    with _silent():
        reached = np.log2(_amax(parts, formats, column=column, scaled=False))
    return np.log2([target.max_finite for target in formats]) - reached


def _sum(parts: Parts, name: str) -> Values:
    periodic = [part for part in parts if part.periodic]
    has_periodic = np.sum([part.tallies for part in periodic], axis=0) > 0 if periodic else False
    return np.where(has_periodic, _total(periodic, name, len(parts[0].tallies)), _total(parts, name))


def _total(parts: Parts, name: str, rows: int = 0) -> Values:
    return reduce(partial(folded, name), [part.columns[name] for part in parts]) if parts else unknown(rows)


def _silent() -> np.errstate:
    """Sums and scales may be infinite, or their quotients: that is told as not known, and not by numpy on stderr."""
    return np.errstate(all="ignore")


def _column(probe: ProbeRow, name: str) -> Values:
    return probe.columns.get(name, unknown(len(probe.positions)))


PLANS: dict[TallyMeasure, Plan] = {
    "update_ratio": Plan("parameter", ("update_squares", "weight_squares"), _update_ratio),
    "absorbed_share": Plan("parameter", ("intended", "absorbed_fp16", "absorbed_bf16"), _absorbed_share),
    "unchanged_share": Plan(
        "parameter", ("unchanged", "with_gradient"), partial(_share, part="unchanged", whole="with_gradient")
    ),
    "true_underflow": Plan(
        "probe", ("lost", "reference_nonzero"), partial(_share, part="lost", whole="reference_nonzero")
    ),
    "forward_amax": Plan("module", ("forward_amax",), partial(_amax, column="forward_amax", scaled=False)),
    "forward_headroom": Plan("module", ("forward_amax",), partial(_headroom, column="forward_amax")),
    "grad_output_amax": Plan("module", ("grad_output_amax",), partial(_amax, column="grad_output_amax", scaled=True)),
    "grad_output_headroom": Plan("module", ("grad_output_amax",), partial(_headroom, column="grad_output_amax")),
}
