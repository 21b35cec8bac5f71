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
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, SupportsIndex

import torch
from torch.amp import GradScaler

from scalescope.readback import Value, at_hand, read_later
from scalescope.taps.loop import Loop
from scalescope.taps.optimizer import has_hooks
from scalescope.taps.outside import OutsideSteps
from scalescope.taps.scale import ScaleReader
from scalescope.updates import OptimizerVerdict

# What was found for one optimizer: a tensor for each device, above 0 for "skip".
Found = Mapping[torch.device, torch.Tensor]
# What a user's own scaler takes beyond torch's, and what it answers: passed on as it is.
Given = Any

_ON_DEVICE = "the optimizer decides on the device whether to skip, and the host learns of it too late to look"
_CHANGED = "gradients may have been changed, by clipping for example, between unscale_() and step()"
_NO_SCALE = "the loss scale was not on the host when the step was skipped"


# Scale, growth tracker and verdicts before an update.
Before = tuple[Value | None, Value | None, Sequence[OptimizerVerdict]]
_NOTHING: Before = (None, None, ())


class ScalerTap:
    """One scope's ears on one scaler. Methods are named after the moment they are called at."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        # Optimizer's id -> the optimizer and what was found for it; and whose step was taken.
        self._found: dict[int, tuple[torch.optim.Optimizer, Found]] = {}
        # Whose step was heard, and whether it was the scaler's.
        self._stepped: dict[int, bool] = {}
        # Whose step the scaler is asked for just now, and whether its end is to be heard.
        self.stepping_now: torch.optim.Optimizer | None = None
        self.awaits_step = False
        self._pending: tuple[Value | None, tuple[Value, ...]] | None = None
        self._before = _NOTHING
        self._scale = ScaleReader()
        self.outside = OutsideSteps(loop)

    def scaled(self, scaler: GradScaler) -> None:
        """A loss was scaled."""
        if self.loop.stopwatch.running:
            self.loop.stopwatch.loss_scaled()
        self.loop.windows.scaled(self._scale.read(scaler))

    def wants_gradients(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether those of an optimizer are to be measured."""
        number = self.loop.numbers.get(id(optimizer))
        return number is not None and self.loop.sampling.due(number)

    def unscaling(self, optimizer: torch.optim.Optimizer) -> None:
        """Gradients are complete and still scaled, and are to be measured."""
        self.loop.hear_backward()
        self.loop.sampling.take(self.loop.numbers[id(optimizer)])

    def unscaled(
        self, scaler: GradScaler, optimizer: torch.optim.Optimizer, inverse: torch.Tensor | None, found: Found
    ) -> None:
        """Gradients were checked, and multiplied by ``inverse`` (1 when a fused optimizer unscales itself)."""
        self._found[id(optimizer)] = (optimizer, found)
        if not self.loop.backward_ran:
            self.loop.hear_backward()
        number = self.loop.consume(optimizer)
        if number is not None:
            asked = self.stepping_now is optimizer
            self.loop.windows.unscaled(number, self._scale.read(scaler), asked=asked)
        if self.loop.sampling.unscaled(number):
            return
        for tensor in found.values():
            if not tensor.is_cpu:
                self._await_verdict(scaler, optimizer, found)
                return
            if tensor.item():
                left_scaled = inverse is not None and inverse.item() == 1.0
                self._look(optimizer, 1.0 if left_scaled else self._scale.read(scaler))
                return

    def _await_verdict(self, scaler: GradScaler, optimizer: torch.optim.Optimizer, found: Found) -> None:
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            self.loop.sampling.cannot_see(_ON_DEVICE)
        elif self.stepping_now is not optimizer:
            self.loop.sampling.cannot_see(_CHANGED)
        else:
            self.awaits_step = True
            self._pending = (self._scale.read(scaler), tuple(read_later(tensor) for tensor in found.values()))

    def given_closure(self) -> None:
        """``step`` was given a closure."""
        self.loop.windows.closure = True

    def wants_step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether there is more to a step than the unscaling in it, which is heard by itself."""
        return self.loop.stopwatch.running or id(optimizer) in self._found

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        self.awaits_step = self.loop.stopwatch.running
        if self.awaits_step:
            self.loop.stopwatch.step_began()
        number = self.loop.numbers.get(id(optimizer))
        if number in self.loop.sampling.parts:
            self.loop.windows.look_at_gradients(number)
        if number is not None:
            self.loop.windows.asked(number)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """On a device, ``step`` has just made the host wait for the verdict, so our copy is here as well."""
        if self.loop.stopwatch.running:
            self.loop.stopwatch.step_ended()
        pending, self._pending = self._pending, None
        if pending is not None and any((at_hand(value) or 0.0) > 0 for value in pending[1]):
            self._look(optimizer, pending[0])

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """A step came to its end, whoever asked for it. Of a step that is skipped, only a fused one does.

        Called without an edge: to enter one that the scaler was asked for takes less than to guard and time it. A
        scaler may be given what only wraps the optimizer whose hooks are heard.
        """
        self._stepped[id(optimizer)] = self.stepping_now is not None
        if self.stepping_now is None:
            self.loop.edge.call(self._step_outside, optimizer)

    def _step_outside(self, optimizer: torch.optim.Optimizer) -> None:
        number = self.loop.numbers.get(id(optimizer))
        if number is not None:
            self.outside.step(number, self.loop.windows.scale)

    def updating(self, scaler: GradScaler) -> None:
        """Before ``update``, which adds into the verdicts and changes the scale in place."""
        self._before = _NOTHING
        verdicts = list(map(self._verdict, self._found.values()))
        tracker = getattr(scaler, "_growth_tracker", None)
        self._before = (self._scale.read(scaler), None if tracker is None else read_later(tracker), verdicts)

    def updated(self, scaler: GradScaler, was_set: bool) -> None:
        """After ``update``. One that only sets the scale, with no gradient looked at, attempts nothing."""
        scale, tracker, verdicts = self._before
        self._found.clear()
        self._stepped.clear()
        if was_set and not verdicts:
            self.loop.set_scale(scale, self._scale.read(scaler))
            return
        self.outside.closed()
        self.loop.close(
            verdicts=verdicts,
            scale=scale,
            growth_tracker=tracker,
            next_scale=self._scale.read(scaler),
            scale_was_set=was_set,
        )

    def _verdict(self, looked_at: tuple[torch.optim.Optimizer, Found]) -> OptimizerVerdict:
        optimizer, found = looked_at
        key = id(optimizer)
        if self._stepped.get(key):
            self.loop.windows.hooked(self.loop.numbers[key])
        # Where steps are not heard, it is taken that there was one.
        stepped = key in self._stepped or not self.loop.watches(optimizer) or not has_hooks(optimizer)
        return OptimizerVerdict(self.loop.name(optimizer), list(map(read_later, found.values())), stepped)

    def _look(self, optimizer: torch.optim.Optimizer, scale: Value | None) -> None:
        """Measure a skipped step: its gradients, times the scale that they were divided by."""
        factor = None if scale is None else at_hand(scale)
        number = self.loop.numbers.get(id(optimizer))
        if number is not None:
            self.loop.windows.look_at_weights(number)
        if factor is None:
            self.loop.sampling.cannot_see(_NO_SCALE)
        else:
            self.loop.sampling.look(number, factor)


class Tapped(GradScaler):
    """What the classes of watched scalers have in common. It comes before the scaler's own class."""

    def scale(self, outputs: Given, *args: Given, **kwargs: Given) -> Given:
        scaled = super().scale(outputs, *args, **kwargs)
        # A graph that is being traced holds no number yet.
        if not torch.compiler.is_compiling():
            _tell(self, "scaled", self)
        return scaled

    def step(self, optimizer: torch.optim.Optimizer, *args: Given, **kwargs: Given) -> Given:
        if (args or kwargs) and ("closure" in kwargs or any(map(callable, args))):
            # Torch refuses one by name; this is what it was told before.
            _tell(self, "given_closure")
        taps = _taps(self)
        for tap in taps:
            tap.stepping_now, tap.awaits_step = optimizer, False
            if tap.wants_step(optimizer):
                tap.loop.edge.call(tap.stepping, optimizer)
        try:
            return super().step(optimizer, *args, **kwargs)
        finally:
            for tap in taps:
                tap.stepping_now, tap.loop.windows.stepping = None, False
                if tap.awaits_step:
                    tap.loop.edge.call(tap.stepped, optimizer)

    # A user's own scaler may take more, and may answer.
    def update(self, *args: Given, **kwargs: Given) -> Given:
        new_scale = args[0] if args else kwargs.get("new_scale")
        _tell(self, "updating", self)
        result = super().update(*args, **kwargs)
        _tell(self, "updated", self, new_scale is not None)
        return result

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
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, *args: Given, **kwargs: Given
    ) -> Given:
        _tell_unscaling(self, optimizer)
        found = super()._unscale_grads_(optimizer, inv_scale, *args, **kwargs)
        _tell(self, "unscaled", self, optimizer, inv_scale, found)
        return found


