"""What hangs on parameters while backward passes are listened to, and when what it heard is passed on.

A parameter that once had a hook after its gradient was accumulated pays for it in every backward, though the hook be
long gone: torch has no way to take that back. A hook before leaves no trace. So most parameters get one of these, and
what comes there is passed on with the next gradient, or at the backward's end: by then it is accumulated. A parameter
that keeps its hook has one after, and so has a shard, whose library calls those by itself.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

from scalescope.taps.backward.freshness import Stamp, stamp_of
from scalescope.taps.edge import Edge, eager

NO_TASK = -1


def _outside() -> int:
    return NO_TASK


# The number of the backward that is running in this thread; NO_TASK outside of one, or where torch tells none.
graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", _outside)  # noqa: SLF001 - detected


class Ear(Protocol):
    """Who listens. Gradients are told in the order in which they come."""

    def coming(self, index: int, tensor: torch.Tensor, gradient: torch.Tensor) -> None:
        """``gradient``, of this backward alone, is about to be added to that of ``tensor``. It must not be kept."""

    def gone(self, index: int) -> None:
        """What was coming was added to nothing."""

    def note(self, index: int, tensor: torch.Tensor, task: int, *, graph: bool) -> None:
        """A gradient was accumulated, in the backward ``task``; ``graph``: one that makes a graph of its own."""


class _Hung(NamedTuple):
    """A hook that hangs on ``tensor``, called after its gradient was accumulated or before."""

    handle: RemovableHandle
    tensor: torch.Tensor
    after: bool


class _Coming(NamedTuple):
    """A gradient that was on its way when it was heard of."""

    number: int
    tensor: torch.Tensor
    # What it is to be added to.
    before: Stamp
    task: int
    graph: bool


class Hooks:
    """Those of one training. Indexes are those of its parameters."""

    def __init__(self, edge: Edge, ear: Ear) -> None:
        self.edge = edge
        self._ear = ear
        self._hung: dict[int, _Hung] = {}
        # By thread, since each device has one of its own.
        self._coming: dict[int, _Coming] = {}
        # The backward whose end will be heard of.
        self._ending = NO_TASK
        self._emptied: list[torch.Tensor] = []

    def __len__(self) -> int:
        return len(self._hung)

    def hang(self, index: int, tensor: torch.Tensor, *, after: bool) -> None:
        """Listen to ``tensor``: always anew, since converting a model may have swapped what is behind it."""
        self.take_off(index)
        if tensor.is_leaf and tensor.requires_grad:
            if after or hasattr(tensor, "to_local"):
                handle = tensor.register_post_accumulate_grad_hook(_After(self, index))
                self._hung[index] = _Hung(handle, tensor, after=True)
            else:
                self._hung[index] = _Hung(tensor.register_hook(_Before(self, index)), tensor, after=False)

    def hangs(self, index: int) -> bool:
        """Whether it is listened to."""
        return index in self._hung

    def hears_after(self, index: int) -> bool:
        """Whether it is listened to after its gradient was accumulated."""
        return index in self._hung and self._hung[index].after

    def take_off(self, index: int) -> bool:
        """Listen to it no more; whether it was listened to."""
        hung = self._hung.pop(index, None)
        if hung is None:
            return False
        hung.handle.remove()
        if not hung.after:
            self._emptied.append(hung.tensor)
        return True

    def remove(self) -> None:
        for index in list(self._hung):
            self.take_off(index)
        self._coming.clear()
        self._sweep()
        self._emptied.clear()

    def pass_on(self) -> None:
        """Tell what has come: who steps inside a backward asks for it before its end."""
        if self._coming:
            coming, self._coming = self._coming, {}
            for each in coming.values():
                self._tell(each)
        if self._emptied:
            self._sweep()

    def before(self, index: int, gradient: torch.Tensor) -> None:
        """A gradient comes: the one that came before it in this thread is accumulated."""
        # What came before may end the window in which this one was listened to.
        tensor, thread = self._hung[index].tensor, threading.get_ident()
        last = self._coming.pop(thread, None)
        if last is not None:
            self._tell(last)
        self._ear.coming(index, tensor, gradient)
        # In a backward that makes no graph gradients are off.
        task = graph_task()
        self._coming[thread] = _Coming(index, tensor, stamp_of(tensor.grad), task, torch.is_grad_enabled())
        if task in (NO_TASK, self._ending) and last is not None:
            return
        self._ending = task
        # What torch's own parallel wrappers are told by.
        Variable._execution_engine.queue_callback(self._end)  # noqa: SLF001

    def after(self, index: int, tensor: torch.Tensor) -> None:
        """A gradient was accumulated."""
        self.pass_on()
        self._ear.note(index, tensor, graph_task(), graph=torch.is_grad_enabled())

    def _tell(self, coming: _Coming) -> None:
        if stamp_of(coming.tensor.grad) == coming.before:
            # torch.autograd.grad gives it to its caller, and adds it to nothing.
            self._ear.gone(coming.number)
        else:
            self._ear.note(coming.number, coming.tensor, coming.task, graph=coming.graph)

    def _end(self) -> None:
        self.edge.call(self.pass_on)

    def _sweep(self) -> None:
        """Leave no trace of hooks that are gone; within a backward they may be the ones that are called just now."""
        if graph_task() == NO_TASK:
            for tensor in self._emptied:
                hooks = tensor._backward_hooks  # noqa: SLF001 - torch's own name of what register_hook() makes
                if hooks is not None and not hooks:
                    tensor._backward_hooks = None  # noqa: SLF001
            self._emptied.clear()


class _After:
    """What hangs on a parameter. Copies and pickles of a model do not carry it."""

    __slots__ = ("_hooks", "_index")

    def __init__(self, hooks: Hooks, index: int) -> None:
        # Weak: the collector does not see what a tensor's hooks hold, so a cycle through one lives for ever.
        self._hooks = weakref.ref(hooks)
        self._index = index

    @eager
    def __call__(self, tensor: torch.Tensor) -> None:
        hooks = self._hooks()
        if hooks is not None:
            hooks.edge.call(hooks.after, self._index, tensor)


class _Before:
    """As :class:`_After`, called with the gradient that comes."""

    __slots__ = ("_hooks", "_index")
    # Else torch warns, when it pickles what it hangs on, that it is left out.
    __torch_unserializable__ = True

    def __init__(self, hooks: Hooks, index: int) -> None:
        self._hooks = weakref.ref(hooks)
        self._index = index

    @eager
    def __call__(self, gradient: torch.Tensor) -> None:
        hooks = self._hooks()
        if hooks is not None and hooks.hangs(self._index):
            hooks.edge.call(hooks.before, self._index, gradient)
