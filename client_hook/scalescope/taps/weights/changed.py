"""What one step of an optimizer did to the weights: copies before it, counts after it, on the weights' own device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from scalescope.numerics.changes import OF_GRADIENT, OF_INTENDED, tallied
from scalescope.numerics.transfer import Transfer, to_host
from scalescope.taps.weights.looked import end_to_end
from scalescope.taps.weights.rows import Batch, Row

_SQUARES = ("update_squares", "weight_squares")


class GradientAt(Enum):
    """When the gradients of a step can be read: where a closure makes them, before it they are others."""

    BEFORE = "before"
    AFTER = "after"
    NEVER = "never"


class Counted(NamedTuple):
    """Counts on their way, of one device: float64 [columns, rows], row i of parameter ``indexes[i]``.

    They rest on ``looked`` of ``numel`` elements. Where a row's gradient or intended update is not known, the
    counts of it mean nothing.
    """

    indexes: list[int]
    numel: list[int]
    looked: list[int]
    gradient_known: list[bool]
    intended_known: list[bool]
    counts: Transfer

    def columns(self) -> dict[str, NDArray[np.float64]]:
        """float64 [rows] by column; NaN: not known. Only when the transfer is ready."""
        table = self.counts.values.cpu().numpy()
        looked = np.asarray(self.looked, np.float64)
        found = dict(zip(_SQUARES + OF_GRADIENT + OF_INTENDED, table, strict=True))
        for names, known in ((OF_GRADIENT, self.gradient_known), (OF_INTENDED, self.intended_known)):
            for name in names:
                found[name] = np.where(known, found[name], math.nan)
        for name in _SQUARES:
            # Of what was looked at; what is not finite is no sum.
            squares = found[name] ** 2 * (np.asarray(self.numel) / looked)
            found[name] = np.where(np.isfinite(squares), squares, math.nan)
        return {"looked": looked, **found}


class Copied:
    """The weights of one device as they were before a step, with what the step intends."""

    def __init__(self, batch: Batch, at: GradientAt, scale: torch.Tensor | None) -> None:
        """Copy. ``scale`` is what the gradients are still multiplied by; None for nothing."""
        self._rows, self._aims = batch
        self._at = at
        self._weights = _joined(self._rows)
        device = self._weights.device
        self._scale = None if scale is None else scale.detach().to(device, torch.float64, non_blocking=True)
        # Some optimizers change them.
        self._gradients = _gradients(self._rows) if at is GradientAt.BEFORE else None

    def count(self) -> Counted:
        """Compare with the weights as they are now."""
        gradients = self._gradients or _gradients(self._rows, there=self._at is GradientAt.AFTER)
        lengths, after = _lengths(self._rows), _joined(self._rows)
        intended = self._intended(after, gradients.values) if self._aims else None
        table = tallied(self._weights, after, gradients.values, intended, lengths)
        return Counted(
            indexes=[row.index for row in self._rows],
            numel=[row.look.numel for row in self._rows],
            looked=lengths,
            gradient_known=gradients.known,
            intended_known=[
                not row.is_narrow or (found and aimed)
                for row, found, aimed in zip(self._rows, gradients.known, self._aimed(lengths), strict=True)
            ],
            counts=to_host(table),
        )

    def _aimed(self, lengths: Sequence[int]) -> list[bool]:
        """Whether there is an aim for each row."""
        if not self._aims:
            return [False] * len(lengths)
        starts = itertools.accumulate(lengths[:-1], initial=0)
        return [any(aim.start <= start < aim.end for aim in self._aims) for start in starts]

    def _intended(self, after: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Float64 [looked]: the change itself where the weights can hold it, what the rule says where they cannot."""
        before = self._weights.double()
        intended = after.double() - before
        for start, end, intention in self._aims:
            wide = gradient[start:end].double()
            unscaled = wide if self._scale is None else wide / self._scale
            intended[start:end] = intention.of(before[start:end], unscaled)
        return intended


class _Gradients(NamedTuple):
    """Those of all rows under one another, [looked], and of which rows they are known: zeros stand for the others."""

    values: torch.Tensor
    known: list[bool]


def _joined(rows: Sequence[Row]) -> torch.Tensor:
    return end_to_end([row.weights() for row in rows])


def _lengths(rows: Sequence[Row]) -> list[int]:
    return [row.look.looked for row in rows]


def _gradients(rows: Sequence[Row], *, there: bool = True) -> _Gradients:
    """A copy; ``there``: as they can be read now."""
    found = [row.gradient() if there else None for row in rows]
    parts = [
        torch.zeros(row.look.looked, dtype=torch.float32, device=row.device) if gradient is None else gradient
        for row, gradient in zip(rows, found, strict=True)
    ]
    return _Gradients(end_to_end(parts), [gradient is not None for gradient in found])
