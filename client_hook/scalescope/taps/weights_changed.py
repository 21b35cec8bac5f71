"""What one step of an optimizer did to the weights: copies before it, counts after it, on the weights' own device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from scalescope.numerics.absorbed import absorbed
from scalescope.numerics.transfer import Transfer, to_host
from scalescope.taps.weights_rows import Row

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

    def __init__(self, rows: Sequence[Row], at: GradientAt, scale: torch.Tensor | None) -> None:
        """Copy. ``scale`` is what the gradients are still multiplied by; None for nothing."""
        self._rows = rows
        self._at = at
        self._scale = None if scale is None else scale.detach().double()
        self._weights = _joined(rows)
        # Some optimizers change them.
        self._gradients = [_copied(row.gradient()) for row in rows] if at is GradientAt.BEFORE else None

    def count(self) -> Counted:
        """Compare with the weights as they are now."""
        gradients = self._gradients_by_row()
        before = self._weights.double()
        change = _joined(self._rows).double().sub_(before)
        intended = self._intended(before, change, gradients)
        table = _tallied(before, change, _filled(gradients, self._rows), intended, _lengths(self._rows))
        has_gradient = [gradient is not None for gradient in gradients]
        return Counted(
            indexes=[row.index for row in self._rows],
            numel=[row.look.numel for row in self._rows],
            looked=_lengths(self._rows),
            gradient_known=has_gradient,
            intended_known=[
                not row.is_narrow or (known and row.intention is not None)
                for row, known in zip(self._rows, has_gradient, strict=True)
            ],
            counts=to_host(table),
        )

    def _gradients_by_row(self) -> list[torch.Tensor | None]:
        if self._gradients is not None:
            return self._gradients
        late = self._at is GradientAt.AFTER
        return [row.gradient() if late else None for row in self._rows]

    def _intended(
        self, before: torch.Tensor, change: torch.Tensor, gradients: Sequence[torch.Tensor | None]
    ) -> torch.Tensor:
        """float64 [looked]: the change itself where the weights can hold it, what the rule says where they cannot."""
        if not any(row.is_narrow for row in self._rows):
            return change
        intended, lengths = change.clone(), _lengths(self._rows)
        parts = zip(self._rows, intended.split(lengths), before.split(lengths), gradients, strict=True)
        for row, part, weights, gradient in parts:
            if row.is_narrow and row.intention is not None and gradient is not None:
                wide = gradient.double()
                part.copy_(row.intention.of(weights, wide if self._scale is None else wide / self._scale))
        return intended


def _tallied(
    before: torch.Tensor, change: torch.Tensor, gradient: torch.Tensor, intended: torch.Tensor, lengths: list[int]
) -> torch.Tensor:
    """float64 [columns, rows]: the two norms, then the counts."""
    flags = torch.empty(len(_OF_GRADIENT) + len(_OF_INTENDED), len(before), device=before.device)
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
        torch.zeros(row.look.looked, device=row.device) if gradient is None else gradient
        for row, gradient in zip(rows, gradients, strict=True)
    ]
    return torch.cat(parts)
