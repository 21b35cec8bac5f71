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

from scalescope.numerics.absorbed import absorbed
from scalescope.numerics.transfer import Transfer, to_host
from scalescope.taps.weights.rows import Batch, Row

_SQUARES = ("update_squares", "weight_squares")
_OF_GRADIENT = ("with_gradient", "unchanged")
_OF_INTENDED = ("intended", "absorbed_fp16", "absorbed_bf16")
# Elements counted at once: on the CPU the scratch stays in the cache, elsewhere it is calls that cost.
_CHUNK_CPU, _CHUNK = 1 << 16, 1 << 20


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
        found = dict(zip(_SQUARES + _OF_GRADIENT + _OF_INTENDED, table, strict=True))
        for names, known in ((_OF_GRADIENT, self.gradient_known), (_OF_INTENDED, self.intended_known)):
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
        self._gradients = [_copied(row.gradient()) for row in self._rows] if at is GradientAt.BEFORE else None

    def count(self) -> Counted:
        """Compare with the weights as they are now."""
        gradients, lengths = self._gradients_by_row(), _lengths(self._rows)
        before = self._weights.double()
        change = _joined(self._rows).double().sub_(before)
        gradient = _filled(gradients, self._rows)
        table = _tallied(before, change, gradient, self._intended(before, change, gradient), lengths)
        known = [found is not None for found in gradients]
        return Counted(
            indexes=[row.index for row in self._rows],
            numel=[row.look.numel for row in self._rows],
            looked=lengths,
            gradient_known=known,
            intended_known=[
                not row.is_narrow or (found and aimed)
                for row, found, aimed in zip(self._rows, known, self._aimed(lengths), strict=True)
            ],
            counts=to_host(table),
        )

    def _aimed(self, lengths: Sequence[int]) -> list[bool]:
        """Whether there is an aim for each row."""
        starts = itertools.accumulate(lengths[:-1], initial=0)
        return [any(aim.start <= start < aim.end for aim in self._aims) for start in starts]

    def _gradients_by_row(self) -> list[torch.Tensor | None]:
        if self._gradients is not None:
            return self._gradients
        late = self._at is GradientAt.AFTER
        return [row.gradient() if late else None for row in self._rows]

    def _intended(self, before: torch.Tensor, change: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Float64 [looked]: the change itself where the weights can hold it, what the rule says where they cannot."""
        if not self._aims:
            return change
        intended = change.clone()
        for start, end, intention in self._aims:
            wide = gradient[start:end].double()
            unscaled = wide if self._scale is None else wide / self._scale
            intended[start:end] = intention.of(before[start:end], unscaled)
        return intended


def _tallied(
    before: torch.Tensor, change: torch.Tensor, gradient: torch.Tensor, intended: torch.Tensor, lengths: list[int]
) -> torch.Tensor:
    """float64 [columns, rows]: the two norms, then the counts."""
    columns = len(_OF_GRADIENT) + len(_OF_INTENDED)
    # Dtype and device are named: the training may have made others the default.
    flags = torch.empty(columns, len(before), dtype=torch.float32, device=before.device)
    chunk = _CHUNK_CPU if before.is_cpu else _CHUNK
    inputs = (before, change, gradient, intended, flags.T)
    for weights, moved, slope, aim, found in zip(*(tensor.split(chunk) for tensor in inputs), strict=True):
        _flag(weights, moved, slope, aim, found.T)
    norms = [torch.stack(torch._foreach_norm(values.split(lengths))) for values in (change, before)]
    return torch.cat([torch.stack(norms), _summed(flags, lengths).double()])


def _summed(flags: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Float32 [columns, rows]: how many ones each row has. Exact to 2**24."""
    if flags.is_cpu:
        starts = np.cumsum([0, *lengths[:-1]])
        return torch.from_numpy(np.add.reduceat(flags.numpy(), starts, axis=1))
    return torch.stack([torch.stack(torch._foreach_norm(column.split(lengths), 1)) for column in flags])


def _flag(
    weights: torch.Tensor, moved: torch.Tensor, gradient: torch.Tensor, aim: torch.Tensor, found: torch.Tensor
) -> None:
    with_gradient = gradient != 0
    found[0] = with_gradient
    found[1] = with_gradient & (moved == 0)
    # Neither zero nor NaN nor infinite: the last two have no difference to themselves.
    meant = (aim != 0) & (aim - aim == 0)
    found[2] = meant
    found[3] = meant & absorbed(weights, aim, torch.float16)
    found[4] = meant & absorbed(weights, aim, torch.bfloat16)


def _joined(rows: Sequence[Row]) -> torch.Tensor:
    return torch.cat([row.look.at(row.parameter) for row in rows])


def _lengths(rows: Sequence[Row]) -> list[int]:
    return [row.look.looked for row in rows]


def _copied(found: torch.Tensor | None) -> torch.Tensor | None:
    return None if found is None else found.clone()


def _filled(gradients: Sequence[torch.Tensor | None], rows: Sequence[Row]) -> torch.Tensor:
    """All under one another; zeros for what is not known."""
    parts = [
        torch.zeros(row.look.looked, dtype=torch.float32, device=row.device) if gradient is None else gradient
        for row, gradient in zip(rows, gradients, strict=True)
    ]
    return torch.cat(parts)
