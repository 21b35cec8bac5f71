"""The modules, heard in the updates whose gradients are sampled: what they answer, and what comes back to them.

An update that is not sampled costs nothing here: the hooks are hung up as the update before it closes, and taken
off as it closes itself. Of an update the first micro-batch is heard, of a dense one all. What runs with gradients
off is no part of training, unless a model runs it inside its own forward, as checkpointing does; what backward
runs again was heard before.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from scalescope.numerics.extremes import Extremes, below_infinity, extremes
from scalescope.taps.backward.hooks import NO_TASK, graph_task
from scalescope.taps.loop import Loop
from scalescope.taps.modules import bare
from scalescope.taps.modules.heard import Entry, Heard, Where
from scalescope.taps.modules.histograms import ModuleHistograms
from scalescope.taps.modules.hooks import Answering, Entering, Returning
from scalescope.taps.modules.named import Modules, Place
from scalescope.taps.modules.origin import Looked, Origins
from scalescope.taps.modules.outputs import floating, is_transformed, unobserved, values_of
from scalescope.taps.modules.sample import ModuleSample
from scalescope.taps.modules.state import State
from scalescope.taps.parameters import OWN_FORMAT
from scalescope.taps.setup.setups import Setups
from scalescope.updates import Update

# What one update may bring: bounds what a loop keeps here that goes forward for ever and never steps.
_MAX_ENTRIES = 16_384


class ModulesTap:
    """One scope's ears on its modules. A watcher: what was heard goes into the update that closes next."""

    def __init__(self, modules: Modules, loop: Loop, setups: Setups, histograms: Collection[str] = ()) -> None:
        self.edge = loop.edge
        # Device type -> format of the autocast in force at the last forward of a model; None: it was off.
        self.autocast: dict[str, str | None] = {}
        self._modules = modules
        self._loop = loop
        self._setups = setups
        self._origins = Origins(modules)
        self._histograms = ModuleHistograms(histograms)
        self._hung: dict[int, Hung] = {}
        self._gradient_hooks: list[RemovableHandle] = []
        self._entries: list[Entry] = []
        # The models whose forward is under way, with the number of entries before it.
        self._inside: dict[int, int] = {}
        # Answers without a graph yet, by module: checkpointing makes it in the backward.
        self._owed: Counter[int] = Counter()
        self._called: set[int] = set()
        # By module, of the first tensor of its last answer.
        self._dtypes: dict[int, torch.dtype] = {}
        # As it was when the updates became dense.
        self._state: State | None = None
        self._listening = self._dense = False

    def start(self) -> None:
        """Listen from the first update on."""
        bare.listen(self)
        self.attach()

    def attach(self) -> None:
        """Listen to the update that begins now, if it is likely to be sampled."""
        self._listening, self._dense = self._loop.sampling.expects(), self._loop.sampling.trouble.dense
        if not self._listening:
            for index in self._called:
                self._take_off(index)
        else:
            known = len(self._modules.entries)
            for place in self._modules.places():
                # One that takes no hook is no reason not to hear the others.
                self.edge.guard(self._hang, place)
            if known < len(self._modules.entries):
                self._loop.tell_layout()
        self._called.clear()

    def hear_entry(self, index: int, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A model's forward begins. One that came to no end before, because it raised, is forgotten."""
        begun = self._inside.pop(index, None)
        if begun is not None:
            del self._entries[begun:]
        if not torch.is_grad_enabled() or graph_task() != NO_TASK or not self._is_open():
            return
        if not self._inside and self._loop.stopwatch.running:
            self._loop.stopwatch.forward_began()
        self._inside[index] = len(self._entries)
        first = [next(model.parameters(), None) for model in self._modules.models()]
        self.autocast = _autocast({tensor.device.type for tensor in first if tensor is not None})
        with unobserved():
            for tensor in floating((arguments, named)):
                values = values_of(tensor)
                if values is not None:
                    self._enter("input", index, values, Extremes(0.0, below_infinity(values)))

    def hear_answer(self, index: int, answer: object) -> None:
        """A module's forward is over."""
        self._called.add(index)
        if graph_task() != NO_TASK:
            self._hear_again(index, answer)
        elif (torch.is_grad_enabled() or self._inside) and self._is_open():
            self._hear(index, answer)
        if self._inside.pop(index, None) is not None and not self._inside and self._loop.stopwatch.running:
            self._loop.stopwatch.forward_ended()

    def hear_gradient(self, index: int, gradient: torch.Tensor) -> None:
        """The gradient of what a module answered is complete."""
        if self._listening and self._has_room() and not is_transformed():
            with unobserved():
                self._look("backward", index, gradient)

    def closing(self, update: Update) -> None:
        try:
            self._hand_over(update)
        finally:
            if self._listening:
                self._forget()
            self.attach()

    def step_aside(self) -> None:
        """Take every hook off, until an update is listened to anew."""
        for index in list(self._hung):
            self._take_off(index)

    def remove(self) -> None:
        bare.ignore(self)
        self._listening = False
        self._forget()
        self.step_aside()

    def _hand_over(self, update: Update) -> None:
        heard = self._heard() if self._entries else None
        begins = self._loop.sampling.trouble.dense and not self._dense
        after = State(self._modules.models()) if begins else None
        if heard is not None or after is not None:
            looked = Looked(heard or Heard(()), self._state if self._dense else None, after)
            sample = ModuleSample(looked, self._origins, dense=self._dense)
            update.extras = [*update.extras, sample, *self._histograms.take(dense=self._dense)]
        if begins:
            self._state = after

    def _heard(self) -> Heard:
        heard = Heard(self._entries)
        self._loop.sampling.trouble.ask(heard.troubled)
        self._loop.sampling.heed_trouble()
        self._setups.tell("autocast", self.autocast)
        entries = self._modules.entries
        dtypes = {entries[index].name: str(dtype).removeprefix("torch.") for index, dtype in self._dtypes.items()}
        self._setups.tell("modules", dtypes)
        return heard

    def _is_open(self) -> bool:
        """Whether what goes forward now is to be heard: of an update that is not dense the first micro-batch."""
        heard_out = self._loop.backward_ran and not self._dense
        return self._listening and not heard_out and self._has_room() and not is_transformed()

    def _has_room(self) -> bool:
        """Nothing is looked at that could not be entered."""
        return len(self._entries) < _MAX_ENTRIES

    def _hear(self, index: int, answer: object) -> None:
        tensors = floating(answer)
        with unobserved():
            for tensor in tensors:
                self._look("forward", index, tensor)
        if tensors:
            self._dtypes[index] = tensors[0].dtype
            if not torch.is_grad_enabled():
                self._owed[index] += 1
        if tensors and not any(self.autocast.values()):
            # Entered inside of the forward, as wrappers do, or where parts of the model are called by themselves.
            self.autocast = _autocast(self.autocast or {tensors[0].device.type})
        self._await_gradients(index, tensors)

    def _hear_again(self, index: int, answer: object) -> None:
        """What backward runs again was heard before; if it had no graph then, it has one now."""
        if self._owed[index] and torch.is_grad_enabled():
            self._owed[index] -= 1
            self._await_gradients(index, floating(answer))

    def _await_gradients(self, index: int, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            # A leaf is a parameter that a module hands out, and outlives the update.
            if tensor.requires_grad and not tensor.is_leaf and len(self._gradient_hooks) < _MAX_ENTRIES:
                self._gradient_hooks.append(tensor.register_hook(Returning(self, index)))

    def _look(self, where: Where, index: int, tensor: torch.Tensor) -> None:
        values = values_of(tensor)
        if values is not None and self._has_room():
            self._entries.append(Entry(where, index, values.numel(), extremes(values)))
            self._histograms.add(where, index, values)

    def _enter(self, where: Where, index: int, values: torch.Tensor, found: Extremes) -> None:
        if self._has_room():
            self._entries.append(Entry(where, index, values.numel(), found))

    def _hang(self, place: Place) -> None:
        index, module, root = place
        hung = self._hung.get(index)
        if hung is not None and hung.module() is module:
            return
        self._take_off(index)
        handles = [module.register_forward_hook(Answering(self, index, module))]
        if root:
            handles.append(module.register_forward_pre_hook(Entering(self, index, module), with_kwargs=True))
        self._hung[index] = Hung(weakref.ref(module), handles)

    def _take_off(self, index: int) -> None:
        hung = self._hung.pop(index, None)
        if hung is not None:
            for handle in hung.handles:
                handle.remove()

    def _forget(self) -> None:
        """Nothing of an update stays that is over."""
        for handle in self._gradient_hooks:
            handle.remove()
        self._gradient_hooks.clear()
        self._entries = []
        self._inside.clear()
        self._owed.clear()


class Hung(NamedTuple):
    """The hooks on one module."""

    module: weakref.ref[nn.Module]
    handles: list[RemovableHandle]


def _autocast(devices: Iterable[str]) -> dict[str, str | None]:
    """Device type -> the format of the autocast in force; None: it is off."""
    found: dict[str, str | None] = {}
    for device in sorted(devices):
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        found[device] = None if dtype is None else OWN_FORMAT.get(dtype, str(dtype).removeprefix("torch."))
    return found