class TappedCalls(Tapped):
    """Hears the gradients at the public calls, for a scaler without ``_unscale_grads_``.

    A step that unscales inside is heard before it; its verdict is read after it, when the update is known.
    """

    def unscale_(self, optimizer: torch.optim.Optimizer, *args: Given, **kwargs: Given) -> Given:
        _tell_unscaling(self, optimizer)
        result = super().unscale_(optimizer, *args, **kwargs)
        states = getattr(self, "_per_optimizer_states", {})
        found = states.get(id(optimizer), {}).get("found_inf_per_device", {})
        _tell(self, "unscaled", self, optimizer, None, found)
        return result


class Listened(NamedTuple):
    """A scaler and who listens to it; the reference tells it from a later one at the same address."""

    scaler: weakref.ref[GradScaler]
    taps: tuple[ScalerTap, ...]


# By id: a user's own scaler may have no hash.
_LISTENED: dict[int, Listened] = {}
_CLASSES: dict[type[GradScaler], type[Tapped]] = {}


def tap_scaler(scaler: GradScaler, tap: ScalerTap) -> None:
    """Let ``tap`` hear ``scaler``. Several may; the class is swapped once. Where it fails nothing is changed."""
    _listen(scaler, (*_taps(scaler), tap))
    try:
        if not isinstance(scaler, Tapped):
            _become(scaler, _tapped_class(type(scaler)))
    except BaseException:
        untap_scaler(scaler, tap)
        raise


