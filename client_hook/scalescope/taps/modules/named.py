"""Which module is which: one index for a segment, in the order in which the model registers them.

A wrapper and what it wraps are one module, heard at the outermost, so that what checkpointing runs again inside
is heard once. What cannot be called (a ``ModuleList``) has no index. Inside a compiled module nothing can be
heard; the compiled module itself can. A scripted module takes no hook, and neither does anything in it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn

from scalescope.taps.naming import prefixes, wrapped
from scalescope.wire import Module

# The wire carries no more.
MAX_MODULES = 20_000
_MAX_NAME = 512


class Place(NamedTuple):
    """A module where it can be heard, ``number`` its index; ``root``: it is a model that the user named."""

    number: int
    module: nn.Module
    root: bool


class _Visit(NamedTuple):
    """A module on the way through a model; ``hidden``: it cannot be heard."""

    name: str
    module: nn.Module
    hidden: bool
    top: bool


class Modules:
    """The modules that a scope watches. Indexes are given once and never change; the models are held weakly."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = [weakref.ref(model) for model in models]
        self._indexes: dict[str, int] = {}
        self.entries: list[Module] = []

    def models(self) -> list[nn.Module]:
        """The watched models that still live."""
        return [model for reference in self._models if (model := reference()) is not None]

    def places(self) -> list[Place]:
        """All modules that can be heard now, in order. What was added to a model since the last call is entered."""
        models = self.models()
        seen: set[int] = set()
        found: dict[int, Place] = {}
        for model, prefix in zip(models, prefixes(models), strict=True):
            for visit in _walk(_Visit(prefix.rstrip("."), model, hidden=_is_scripted(model), top=True), seen):
                index = self._enter(visit)
                if index is not None and not visit.hidden:
                    found.setdefault(index, Place(index, visit.module, visit.module is model))
        return list(found.values())

    def _enter(self, visit: _Visit) -> int | None:
        if not _is_callable(visit.module):
            return None
        name = visit.name[-_MAX_NAME:]
        if name not in self._indexes and len(self.entries) < MAX_MODULES:
            self._indexes[name] = len(self.entries)
            self.entries.append(Module(name, type(_innermost(visit.module, top=visit.top)).__name__[:_MAX_NAME]))
        return self._indexes.get(name)


def _walk(visit: _Visit, seen: set[int]) -> Iterator[_Visit]:
    """``visit`` and all below it, each module once, as ``named_modules`` goes."""
    if id(visit.module) in seen:
        return
    seen.add(id(visit.module))
    yield visit
    inner = wrapped(visit.module, top=visit.top)
    hidden = visit.hidden or _is_compiled(visit.module)
    for key, child in visit.module._modules.items():  # noqa: SLF001 - named_children() leaves out repetitions
        if child is not None:
            same = child is inner
            name = visit.name if same else f"{visit.name}.{key}".lstrip(".")
            yield from _walk(_Visit(name, child, hidden or _is_scripted(child), top=same and visit.top), seen)


def _innermost(module: nn.Module, *, top: bool) -> nn.Module:
    inner = wrapped(module, top=top)
    return module if inner is None else _innermost(inner, top=top)


def _is_callable(module: nn.Module) -> bool:
    return getattr(module.forward, "__func__", None) is not nn.Module.forward


def _is_scripted(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


def _is_compiled(module: nn.Module) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None or "_orig_mod" in module._modules  # noqa: SLF001
