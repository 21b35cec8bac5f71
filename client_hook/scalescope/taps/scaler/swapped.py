"""How a scaler is made to be heard: its class is swapped for one of ours, which comes before its own.

``_unscale_grads_`` is the one place where gradients are scaled, fully accumulated and not yet clipped: with
and without an explicit ``unscale_``, with fused optimizers and without, once for each optimizer and on
skipped updates too. It is private, so where a scaler has none, ``unscale_`` and ``step`` are heard instead.

The swapped class reduces to its base, and what listens is kept outside the scaler: a watched scaler pickles,
copies and loads where this package is not installed.
"""

from __future__ import annotations

import copyreg
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, SupportsIndex

import torch
from torch.amp import GradScaler

from scalescope.taps.routine.scaler_lane import LANES
from scalescope.taps.scaler.culprits import Found
from scalescope.taps.scaler.tap import ScalerTap

# What a user's own scaler takes beyond torch's, and what it answers: passed on as it is.
Given = Any


class Tapped(GradScaler):
    """What the classes of watched scalers have in common. It comes before the scaler's own class."""

    def scale(self, outputs: Given, *args: Given, **kwargs: Given) -> Given:
        scaled = super().scale(outputs, *args, **kwargs)
        # A graph that is being traced holds no number yet.
        if not torch.compiler.is_compiling():
            lane = LANES.get(id(self))
            if lane is not None and lane.scales(self):
                return scaled
            for tap in _taps(self):
                if tap.routine.scaled(self):
                    continue
                if tap.wants_scale(self):
                    tap.loop.edge.call(tap.scaled, self)
                else:
                    tap.loop.windows.calls += 1
        return scaled

    def step(self, optimizer: torch.optim.Optimizer, *args: Given, **kwargs: Given) -> Given:
        lane = LANES.get(id(self))
        # Libraries hand over a closure that there is none of.
        bare = not kwargs and (not args or (len(args) == 1 and args[0] is None))
        if lane is not None and lane.steps(optimizer, bare=bare):
            try:
                return super().step(optimizer, *args)
            finally:
                if not lane.step_is_over():
                    _end_step(_taps(self), optimizer)
        if (args or kwargs) and ("closure" in kwargs or any(map(callable, args))):
            # Torch refuses one by name; this is what it was told before.
            for tap in _taps(self):
                tap.loop.edge.call(tap.given_closure)
        return heard_step(_taps(self), super().step, optimizer, *args, **kwargs)

    # A user's own scaler may take more, and may answer.
    def update(self, *args: Given, **kwargs: Given) -> Given:
        lane = LANES.get(id(self))
        if lane is not None and not (args or kwargs):
            result = super().update()
            if not lane.edge.call(lane.updated, self):
                lane.edge.guard(lane.leave)
                _hear_update(self, was_set=False)
            return result
        was_set = (args[0] if args else kwargs.get("new_scale")) is not None
        if lane is not None:
            lane.leave()
        for tap in _taps(self):
            if not tap.routine.sure and tap.wants_update(self):
                tap.loop.edge.call(tap.updating, self)
        result = super().update(*args, **kwargs)
        _hear_update(self, was_set=was_set)
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
        lane = LANES.get(id(self))
        if lane is not None:
            found = super()._unscale_grads_(optimizer, inv_scale, *args, **kwargs)
            if lane.edge.call(lane.takes, optimizer, inv_scale, found):
                return found
            lane.edge.guard(lane.leave)
        else:
            for tap in _taps(self):
                if not tap.routine.alone:
                    tap.unscaling(optimizer)
            found = super()._unscale_grads_(optimizer, inv_scale, *args, **kwargs)
        for tap in _taps(self):
            _hear_unscaled(tap, self, optimizer, inv_scale, found)
        return found


class TappedCalls(Tapped):
    """Hears the gradients at the public calls, for a scaler without ``_unscale_grads_``.

    A step that unscales inside is heard before it; its verdict is read after it, when the update is known.
    """

    def unscale_(self, optimizer: torch.optim.Optimizer, *args: Given, **kwargs: Given) -> Given:
        return heard_unscaling(self, _taps(self), super().unscale_, optimizer, *args, **kwargs)


def heard_step(
    taps: Iterable[ScalerTap],
    step: Callable[..., Given],
    optimizer: torch.optim.Optimizer,
    *args: Given,
    **kwargs: Given,
) -> Given:
    """What a scaler's ``step`` answers; ``taps`` hear of its beginning and its end."""
    for tap in taps:
        tap.stepping_now, tap.awaits_step = optimizer, False
        if tap.wants_step(optimizer):
            tap.loop.edge.call(tap.stepping, optimizer)
    try:
        return step(optimizer, *args, **kwargs)
    finally:
        _end_step(taps, optimizer)


