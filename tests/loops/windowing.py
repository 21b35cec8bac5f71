"""The facts that have to be told of each window, from what was counted and what the loop says of itself."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from tests.loops.counting import Count, Counted

Facts = dict[str, object]


def expected_windows(count: Count) -> Iterator[Facts]:
    """The facts of each update, in order: what follows from the count, and what the loop says."""
    for update in count.updates:
        yield {**_expected(update, count), **update.facts}


def clipped(kind: str, limit: float, *, when: str = "unscaled", calls: int = 1) -> Facts:
    """What is told of clippings by ``kind`` (norm, value) at ``limit``."""
    return {"kind": kind, "limit": limit, "when": when, "calls": calls}


def clipped_while_scaled(limit: float, norm: float, scale: float) -> Facts:
    """What is told of clipping gradients of this ``norm`` that are still multiplied by ``scale``."""
    taken, intended = _coefficient(limit, norm), _coefficient(limit, norm / scale)
    return {"coefficient": taken, "intended": intended, "factor": taken / intended, "scale": scale}


def nearly(value: object) -> object:
    """``value``, to be compared with what was computed in single precision."""
    if isinstance(value, dict):
        return {name: nearly(part) for name, part in value.items()}
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-5) if math.isfinite(value) else str(value)
    return value


def _coefficient(limit: float, norm: float) -> float:
    """As the documentation of ``clip_grad_norm_`` has it."""
    return limit / (norm + 1e-6) if limit < norm + 1e-6 else 1.0 if math.isfinite(norm) else math.nan


def _expected(update: Counted, count: Count) -> Facts:
    names = [name for name in count.order if name in update.gradients]
    passes = {name: update.micro_batches[name] for name in names}
    facts: Facts = {"micro_batches": next(iter(passes.values())) if len(names) == 1 else passes, "zero_grad": True}
    if update.scale is not None:
        facts["unscale"] = "implicit"
    if set(update.overflowed) & set(update.fused):
        facts["skipped_in_kernel"] = True
    if update.idle:
        facts["not_stepped"] = update.idle
    if len(names) < len(count.order):
        facts["optimizers"] = names
    return facts
