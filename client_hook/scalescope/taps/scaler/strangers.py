"""Scalers that a training was not given, heard where they unscale or step an optimizer of it.

Where it was given one, this is one made anew in its place, and from here on is heard as the first was. Where it was
given none, its user is told: what is stepped by then would be recorded as if nothing were scaled.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from torch.amp import GradScaler

from scalescope.taps.loop import Loop
from scalescope.taps.methods import Method, Methods
from scalescope.taps.scaler.swapped import (
    Tapped,
    TappedCalls,
    heard_step,
    heard_unscaling,
    hears,
    own_class,
    tap_scaler,
)
from scalescope.taps.scaler.tap import ScalerTap


class StrangersTap:
    """One scope's ears on scalers that it was not given: on behalf of ``tap``, None where it was given none."""

    def __init__(self, loop: Loop, tap: ScalerTap | None) -> None:
        self._loop = loop
        self._tap = tap

    def attach(self, scaler: GradScaler | None) -> None:
        """Listen to those of torch's class, and of the own class of ``scaler``, the one that was given."""
        _EARS.append(weakref.ref(self))
        for kind in (GradScaler if scaler is None else own_class(scaler)).__mro__:
            if issubclass(kind, GradScaler):
                _METHODS.replace(kind, "step", _heard_step)
                _METHODS.replace(kind, "unscale_", _heard_unscaling)

    def remove(self) -> None:
        """Listen no more; with the last one every class has its own methods back."""
        _EARS[:] = [reference for reference in _EARS if reference() not in (self, None)]
        if not _EARS:
            _METHODS.restore()

    def knows(self, scaler: GradScaler, optimizer: torch.optim.Optimizer) -> bool:
        """Whether ``scaler`` is heard already, or does what is no business of ours."""
        return not self._loop.watches(optimizer) or (self._tap is not None and hears(self._tap, scaler))

    def meet(self, scaler: GradScaler, optimizer: torch.optim.Optimizer) -> ScalerTap | None:
        """Whom ``scaler`` is heard by from now on; no one, who is told of once, where none was given."""
        return self._loop.edge.call(self._warn if self._tap is None else self._take_up, scaler, optimizer)

    def _take_up(self, scaler: GradScaler, optimizer: torch.optim.Optimizer) -> ScalerTap | None:
        if self._tap is not None:
            if len(self._loop.numbers) > 1 and self._tap.scaler() is not None:
                self._loop.advise(
                    "%s is stepped by another GradScaler than the one that watch() was given: what they do to their "
                    "scales is recorded as if they were one; give each scaler a watch() of its own",
                    type(optimizer).__name__,
                )
            tap_scaler(scaler, self._tap)
            self._tap.taken_over(scaler, optimizer)
        return self._tap

    def _warn(self, _scaler: GradScaler, optimizer: torch.optim.Optimizer) -> None:
        self.remove()
        self._loop.advise(
            "%s is stepped by a GradScaler that is not watched: its scale and what it skips are not "
            "recorded; pass watch() the one scaler that the loop uses",
            type(optimizer).__name__,
        )


# Weak, since a training that is forgotten without an end must not be kept by a table of ours.
_EARS: list[weakref.ref[StrangersTap]] = []
_METHODS = Methods()


def _met(scaler: GradScaler, optimizer: torch.optim.Optimizer) -> list[ScalerTap]:
    """Who takes ``scaler`` up only now."""
    ears = [ear for reference in _EARS if (ear := reference()) is not None and not ear.knows(scaler, optimizer)]
    if not ears or not scaler.is_enabled():
        return []
    return [tap for ear in ears if (tap := ear.meet(scaler, optimizer)) is not None]


# A user's own scaler may take more, and may answer.
def _heard_step(own: Method) -> Method:
    @functools.wraps(own)
    def step(self: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        # Most calls are of one that the only listener there is knows.
        taps = () if isinstance(self, Tapped) and len(_EARS) < 2 else _met(self, optimizer)
        if taps:
            return heard_step(taps, functools.partial(own, self), optimizer, *args, **kwargs)
        return own(self, optimizer, *args, **kwargs)

    return step


def _heard_unscaling(own: Method) -> Method:
    @functools.wraps(own)
    def unscale(self: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        taps = () if isinstance(self, Tapped) and len(_EARS) < 2 else _met(self, optimizer)
        if taps and isinstance(self, TappedCalls):
            return heard_unscaling(self, taps, functools.partial(own, self), optimizer, *args, **kwargs)
        return own(self, optimizer, *args, **kwargs)

    return unscale
