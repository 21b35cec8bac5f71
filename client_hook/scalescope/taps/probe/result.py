"""What a probe found, for who asked and for the record."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scalescope.events import json_number
from scalescope.numerics.tallies import PROBE_TALLIES
from scalescope.taps.facts import sendable
from scalescope.taps.probe.compare import Columns
from scalescope.wire import Probe

# wire.Text holds 16,384 characters.
_MAX_TEXT = 16_000
_MAX_REASON = 2000


@dataclass(frozen=True, slots=True)
class Difference:
    """One parameter's gradient in the training's precision beside fp32. None: the reference is all zero.

    Attributes:
        true_underflow: zero in the training's precision / non-zero in fp32, of elements.
        relative_error: norm of the difference / norm in fp32.
        cosine: of the angle between both.
        nonfinite: elements that overflowed in the training's precision; the other numbers leave them out.
    """

    true_underflow: float | None
    relative_error: float | None
    cosine: float | None
    nonfinite: int


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A micro-batch in the training's own precision and in fp32.

    Attributes:
        loss, reference_loss: not scaled.
        scale: of the training's own backward; None without a scaler.
        format: what the training computes in, ``fp16`` or ``bf16``.
        seconds: what the probe took.
        total: all parameters together.
        parameters: by name.
        updates: parameter name -> relative differences after one update, when asked for: of the new ``weight``, of
            its ``update``, and of each moment, under the optimizer's own name for it.
        no_updates: why there are none although they were asked for.
    """

    loss: float
    reference_loss: float
    scale: float | None
    format: str
    seconds: float
    total: Difference
    parameters: Mapping[str, Difference]
    updates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    no_updates: str = ""


def differences(columns: Columns) -> list[Difference]:
    """One for each row of ``columns``."""
    rows = zip(*(columns[name].tolist() for name in PROBE_TALLIES), strict=True)
    return [_difference(dict(zip(PROBE_TALLIES, row, strict=True))) for row in rows]


def together(columns: Columns) -> Difference:
    """All rows as one."""
    return _difference({name: float(values.sum()) for name, values in columns.items()})


def record_of(result: ProbeResult, indexes: Sequence[int], columns: Columns, *, step: int, at: float) -> Probe:
    """The record of ``result``, whose rows are the parameters ``indexes``."""
    data: dict[str, object] = {
        "loss": json_number(result.loss),
        "reference_loss": json_number(result.reference_loss),
        "scale": None if result.scale is None else json_number(result.scale),
        "format": result.format,
        "seconds": round(result.seconds, 6),
    }
    if result.updates:
        data["updates"], left_out = _fitting(result.updates)
        data |= {"left_out": left_out} if left_out else {}
    if result.no_updates:
        data["no_updates"] = sendable(result.no_updates[:_MAX_REASON])
    return _record(data, step, at, indexes, columns)


def refusal_of(reason: str, *, step: int, at: float) -> Probe:
    """The record of a probe that could not be made."""
    return _record({"reason": sendable(reason[:_MAX_REASON])}, step, at, (), {})


def _record(data: Mapping[str, object], step: int, at: float, indexes: Sequence[int], columns: Columns) -> Probe:
    return Probe(
        sequence=0,
        step=step,
        at=at,
        data=json.dumps(data, allow_nan=False),
        indexes=np.asarray(indexes, "<i4").tobytes(),
        columns={name: np.ascontiguousarray(values, "<f8").tobytes() for name, values in columns.items()},
    )


def _difference(sums: Mapping[str, float]) -> Difference:
    nonzero, reference = sums["reference_nonzero"], sums["reference_squares"]
    size = math.sqrt(reference) * math.sqrt(sums["own_squares"])
    return Difference(
        true_underflow=sums["lost"] / nonzero if nonzero else None,
        relative_error=math.sqrt(sums["error_squares"] / reference) if reference else None,
        cosine=sums["products"] / size if size else None,
        nonfinite=int(sums["own_nonfinite"]),
    )


def _size(difference: float) -> float:
    return math.inf if math.isnan(difference) else difference


def _fitting(updates: Mapping[str, Mapping[str, float]]) -> tuple[dict[str, dict[str, object]], int]:
    """Those that differ most, as many as the record holds, and how many are left out."""
    kept: dict[str, dict[str, object]] = {}
    room = _MAX_TEXT - 1000
    for name in sorted(updates, key=lambda name: _size(updates[name].get("update", 0.0)), reverse=True):
        told: dict[str, object] = {kind: json_number(float(f"{value:.4g}")) for kind, value in updates[name].items()}
        room -= len(json.dumps({name: told}))
        if room < 0:
            break
        kept[name] = told
    return kept, len(updates) - len(kept)