def heard_unscaling(
    scaler: GradScaler,
    taps: Iterable[ScalerTap],
    unscale: Callable[..., Given],
    optimizer: torch.optim.Optimizer,
    *args: Given,
    **kwargs: Given,
) -> Given:
    """What ``unscale_`` of a scaler answers in which nothing is heard; ``taps`` hear what it leaves on the scaler."""
    for tap in taps:
        if not tap.routine.alone:
            tap.unscaling(optimizer)
    result = unscale(optimizer, *args, **kwargs)
    states = getattr(scaler, "_per_optimizer_states", {})
    found = states.get(id(optimizer), {}).get("found_inf_per_device", {})
    for tap in taps:
        _hear_unscaled(tap, scaler, optimizer, None, found)
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
    alone = not any(tap in listened.taps for listened in list(_LISTENED.values()))
    _listen(scaler, (*_taps(scaler), tap))
    try:
        if not isinstance(scaler, Tapped):
            _become(scaler, _tapped_class(type(scaler)))
    except BaseException:
        untap_scaler(scaler, tap)
        raise
    tap.latest = weakref.ref(scaler)
    tap.routine.trusting = (alone or tap.routine.trusting) and _steps_as_torch_does(own_class(scaler))


def untap_scaler(scaler: GradScaler, tap: ScalerTap) -> None:
    """Take ``tap`` off; with the last one the scaler is of its own class again."""
    left = tuple(other for other in _taps(scaler) if other is not tap)
    _listen(scaler, left)
    if not left and isinstance(scaler, Tapped):
        _become(scaler, own_class(scaler))


def untap_scalers(tap: ScalerTap) -> None:
    """Take ``tap`` off every scaler that it hears."""
    for scaler in [listened.scaler() for listened in list(_LISTENED.values()) if tap in listened.taps]:
        if scaler is not None:
            untap_scaler(scaler, tap)


def hears(tap: ScalerTap, scaler: GradScaler) -> bool:
    """Whether ``tap`` is on ``scaler``."""
    return tap in _taps(scaler)


def own_class(scaler: GradScaler) -> type[GradScaler]:
    """The class of ``scaler`` as its author knows it."""
    found = type(scaler)
    return next((base for base, tapped in _CLASSES.items() if tapped is found), found)


def _hear_unscaled(
    tap: ScalerTap, scaler: GradScaler, optimizer: torch.optim.Optimizer, inverse: torch.Tensor | None, found: Found
) -> None:
    """Gradients were checked, and multiplied by ``inverse`` (1 when a fused optimizer unscales itself)."""
    edge, routine = tap.loop.edge, tap.routine
    if not (routine.alone and edge.call(routine.took, tap.stepping_now is optimizer, optimizer, inverse, found)):
        edge.call(tap.unscaled, scaler, optimizer, inverse, found)


def _hear_update(scaler: Tapped, *, was_set: bool) -> None:
    taps = _taps(scaler)
    for tap in taps:
        edge, routine = tap.loop.edge, tap.routine
        if not (routine.alone and edge.call(routine.updated, scaler, was_set)):
            edge.call(tap.updated, scaler, was_set)
        elif len(taps) == 1 and isinstance(scaler, TappedUnscaling):
            edge.call(routine.enter, scaler)


def _end_step(taps: Iterable[ScalerTap], optimizer: torch.optim.Optimizer) -> None:
    for tap in taps:
        if tap.routine.untold is not None:
            tap.loop.edge.call(tap.routine.passed_over)
        tap.stepping_now, tap.loop.windows.stepping = None, False
        if tap.awaits_step:
            tap.loop.edge.call(tap.stepped, optimizer)


def _steps_as_torch_does(kind: type[GradScaler]) -> bool:
    """Whether an optimizer is stepped where all that was found is finite, and else not."""
    return all(
        getattr(kind, name, None) is getattr(GradScaler, name, ...) for name in ("step", "unscale_", "_maybe_opt_step")
    )


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
    _leave_lane(key)
    if taps:
        _LISTENED[key] = Listened(weakref.ref(scaler, lambda _: _forget(key)), taps)
    else:
        _LISTENED.pop(key, None)


def _forget(key: int) -> None:
    """The scaler is gone; another one may have come to its address before we heard of it."""
    if key in _LISTENED and _LISTENED[key].scaler() is None:
        del _LISTENED[key]
        _leave_lane(key)


def _leave_lane(key: int) -> None:
    if key in LANES:
        LANES[key].leave()
