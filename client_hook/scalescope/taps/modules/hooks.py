"""What hangs on modules, and on what they answer, while they are listened to.

A hook that is being traced into somebody's graph does nothing there, and so leaves nothing in it: no break, no
other numbers. Where it is called, its code is never compiled. Copies and pickles of a model may be made while
hooks hang on it: a copy's hooks fall off when they are first called, a pickle's do nothing.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from scalescope.taps.edge import Edge, traceable


class Ear(Protocol):
    """Who listens."""

    edge: Edge

    def hear_entry(self, index: int, arguments: tuple[Any, ...], named: dict[str, Any]) -> None: ...
    def hear_answer(self, index: int, answer: object) -> None: ...
    def hear_gradient(self, index: int, gradient: torch.Tensor) -> None: ...


class _Hook:
    """Hangs on one module. The module is held weakly: what hangs on a copy of it is not ours."""

    __slots__ = ("_ear", "_index", "_module")

    def __init__(self, ear: Ear, index: int, module: nn.Module) -> None:
        self._ear = weakref.ref(ear)
        self._index = index
        self._module = weakref.ref(module)

    def ear(self) -> Ear | None:
        return self._ear()

    def is_stray(self, module: nn.Module, kind: str) -> bool:
        """Whether ``module`` is a copy of the one it was hung on. It falls off there.

        A replica of a data-parallel model shares the hooks of its original, and is heard for it.
        """
        own = self._module()
        if own is module:
            return False
        hooks = getattr(module, kind)
        if own is not None and hooks is getattr(own, kind):
            return False
        for number in [number for number, hook in hooks.items() if hook is self]:
            del hooks[number]
            getattr(module, f"{kind}_with_kwargs").pop(number, None)
        return True

    def __deepcopy__(self, memo: dict[int, object]) -> _Hook:
        return self

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        # Loads anywhere, takes any arguments and answers None.
        return getattr, (contextlib.nullcontext(), "__exit__")


class Entering(_Hook):
    """Before the forward of a model."""

    __slots__ = ()

    @traceable
    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return
        ear = self.ear()
        if ear is not None and not self.is_stray(module, "_forward_pre_hooks"):
            ear.edge.call(ear.hear_entry, self._index, arguments, named)


class Answering(_Hook):
    """After the forward of a module."""

    __slots__ = ()

    @traceable
    def __call__(self, module: nn.Module, _arguments: tuple[Any, ...], answer: object) -> None:
        if torch.compiler.is_compiling():
            return
        ear = self.ear()
        if ear is not None and not self.is_stray(module, "_forward_hooks"):
            ear.edge.call(ear.hear_answer, self._index, answer)


class Returning:
    """Hangs on a tensor that a module answered, and hears its gradient."""

    __slots__ = ("_ear", "_index")

    def __init__(self, ear: Ear, index: int) -> None:
        self._ear = weakref.ref(ear)
        self._index = index

    @traceable
    def __call__(self, gradient: torch.Tensor) -> None:
        if torch.compiler.is_compiling():
            return
        ear = self._ear()
        if ear is not None:
            ear.edge.call(ear.hear_gradient, self._index, gradient)
