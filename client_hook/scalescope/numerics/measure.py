"""Tensors to exponent histograms, in the training thread, without an additional synchronisation.

On the CPU the numbers are there when :func:`measure` returns. On a device the whole result of a sample is
one buffer, copied once (see :mod:`~scalescope.numerics.transfer`); ``ready()`` says when it has arrived.

The bin of a value is the exponent field of its bits, read through an integer view: no ``frexp``, ``histc``,
``isfinite`` or ``norm(inf)``, which are 3 to 30 times dearer or wrong. fp16 is widened first (its own field
merges 2**-24 to 2**-15), bf16 is read as it is, float64 is folded into fp32's range: magnitudes of 2**128
and more count as infinite, as a cast to fp32 would make them, though ``amax`` keeps the finite value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from scalescope.numerics.accelerated import Accelerated
from scalescope.numerics.exponents import Histograms
from scalescope.numerics.fields import FIELDS, fields_into
from scalescope.numerics.measure_cpu import prepared
from scalescope.numerics.paths import Path
from scalescope.numerics.transfer import Arrival, to_host

_CPU = Accelerated()
# What is measured as it lies; anything else is made fp32 first.
_NATIVE = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Elements counted at once on a device: bounds the int64 bins that scatter_add wants (32 MB).
_CHUNK = 1 << 22


class Measurement:
    """Histograms on their way. ``result()`` must not be called before ``ready()`` is true."""

    __slots__ = ("_event", "_on_host", "_read")

    def __init__(self, read: Callable[[], Histograms], event: Arrival | None = None, *, on_host: bool = True) -> None:
        self._read = read
        self._event = event
        self._on_host = on_host

    def ready(self) -> bool:
        """Whether the numbers have arrived on the host; asks, never waits."""
        return self._event is None or self._event.query()

    def result(self) -> Histograms:
        """One row for each measured tensor, in order. On devices without events this waits for the device."""
        return self._read()

    def at_hand(self) -> Histograms | None:
        """The result if it is on the host already. Never waits, so the training thread may ask."""
        return self._read() if self._on_host and self.ready() else None


@torch.no_grad()
def measure(tensors: Sequence[torch.Tensor], *, factor: float = 1.0) -> Measurement:
    """Measure every value of ``tensors``, multiplied by ``factor``.

    Args:
        tensors: any shapes (empty and 0-d included), floating dtypes, layouts strided or sparse, on one device.
            Sparse tensors are coalesced first, for which the host waits for their device (how many rows are
            left is known there alone); their implicit zeros are counted.
        factor: 1 for values as they stand; the loss scale for gradients that were already divided by it.
    """
    values = [_dense_values(tensor) for tensor in tensors]
    hidden = [_elements(tensor) - found.numel() for tensor, found in zip(tensors, values, strict=True)]
    device = next((found.device for found in values if found.device.type != "cpu"), None)
    if device is None:
        raw = _CPU.measure(values, factor)
        table = _table(raw.fields, raw.inf, np.asarray(hidden, np.int64), raw.amax, raw.squares)
        return Measurement(lambda: table)
    return _on_device(values, np.asarray(hidden, np.int64), device, factor)


def path_of(device: torch.device) -> Path:
    """How tensors on ``device`` are measured now: ``numba`` or ``torch`` on the CPU, elsewhere ``torch-device``."""
    return _CPU.path("torch") if device.type == "cpu" else Path("torch-device", "")


def _dense_values(tensor: torch.Tensor) -> torch.Tensor:
    """The stored values as a flat tensor of fp32, bf16, fp16 or float64."""
    found = tensor.detach()
    if found.layout is torch.sparse_coo:
        found = found.coalesce().values()
    elif found.layout is not torch.strided:
        found = found.values()
    if found.is_complex():
        found = torch.view_as_real(found.resolve_conj())
    if found.dtype not in _NATIVE:
        found = found.float()
    # Lazily negated bits are not those of the values.
    return (found.resolve_neg() if found.is_neg() else found).reshape(-1)


def _elements(tensor: torch.Tensor) -> int:
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def _on_device(
    values: Sequence[torch.Tensor], hidden: NDArray[np.int64], device: torch.device, factor: float = 1.0
) -> Measurement:
    """The same on any device: scatter_add counts without telling the host how large the result is."""
    rows = len(values)
    fields = torch.zeros(rows * FIELDS, dtype=torch.int64, device=device)
    inf = torch.zeros(rows, dtype=torch.int64, device=device)
    real = torch.zeros(2, rows, dtype=torch.float64, device=device)
    longest = min(max(found.numel() for found in values), _CHUNK)
    wide = torch.empty(longest, dtype=torch.int32, device=device)
    narrow = torch.empty(longest, dtype=torch.uint8, device=device)
    one = torch.ones((), dtype=torch.int64, device=device)
    for row, found in enumerate(values):
        for chunk in found.split(longest) if found.numel() else ():
            part = prepared(chunk, factor)
            bins = fields_into(part, wide, narrow).long() + row * FIELDS
            fields.scatter_add_(0, bins, one.expand(bins.shape))
            magnitude = part.abs()
            finite = torch.where(magnitude < torch.inf, magnitude, magnitude.new_zeros(()))
            inf[row] += (magnitude >= 2.0**128).sum()
            real[0, row] = torch.maximum(real[0, row], finite.max().double())
            real[1, row] += torch.linalg.vector_norm(finite, dtype=torch.float64).square()
    packed = torch.cat([fields, inf, real.view(torch.int64).reshape(-1)])
    transfer = to_host(packed)

    def read() -> Histograms:
        flat = transfer.values.cpu().numpy()
        counted = flat[: rows * FIELDS].reshape(rows, FIELDS)
        found_inf = flat[rows * FIELDS : rows * (FIELDS + 1)]
        amax, squares = flat[rows * (FIELDS + 1) :].view(np.float64).reshape(2, rows)
        return _table(counted, found_inf, hidden, amax, squares)

    return Measurement(read, transfer.event, on_host=transfer.on_host)


def _table(
    fields: NDArray[np.int64],
    inf: NDArray[np.int64],
    hidden: NDArray[np.int64],
    amax: NDArray[np.float64],
    squares: NDArray[np.float64],
) -> Histograms:
    return Histograms(
        counts=fields[:, 1:255].copy(),
        zero=fields[:, 0] + hidden,
        inf=inf.copy(),
        nan=fields[:, 255] - inf,
        amax=amax.copy(),
        sum_squares=squares.copy(),
    )
