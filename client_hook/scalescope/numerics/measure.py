"""Tensors to exponent histograms, in the training thread, without an additional synchronisation.

On the CPU the numbers are there when :func:`measure` returns. On a device the whole result of a sample is one buffer,
copied once; ``ready()`` says when it has arrived. Either way there is a faster way where it can be had, and one that
always works: :func:`path_of` says which is in use.

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

from scalescope.numerics.exponents import Histograms
from scalescope.numerics.launches import ROW, Launches
from scalescope.numerics.measure_cpu import Raw
from scalescope.numerics.measure_device import DeviceMeasuring, measure_into, raw_of
from scalescope.numerics.measure_host import HostMeasuring
from scalescope.numerics.paths import Faster, Path
from scalescope.numerics.transfer import Arrival, to_host

_CPU = HostMeasuring()
_DEVICES: dict[torch.device, DeviceMeasuring] = {}
# What is measured as it lies; anything else is made fp32 first.
_NATIVE = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Measurement:
    """Histograms on their way. ``result()`` must not be called before ``ready()`` is true.

    ``refused``: nothing was measured, and the result is that of no elements.
    """

    __slots__ = ("_event", "_on_host", "_read", "refused")

    def __init__(
        self,
        read: Callable[[], Histograms],
        event: Arrival | None = None,
        *,
        on_host: bool = True,
        refused: bool = False,
    ) -> None:
        self.refused = refused
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

    Returns:
        The measurement; ``refused`` where so many of a device are under way that there is no room for one more.
    """
    values = [_dense_values(tensor) for tensor in tensors]
    hidden = np.zeros(len(values), np.int64)
    for row, tensor in enumerate(tensors):
        if tensor.layout is not torch.strided:
            hidden[row] = _elements(tensor) - values[row].numel()
    device = next((found.device for found in values if found.device.type != "cpu"), None)
    if device is None:
        table = _table(_CPU.measure(values, factor), hidden)
        return Measurement(lambda: table)
    if device.type != "cuda":
        return _on_device(values, hidden, device, factor)
    arriving = _on(device).measure(values, factor)
    if arriving is None:
        return Measurement(lambda: Histograms.empty(len(values)), refused=True)
    return Measurement(lambda: _table(arriving.read(), hidden), arriving)


def path_of(device: torch.device) -> Path:
    """How tensors on ``device`` are measured now.

    ``numba`` or ``torch`` on the CPU, ``triton`` or ``torch-device`` elsewhere, and why it is not the first of both.
    """
    if device.type == "cpu":
        return _CPU.path
    return _on(device).path if device.type == "cuda" else Path("torch-device", "triton: only for devices of NVIDIA")


def kernels_of(device: torch.device) -> Faster[Launches]:
    """The kernels that tensors on a CUDA ``device`` are measured by, for others to launch as well."""
    return _on(device).faster


def refused() -> int:
    """How many measurements there was no room for."""
    return sum(measuring.pool.refused for measuring in _DEVICES.values())


def _on(device: torch.device) -> DeviceMeasuring:
    if str(device) == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    found = _DEVICES.get(device)
    if found is None:
        found = _DEVICES[device] = DeviceMeasuring(device)
    return found


def _dense_values(tensor: torch.Tensor) -> torch.Tensor:
    """The stored values as a flat tensor of fp32, bf16, fp16 or float64."""
    # The usual ones first: there may be hundreds.
    if tensor.layout is torch.strided and tensor.dtype in _NATIVE and not tensor.is_neg():
        return tensor.detach().reshape(-1)
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
    """The same on a device that has no events: what is found stays there until somebody asks."""
    out = torch.zeros(len(values), ROW, dtype=torch.int64, device=device)
    measure_into(out, values, factor)
    transfer = to_host(out)
    return Measurement(
        lambda: _table(raw_of(transfer.values.cpu().numpy()), hidden), transfer.event, on_host=transfer.on_host
    )


def _table(raw: Raw, hidden: NDArray[np.int64]) -> Histograms:
    return Histograms(
        counts=raw.fields[:, 1:255].copy(),
        zero=raw.fields[:, 0] + hidden,
        inf=raw.inf.copy(),
        nan=raw.fields[:, 255] - raw.inf,
        amax=raw.amax.copy(),
        sum_squares=raw.squares.copy(),
    )
