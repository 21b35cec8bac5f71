"""The loss scaler, heard by swapping its class.

``_unscale_grads_`` is the one place where gradients are scaled, fully accumulated and not yet clipped: with
and without an explicit ``unscale_``, with fused optimizers and without, once for each optimizer and on
skipped updates too. It is private, so where a scaler has none, ``unscale_`` and ``step`` are heard instead.

The swapped class reduces to its base, and what listens is kept outside the scaler: a watched scaler pickles,
copies and loads where this package is not installed. The scaler's tensors are read through its attributes,
since its public getters make the host wait for the device.
"""

from __future__ import annotations

import copyreg
import weakref
from collections.abc import Mapping
from typing import Any, SupportsIndex

import torch
from torch.amp import GradScaler

from scalescope.readback import Value, at_hand, read_later
from scalescope.taps.loop import Loop
from scalescope.updates import OptimizerVerdict

# What was found for one optimizer: a tensor for each device, above 0 for "skip".
Found = Mapping[torch.device, torch.Tensor]

_ON_DEVICE = "the optimizer decides on the device whether to skip, and the host learns of it too late to look"
_CHANGED = "gradients may have been changed, by clipping for example, between unscale_() and step()"
_NO_SCALE = "the loss scale was not on the host when the step was skipped"


class ScalerTap:
    """One scope's ears on one scaler. Methods are named after the moment they are called at."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._found: list[tuple[str, Found]] = []
        self._stepping: torch.optim.Optimizer | None = None
        self._pending: tuple[Value | None, tuple[Value, ...]] | None = None
        self._before: tuple[Value | None, Value | None, list[OptimizerVerdict]] = (None, None, [])

    def unscaling(self, optimizer: torch.optim.Optimizer) -> None:
        """Gradients are complete and still scaled."""
        self.loop.hear_backward()
        if self._has_its_turn(optimizer):
            self.loop.measure(optimizer)

    def unscaled(
        self, scaler: GradScaler, optimizer: torch.optim.Optimizer, inverse: torch.Tensor | None, found: Found
    ) -> None:
        """Gradients were checked, and multiplied by ``inverse`` (1 when a fused optimizer unscales itself)."""
        self._found.append((self.loop.name(optimizer), found))
        if self._has_its_turn(optimizer):
            return
        values = [tensor.item() if tensor.is_cpu else None for tensor in found.values()]
        if None not in values:
            if any(values):
                left_scaled = inverse is not None and inverse.item() == 1.0
                self._look(optimizer, 1.0 if left_scaled else _scale(scaler))
        elif getattr(optimizer, "_step_supports_amp_scaling", False):
            self.loop.cannot_see(_ON_DEVICE)
        elif self._stepping is not optimizer:
            self.loop.cannot_see(_CHANGED)
        else:
            self._pending = (_scale(scaler), tuple(read_later(tensor) for tensor in found.values()))

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        self._stepping = optimizer

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """On a device, ``step`` has just made the host wait for the verdict, so our copy is here as well."""
        pending, self._pending, self._stepping = self._pending, None, None
        if pending is not None and any((at_hand(value) or 0.0) > 0 for value in pending[1]):
            self._look(optimizer, pending[0])

    def updating(self, scaler: GradScaler) -> None:
        """Before ``update``, which adds into the verdicts and changes the scale in place."""
        verdicts = [
            OptimizerVerdict(name, [read_later(tensor) for tensor in found.values()]) for name, found in self._found
        ]
        tracker = getattr(scaler, "_growth_tracker", None)
        self._before = (_scale(scaler), None if tracker is None else read_later(tracker), verdicts)

    def updated(self, scaler: GradScaler, was_set: bool) -> None:
        """After ``update``. One that only sets the scale, with no gradient looked at, attempts nothing."""
        scale, tracker, verdicts = self._before
        self._found = []
        if was_set and not verdicts:
            self.loop.set_scale(scale, _scale(scaler))
            return
        self.loop.close(
            verdicts=verdicts, scale=scale, growth_tracker=tracker, next_scale=_scale(scaler), scale_was_set=was_set
        )

    def _has_its_turn(self, optimizer: torch.optim.Optimizer) -> bool:
        return self.loop.periodic and self.loop.watches(optimizer)

    def _look(self, optimizer: torch.optim.Optimizer, scale: Value | None) -> None:
        """Measure a skipped step: its gradients, times the scale that they were divided by."""
        factor = None if scale is None else at_hand(scale)
        if factor is None:
            self.loop.cannot_see(_NO_SCALE)
        else:
            self.loop.measure(optimizer, factor=factor)


def _scale(scaler: GradScaler) -> Value | None:
    tensor = getattr(scaler, "_scale", None)
    return None if tensor is None else read_later(tensor)


class Tapped(GradScaler):
    """What the classes of watched scalers have in common. It comes before the scaler's own class."""

    def step(self, optimizer: torch.optim.Optimizer, *args: object, **kwargs: object) -> float | None:
        scale = getattr(self, "_scale", None)
        if scale is None or scale.is_cpu:
            # On the host everything is known once the gradients were checked.
            return super().step(optimizer, *args, **kwargs)
        _tell(self, "stepping", optimizer)
        result = super().step(optimizer, *args, **kwargs)
        _tell(self, "stepped", optimizer)
        return result

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        _tell(self, "updating", self)
        super().update(new_scale)
        _tell(self, "updated", self, new_scale is not None)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        tapped = type(self)
        _become(self, own_class(self))
        try:
            reduced = self.__reduce_ex__(protocol)
        finally:
            _become(self, tapped)
        # pickle refuses this one callable for an object that is of another class by the time it looks; the
        # one of protocol 0 makes the same object and is not looked at.
        if reduced[0] is copyreg.__newobj__:  # type: ignore[attr-defined]
            rebuild = copyreg._reconstructor  # type: ignore[attr-defined]  # noqa: SLF001 - named in every such pickle
            return (rebuild, (own_class(self), object, None), *reduced[2:])
        return reduced


