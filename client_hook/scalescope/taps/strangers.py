"""Scalers that nobody watches, heard where they step an optimizer that somebody does.

What they scale, skip and unscale is not heard: whoever forgot to name one, or makes a new one each time, is told.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Protocol

import torch
from torch.amp import GradScaler

from scalescope.taps.edge import Edge
from scalescope.taps.methods import Method, Methods
from scalescope.taps.scaler import Tapped


class Ear(Protocol):
    """Who is told: the loop of a watched training."""

    edge: Edge

    def watches(self, optimizer: torch.optim.Optimizer) -> bool: ...
    def advise(self, advice: str, *details: object) -> None: ...


# Weak, since a training that is forgotten without an end must not be kept by a table of ours. It goes once told.
_EARS: weakref.WeakSet[Ear] = weakref.WeakSet()
_METHODS = Methods()


def listen(ear: Ear) -> None:
    """Warn of the first strange scaler that steps an optimizer of ``ear``'s."""
    _EARS.add(ear)
    _METHODS.replace(GradScaler, "step", _heard)


def ignore(ear: Ear) -> None:
    """Listen for it no more; with the last one torch's own method is back."""
    _EARS.discard(ear)
    if not _EARS:
        _METHODS.restore()


def _heard(own: Method) -> Method:
    @functools.wraps(own)
    # A user's own scaler may take more, and may answer.
    def step(self: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if not isinstance(self, Tapped) and self.is_enabled():
            for ear in [ear for ear in _EARS if ear.watches(optimizer)]:
                ear.edge.call(_warn, ear, optimizer)
        return own(self, optimizer, *args, **kwargs)

    return step


def _warn(ear: Ear, optimizer: torch.optim.Optimizer) -> None:
    _EARS.discard(ear)
    ear.advise(
        "%s is stepped by a GradScaler that is not watched: its scale and what it skips are not "
        "recorded; pass watch() the one scaler that the loop uses",
        type(optimizer).__name__,
    )