def untap_scaler(scaler: GradScaler, tap: ScalerTap) -> None:
    """Take ``tap`` off; with the last one the scaler is of its own class again."""
    left = tuple(other for other in _taps(scaler) if other is not tap)
    _listen(scaler, left)
    if not left and isinstance(scaler, Tapped):
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


def _taps(scaler: object) -> tuple[ScalerTap, ...]:
    listened = _LISTENED.get(id(scaler))
    return listened.taps if listened is not None and listened.scaler() is scaler else ()


def _listen(scaler: GradScaler, taps: tuple[ScalerTap, ...]) -> None:
    key = id(scaler)
    if taps:
        _LISTENED[key] = Listened(weakref.ref(scaler, lambda _: _forget(key)), taps)
    else:
        _LISTENED.pop(key, None)


def _forget(key: int) -> None:
    """The scaler is gone; another one may have come to its address before we heard of it."""
    if key in _LISTENED and _LISTENED[key].scaler() is None:
        del _LISTENED[key]


def _tell_unscaling(scaler: object, optimizer: torch.optim.Optimizer) -> None:
    for tap in _taps(scaler):
        if tap.wants_gradients(optimizer):
            tap.loop.edge.call(tap.unscaling, optimizer)


def _tell(scaler: object, moment: str, *args: object) -> None:
    listened = _LISTENED.get(id(scaler))
    if listened is not None and listened.scaler() is scaler:
        for tap in listened.taps:
            tap.loop.edge.call(getattr(tap, moment), *args)
