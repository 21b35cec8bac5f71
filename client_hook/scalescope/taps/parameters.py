"""Which parameter is which: one index for a segment, in forward order, under the name the model's author gave.

Wrappers leave no trace in a name: compiling, data parallelism, sharding and checkpointing add their own
segments, and the same layer must carry the same name with and without them.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from scalescope.taps.library.optimizer import told_by_libraries
from scalescope.taps.naming import plain, prefixes, unwrapped
from scalescope.taps.ranks.shares import Shares
from scalescope.wire import Layout, Module, Order, Parameter

# The wire carries no more; a model of this many tensors is watched in part.
MAX_PARAMETERS = 20_000
_MAX_NAME = 512
OWN_FORMAT = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


class Parameters:
    """The parameters that a scope watches. Indexes are given once and never change.

    The tensors are held until :meth:`release`: torch refuses to swap one that has weak references, as loading
    and converting a model do under ``torch.__future__.set_swap_module_params_on_conversion``.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._models = [weakref.ref(model) for model in models]
        self._entries: list[Parameter] = []
        self._places: dict[int, int] = {}
        self._modules: dict[str, int] = {}
        self.tensors: list[torch.Tensor] = []
        self.shares = Shares(self.models(), told_by_libraries(optimizers))
        # Those that are listened to, in forward order; others enter them.
        self.modules: list[Module] = []
        for name, tensor in self._named():
            if tensor.requires_grad:
                self._enter(name, tensor)
        self.extend(optimizers)

    def __len__(self) -> int:
        return len(self._entries)

    def index(self, tensor: torch.Tensor) -> int | None:
        """Its index; None for a parameter that has none yet."""
        return self._places.get(id(tensor))

    def owners(self, optimizers: Sequence[torch.optim.Optimizer]) -> dict[int, int]:
        """Index -> the number of the first optimizer that holds it."""
        found: dict[int, int] = {}
        for number, optimizer in enumerate(optimizers):
            for group in optimizer.param_groups:
                for tensor in group["params"]:
                    index = self.index(tensor)
                    if index is not None:
                        found.setdefault(index, number)
        return found

    def release(self) -> None:
        """Hold the tensors no longer. Their indexes are gone, their names stay."""
        self.tensors.clear()
        self._places.clear()

    @property
    def compiled(self) -> bool:
        """Whether a model, or a module in it, is compiled by now. One compiled from outside does not tell."""
        return any(map(_is_compiled, self.models()))

    @property
    def sharded(self) -> bool:
        """Whether some parameter is spread over ranks, as a DTensor."""
        return any(hasattr(tensor, "to_local") for tensor in self.tensors)

    def extend(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Enter what the optimizers hold and the layout lacks: unfrozen later, added, or of no watched model."""
        names = {id(tensor): name for name, tensor in self._named()}
        for number, optimizer in enumerate(optimizers):
            for group, settings in enumerate(optimizer.param_groups):
                for place, tensor in enumerate(settings["params"]):
                    if tensor.requires_grad and self.index(tensor) is None:
                        self._enter(names.get(id(tensor), f"optimizer{number}.{group}.{place}"), tensor)

    def module(self, index: int) -> int:
        """The number of its module, in forward order: the index of the first parameter of the same module."""
        return self._modules[self._entries[index].module]

    def name(self, index: int) -> str:
        """As the model's author knows it."""
        return self._entries[index].name

    def models(self) -> list[nn.Module]:
        """The watched models that are still there."""
        return [model for reference in self._models if (model := reference()) is not None]

    def computed(self) -> list[str | None]:
        """In which format the gradient of each fp32 parameter was seen to be computed; None where it did not tell."""
        return [entry.compute_format for entry in self._entries if entry.dtype == "float32"]

    def set_format(self, index: int, compute_format: str) -> None:
        entry = self._entries[index]
        self._entries[index] = Parameter(
            entry.name, entry.module, entry.shape, entry.dtype, entry.numel, compute_format
        )

    def settle_shares(self) -> None:
        """Gradients are about to be measured: see to it that those which another rank reports are known."""
        self.shares.settle(self.tensors, self.models())

    def layout(self, order: Order, backward: Sequence[int]) -> Layout:
        """The record of what is known now. Where no order can be heard it is the reverse of the forward's."""
        if not backward and self.shares.flattened:
            order, backward = "forward", range(len(self) - 1, -1, -1)
        self.shares.changed = False
        return Layout(
            sequence=0,
            parameters=list(self._entries),
            order=order,
            backward=list(backward),
            modules=list(self.modules),
            parts=list(self.shares.parts),
        )

    def _named(self) -> Iterator[tuple[str, torch.Tensor]]:
        models = self.models()
        for model, prefix in zip(models, prefixes(models), strict=True):
            for name, tensor in unwrapped(model).named_parameters():
                yield prefix + plain(name), tensor

    def _enter(self, name: str, tensor: torch.Tensor) -> None:
        # One that is not initialized yet has no shape; it is entered with its first gradient.
        if len(self._entries) >= MAX_PARAMETERS or self.index(tensor) is not None or is_lazy(tensor):
            return
        # In fp32 the gradient may still have been computed in half: only its first values tell.
        told = self.shares.computed_in(tensor)
        own = OWN_FORMAT.get(told or tensor.dtype) if told or tensor.dtype != torch.float32 else None
        shown = name[-_MAX_NAME:]
        module = shown.rpartition(".")[0]
        dtype = str(tensor.dtype).removeprefix("torch.")
        self._modules.setdefault(module, len(self._entries))
        self._places[id(tensor)] = len(self._entries)
        self.tensors.append(tensor)
        shape = self.shares.enter(tensor)
        self._entries.append(Parameter(shown, module, list(shape), dtype, math.prod(shape), own))


def _is_compiled(model: nn.Module) -> bool:
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
