"""TorchScript, heard before it reads a module: it compiles what hangs on one, and cannot read our hooks.

Everything in ``torch.jit`` makes its modules with one function. It is replaced while modules are watched.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

from torch.jit import _recursive

from scalescope.taps.edge import Edge

_NAME = "create_script_module"

Making = Callable[..., Any]


class Ear(Protocol):
    """Who is told: what listens to modules."""

    edge: Edge

    def step_aside(self) -> None: ...


# Weak, since a training that is forgotten without an end must not be kept by a table of ours.
_EARS: weakref.WeakSet[Ear] = weakref.WeakSet()
# Torch's own function and ours in its place.
_REPLACED: list[tuple[Making, Making]] = []


def listen(ear: Ear) -> None:
    """Tell ``ear`` of every module that is about to be scripted, until :func:`ignore`, or until it is gone."""
    _EARS.add(ear)
    own = getattr(_recursive, _NAME, None)
    if callable(own) and not _REPLACED:
        ours = _heard(own)
        setattr(_recursive, _NAME, ours)
        _REPLACED.append((own, ours))


def ignore(ear: Ear) -> None:
    """Tell it no more; with the last one torch's own function is back."""
    _EARS.discard(ear)
    if not _EARS and _REPLACED:
        own, ours = _REPLACED.pop()
        # A replacement that somebody put over ours stays: ours then only passes on.
        if getattr(_recursive, _NAME, None) is ours:
            setattr(_recursive, _NAME, own)


def _heard(own: Making) -> Making:
    def making(*args: object, **kwargs: object) -> object:
        for ear in list(_EARS):
            ear.edge.call(ear.step_aside)
        return own(*args, **kwargs)

    return making
