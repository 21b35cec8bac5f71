"""What only a backward pass tells: the order of the gradients, their formats, and that it ran.

Every parameter gets a hook, which goes once its gradient was seen and its format is known. After the first
updates one parameter for each optimizer keeps its hook and counts the backward passes, so that an ordinary
update costs the same whatever the number of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.utils.hooks import RemovableHandle

from scalescope.taps.edge import Edge
from scalescope.taps.grid import GridCheck, check_grid
from scalescope.taps.parameters import Parameters
from scalescope.wire import Layout, Order

# Gradients that are all zero or not finite tell no format; a scale that is still settling skips about this long.
_ATTEMPTS = 16


class BackwardWatch:
    """Listens to the parameters' gradients. ``heard`` is called at every gradient that still has a hook."""

    def __init__(self, parameters: Parameters, edge: Edge, heard: Callable[[], None]) -> None:
        self._parameters = parameters
        self._edge = edge
        self._heard = heard
        self._handles: dict[int, RemovableHandle] = {}
        self._armed = 0
        # As the gradients first came; a dict for its order and its quick look-up.
        self._order: dict[int, None] = {}
        self._fired: dict[int, int] = {}
        self._attempts: dict[int, int] = {}
        self._checks: dict[int, GridCheck] = {}
        self._sentinels: dict[int, int] = {}
        self._considered = 0
        self._windows = 0
        self._news = False
        self._grown = False

    def arm(self) -> None:
        """Hook the parameters that were entered since the last call."""
        for index in range(self._armed, len(self._parameters)):
            tensor = self._parameters.tensors[index]()
            if tensor is not None and tensor.is_leaf:
                self._handles[index] = tensor.register_post_accumulate_grad_hook(_Hook(self, index))
        # The layout that is sent at the start has the first ones already.
        self._grown = self._grown or 0 < self._armed < len(self._parameters)
        self._armed = len(self._parameters)

    def close_window(self, optimizers: Sequence[torch.optim.Optimizer]) -> int | None:
        """An update closed. The answer is its number of backward passes, None where none was heard."""
        micro_batches = max(self._fired.values(), default=None)
        self._windows += 1
        # Once only the sentinels are left there is nothing to settle.
        if self._attempts or len(self._handles) > len(self._sentinels):
            self._settle_formats()
            self._choose_sentinels(optimizers)
            kept = {*self._sentinels.values(), *self._attempts}
            for index in self._fired.keys() - kept:
                self._unhook(index)
        self._fired.clear()
        return micro_batches

    def news(self) -> Layout | None:
        """The layout if more is known than the last one said.

        New parameters are told at once, since a sample may refer to them; a trickle of formats at 1, 2, 4, 8
        and 16 windows.
        """
        trickles = self._attempts and self._windows & (self._windows - 1)
        if not (self._grown or (self._news and not trickles)):
            return None
        self._grown = self._news = False
        return self.layout()

    def layout(self) -> Layout:
        """What is known now.

        A compiled graph delivers gradients in an order of its own, so there the reverse of the forward order
        stands in for the order that was seen.
        """
        order: Order = "forward" if self._parameters.compiled else "observed" if self._order else "unknown"
        backward = list(reversed(range(len(self._parameters)))) if order == "forward" else list(self._order)
        return self._parameters.layout(order, backward)

    def remove(self) -> None:
        for index in list(self._handles):
            self._unhook(index)

    def hear(self, index: int, tensor: torch.Tensor) -> None:
        """A gradient was accumulated."""
        self._edge.call(self._note, index, tensor)

    def _note(self, index: int, tensor: torch.Tensor) -> None:
        self._heard()
        count = self._fired.get(index, 0) + 1
        self._fired[index] = count
        if index not in self._order:
            self._order[index] = None
            self._news = True
            if tensor.dtype == torch.float32:
                self._attempts[index] = 0
        # Accumulated over two micro-batches, a gradient leaves the grid it was computed on.
        if count == 1 and index in self._attempts and index not in self._checks and tensor.grad is not None:
            self._attempts[index] += 1
            self._checks[index] = check_grid(tensor.grad)

    def _settle_formats(self) -> None:
        for index in [index for index, check in self._checks.items() if check.ready()]:
            verdict = self._checks.pop(index).verdict()
            if verdict is not None:
                self._parameters.set_format(index, verdict)
                self._news = True
            if verdict is not None or self._attempts[index] >= _ATTEMPTS:
                del self._attempts[index]

    def _choose_sentinels(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """For each optimizer without one, the parameter whose gradient came last in this window."""
        if self._considered == len(self._order):
            return
        self._considered = len(self._order)
        recent = [index for index in reversed(self._order) if index in self._fired]
        for number, optimizer in enumerate(optimizers):
            held = {self._parameters.index(tensor) for group in optimizer.param_groups for tensor in group["params"]}
            found = next((index for index in recent if index in held), None)
            if found is not None:
                self._sentinels.setdefault(number, found)

    def _unhook(self, index: int) -> None:
        handle = self._handles.pop(index, None)
        if handle is not None:
            handle.remove()


class _Hook:
    """What hangs on a parameter. Copies and pickles of a model do not carry it."""

    __slots__ = ("_index", "_watch")

    def __init__(self, watch: BackwardWatch, index: int) -> None:
        self._watch = watch
        self._index = index

    def __call__(self, tensor: torch.Tensor) -> None:
        self._watch.hear(self._index, tensor)
