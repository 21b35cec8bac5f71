"""In which precisions a reference probe runs: the one that the training computes in, and fp32 beside it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scalescope.errors import ScalescopeError

HALVES = (torch.float16, torch.bfloat16)
_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


class ProbeError(ScalescopeError):
    """A probe that cannot tell the truth here; the text says why and what to do. Never reaches the training."""


@dataclass(frozen=True, slots=True)
class Precision:
    """What the training computes in: under autocast to ``autocast``, or as its parameters are where that is None."""

    device: str
    autocast: torch.dtype | None
    own: torch.dtype

    @property
    def format(self) -> str:
        """``fp16`` or ``bf16``."""
        return _NAMES[self.own]

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """The training's own precision, and no other autocast than the training's."""
        on = self.autocast is not None
        # Casting a weight once or at each use gives other sums: as the trainer has it.
        cached = torch.is_autocast_cache_enabled()
        with torch.autocast(self.device, dtype=self.autocast, enabled=on, cache_enabled=cached):
            yield


@contextlib.contextmanager
def fp32(devices: Collection[str]) -> Iterator[None]:
    """fp32 as IEEE 754 has it on ``devices``: no autocast, no TF32, and no compiled graph, whose inside is unseen."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_full_precision())
        stack.enter_context(eager_alone())
        for device in {"cpu", *devices}:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextlib.contextmanager
def eager_alone() -> Iterator[None]:
    """Nothing is compiled, nor runs as it was compiled. Under a mode torch would give a function up for good.

    Raises:
        ProbeError: where this torch (before 2.6) cannot, and something may be compiled.
    """
    if "torch._dynamo" not in sys.modules:
        yield
        return
    if not hasattr(torch.compiler, "set_stance"):
        raise ProbeError("beside torch.compile a probe takes torch 2.6 or newer")
    with torch.compiler.set_stance("force_eager"):
        yield


def precision_of(
    parameters: Sequence[torch.Tensor],
    *,
    dtype: torch.dtype | None,
    observed: Mapping[str, str | None],
    computed: Collection[str | None],
) -> Precision:
    """What the training computes in, from the surest source that tells.

    Args:
        parameters: those of the watched models.
        dtype: what the caller says, or None.
        observed: device type -> format of the autocast in force at the last forward; None: it was off.
        computed: the formats in which gradients of fp32 parameters were seen to be computed.

    Raises:
        ProbeError: if nothing tells of half precision.
    """
    device = parameters[0].device.type
    halves = [parameter.dtype for parameter in parameters if parameter.dtype in HALVES]
    told = _told(device, dtype, observed)
    if told is not None:
        return Precision(device, told, told)
    if halves:
        return Precision(device, None, max(set(halves), key=halves.count))
    seen = [found for found in computed if found in _DTYPES]
    if seen:
        found = _DTYPES[max(set(seen), key=seen.count)]
        return Precision(device, found, found)
    raise ProbeError(
        "no half precision of this training is known yet, so there is nothing to compare with fp32: pass "
        "dtype=torch.float16 or torch.bfloat16, or probe inside of the autocast that the loop uses"
    )


def _told(device: str, dtype: torch.dtype | None, observed: Mapping[str, str | None]) -> torch.dtype | None:
    if dtype is not None:
        if dtype not in HALVES:
            raise ProbeError(f"dtype: expected torch.float16 or torch.bfloat16, got {dtype}")
        return dtype
    if torch.is_autocast_enabled(device):
        active = torch.get_autocast_dtype(device)
        return active if active in HALVES else None
    return _DTYPES.get(observed.get(device) or "")


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in _switches()]
    try:
        for owner, name, value in _switches():
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)


def _switches() -> list[tuple[Any, str, object]]:
    """(where, name, the value for full fp32). Half reductions are no matter: nothing in fp32 makes one."""
    backends: Any = torch.backends
    cuda, cudnn, onednn = backends.cuda.matmul, backends.cudnn, backends.mkldnn
    if hasattr(backends, "fp32_precision"):
        operations = [cuda, cudnn.conv, cudnn.rnn]
        operations += [getattr(onednn, name) for name in ("matmul", "conv", "rnn") if hasattr(onednn, name)]
        return [(operation, "fp32_precision", "ieee") for operation in operations]
    # Before torch 2.9.
    return [(cuda, "allow_tf32", False), (cudnn, "allow_tf32", False)]
