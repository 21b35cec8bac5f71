"""What wants modules bare, heard before it is given one, so that no hook of ours hangs there.

TorchScript compiles what hangs on a module, and cannot read our hooks; everything in ``torch.jit`` makes its modules
with one function. What captures modules as CUDA graphs raises where a hook hangs on one. These functions are
replaced while modules are watched.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch.jit import _recursive

from scalescope.taps.edge import Edge

Given = Callable[..., Any]

_PLACES = (
    (_recursive, "create_script_module"),
    (torch.cuda, "make_graphed_callables"),
    (torch.cuda.graphs, "make_graphed_callables"),
)


class Ear(Protocol):
    """Who is told: what listens to modules."""

    edge: Edge

    def step_aside(self) -> None: ...


class Replaced(NamedTuple):
    """Torch's own function and ours in its place."""

    owner: object
    name: str
    own: Given
    ours: Given


# Weak, since a training that is forgotten without an end must not be kept by a table of ours.
_EARS: weakref.WeakSet[Ear] = weakref.WeakSet()
_REPLACED: list[Replaced] = []


def listen(ear: Ear) -> None:
    """Tell ``ear`` of every module that is to be bare, until :func:`ignore`, or until it is gone."""
    _EARS.add(ear)
    if not _REPLACED:
        for owner, name in _PLACES:
            own = getattr(owner, name, None)
            if callable(own):
                ours = _heard(own)
                setattr(owner, name, ours)
                _REPLACED.append(Replaced(owner, name, own, ours))


def ignore(ear: Ear) -> None:
    """Tell it no more; with the last one torch's own functions are back."""
    _EARS.discard(ear)
    while _REPLACED and not _EARS:
        owner, name, own, ours = _REPLACED.pop()
        # A replacement that somebody put over ours stays: ours then only passes on.
        if getattr(owner, name, None) is ours:
            setattr(owner, name, own)


def _heard(own: Given) -> Given:
    @functools.wraps(own)
    def heard(*args: object, **kwargs: object) -> object:
        for ear in list(_EARS):
            ear.edge.call(ear.step_aside)
        return own(*args, **kwargs)

    return heard