class TappedUnscaling(Tapped):
    """Hears the gradients at ``_unscale_grads_``."""

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool = True,
    ) -> dict[torch.device, torch.Tensor]:
        _tell(self, "unscaling", optimizer)
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        _tell(self, "unscaled", self, optimizer, inv_scale, found)
        return found


class TappedCalls(Tapped):
    """Hears the gradients at the public calls, for a scaler without ``_unscale_grads_``.

    A step that unscales inside is heard before it; its verdict is read after it, when the update is known.
    """

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        _tell(self, "unscaling", optimizer)
        super().unscale_(optimizer)
        states = getattr(self, "_per_optimizer_states", {})
        found = states.get(id(optimizer), {}).get("found_inf_per_device", {})
        _tell(self, "unscaled", self, optimizer, None, found)


_TAPS: weakref.WeakKeyDictionary[object, tuple[ScalerTap, ...]] = weakref.WeakKeyDictionary()
_CLASSES: dict[type[GradScaler], type[Tapped]] = {}


def tap_scaler(scaler: GradScaler, tap: ScalerTap) -> None:
    """Let ``tap`` hear ``scaler``. Several may; the class is swapped once."""
    if not isinstance(scaler, Tapped):
        _become(scaler, _tapped_class(type(scaler)))
    _TAPS[scaler] = (*_TAPS.get(scaler, ()), tap)


def untap_scaler(scaler: GradScaler, tap: ScalerTap) -> None:
    """Take ``tap`` off; with the last one the scaler is of its own class again."""
    left = tuple(other for other in _TAPS.get(scaler, ()) if other is not tap)
    if left:
        _TAPS[scaler] = left
        return
    _TAPS.pop(scaler, None)
    _become(scaler, own_class(scaler))


def own_class(scaler: GradScaler) -> type[GradScaler]:
    """The class of ``scaler`` as its author knows it."""
    found = type(scaler)
    return next((base for base, tapped in _CLASSES.items() if tapped is found), found)


def _tapped_class(base: type[GradScaler]) -> type[Tapped]:
    """The one class made for ``base``, so that two watched scalers of a kind stay of one class."""
    if base not in _CLASSES:
        ears = TappedUnscaling if callable(getattr(base, "_unscale_grads_", None)) else TappedCalls
        _CLASSES[base] = type(base.__name__, (ears, base), {"__module__": base.__module__, "__doc__": base.__doc__})
    return _CLASSES[base]


def _become(scaler: GradScaler, other: type[GradScaler]) -> None:
    scaler.__class__ = other


def _tell(scaler: object, moment: str, *args: object) -> None:
    for tap in _TAPS.get(scaler, ()):
        tap.loop.edge.call(getattr(tap, moment), *args)
