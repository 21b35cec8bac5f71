"""The floating tensors in what a module takes or answers, however they are packed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping

import torch
from torch.nn.parameter import is_lazy
from torch.utils import _python_dispatch as dispatching

from scalescope.taps.backward.gradients import local

# Deeper than any model's answers; caches may hold more tensors than anybody reads telemetry of.
_DEPTH = 4
_MAX_TENSORS = 64
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _none() -> None:
    return None


# What torch.jit.is_tracing and torch.func ask themselves.
_trace: Callable[[], object] = getattr(torch._C, "_get_tracing_state", _none)  # noqa: SLF001 - detected
_transform: Callable[[], object] = getattr(torch._C._functorch, "peek_interpreter_stack", _none)  # noqa: SLF001 - same
# How many modes see each operation, and what keeps it from them.
_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", int)  # noqa: SLF001 - same
_without_modes: Callable[[], contextlib.AbstractContextManager[object]] = getattr(
    dispatching, "_disable_current_modes", contextlib.nullcontext
)
_AS_IT_IS = contextlib.nullcontext()


def floating(answer: object) -> list[torch.Tensor]:
    """Every real floating tensor in ``answer``, each once: itself, in tuples, lists, mappings and dataclasses."""
    if isinstance(answer, torch.Tensor):
        return [answer] if answer.is_floating_point() else []
    found: dict[int, torch.Tensor] = {}
    for tensor in _tensors(answer, _DEPTH):
        if len(found) >= _MAX_TENSORS:
            break
        if tensor.is_floating_point():
            found[id(tensor)] = tensor
    return list(found.values())


def values_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The values that can be looked at, strided: the local shard of a sharded tensor, what a sparse one stores.

    None for what holds no values of its own (meta, nested, not initialized yet, a subclass that only torch knows
    how to read), and for a sparse one on a device, since the host would wait to learn how many values it has.
    """
    if is_lazy(tensor):
        return None
    found = local(tensor.detach()) if tensor.requires_grad or type(tensor) not in _PLAIN else tensor
    if type(found) not in _PLAIN or found.is_meta or found.is_nested:
        return None
    if found.layout is torch.strided:
        return found
    if not found.is_cpu:
        return None
    return found.coalesce().values() if found.layout is torch.sparse_coo else found.values()


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` is under way, a trace or a capture: a value there is not the training's."""
    return _trace() is not None or _transform() is not None or _is_captured()


def unobserved() -> contextlib.AbstractContextManager[object]:
    """What is computed inside is unseen by the trainer's own modes.

    Selective checkpointing keeps a list of the operations of a forward, for instance, and takes the results of
    the recomputed ones from it in turn: one of ours among them would shift all others.
    """
    return _without_modes() if _modes() else _AS_IT_IS


def _is_captured() -> bool:
    """Whether a CUDA graph is being made: whatever is computed now would be in it, at every replay."""
    # Asked before, torch would make a context on the device.
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _tensors(answer: object, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(answer, torch.Tensor):
        yield answer
    elif depth:
        for part in _parts(answer):
            yield from _tensors(part, depth - 1)


def _parts(answer: object) -> Iterator[object]:
    if isinstance(answer, list | tuple):
        yield from answer
    elif isinstance(answer, Mapping):
        yield from answer.values()
    elif dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        for field in dataclasses.fields(answer):
            yield getattr(answer, field.name, None)
