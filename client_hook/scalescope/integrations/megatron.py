"""Megatron-LM: ``scope = scalescope.integrations.megatron.watch(optimizer, model)`` in place of ``scalescope.watch``.

A ``MegatronOptimizer``, chained or not, does all of an update in its ``step()``, which answers whether it was
successful, the norm of all gradients and how many of them are zero. That method is replaced on the object while it is
watched. Nothing of Megatron is imported, and what an optimizer does not have is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Unpack

from torch import nn

from scalescope.errors import SettingError
from scalescope.integrations.megatron_gradients import (
    BLIND,
    Theirs,
    can_tell,
    leaves,
    parameters,
    scaled,
    shares,
    unscaled,
)
from scalescope.integrations.options import Options
from scalescope.readback import Value
from scalescope.scope import Scope
from scalescope.taps.edge import Edge
from scalescope.taps.library.optimizer import LibraryOptimizer, stand_in
from scalescope.taps.library.replaced import Given, Heard, Method, listener
from scalescope.taps.library.tap import LibraryTap, Outcome, Scaling
from scalescope.taps.logged import as_value
from scalescope.taps.ranks.wrappers import Held
from scalescope.watching import watch as watch_torch
from scalescope.wire import ScalerSettings

# What Megatron wraps a model in, by the names of its classes.
_WRAPPERS = frozenset(
    {"DistributedDataParallel", "Float16Module", "FullyShardedDataParallel", "TorchFullyShardedDataParallel"}
)

logger = logging.getLogger("scalescope")


def watch(
    optimizer: object,
    model: nn.Module | Sequence[nn.Module],
    *,
    scheduler: object = None,
    **options: Unpack[Options],
) -> Scope:
    """Watch a training of Megatron's from here on.

    Args:
        optimizer: the ``MegatronOptimizer`` that ``get_megatron_optimizer`` gives.
        model: the model, or the list of its chunks, wrapped or not.
        scheduler: the ``OptimizerParamScheduler``, for its steps to be counted.
        options: what :func:`scalescope.watch` takes besides model, optimizer, scaler and scheduler.

    Returns:
        The scope. What of this optimizer cannot be recorded is said in one log line.

    Raises:
        SettingError: for an argument that cannot be used. Nothing is raised later.
    """
    if not callable(getattr(optimizer, "step", None)):
        raise SettingError("optimizer", expected="a MegatronOptimizer", got=type(optimizer).__name__)
    chunks = [model] if isinstance(model, nn.Module) else model
    models = [_unwrapped(chunk) for chunk in chunks]
    standing = Edge().call(_standing_in_for, optimizer, models)
    return Scope() if standing is None else watch_torch(models, standing, scheduler=scheduler, **options)


def _standing_in_for(optimizer: Theirs, models: Sequence[nn.Module]) -> LibraryOptimizer:
    """The same as long as it is watched: so watching it again closes the scope before."""
    earlier = listener(optimizer, "step")
    if isinstance(earlier, MegatronOptimizer):
        return earlier.optimizer
    return MegatronOptimizer(optimizer, models).optimizer


class MegatronOptimizer:
    """Listens to one of Megatron's optimizers, ``theirs``; ``optimizer`` is what the taps know it by."""

    def __init__(self, theirs: Theirs, models: Sequence[nn.Module]) -> None:
        stepped = parameters(theirs) or [each for model in models for each in model.parameters() if each.requires_grad]
        groups = getattr(theirs, "param_groups", None) or [{}]
        settings = {name: value for name, value in groups[0].items() if name != "params"}
        self.optimizer = stand_in(_name(theirs), self, stepped, settings)
        self._theirs = theirs
        self._tap: LibraryTap | None = None
        self._heard: Heard | None = None
        self._before = Scaling()
        self._scale: tuple[object, Value | None] = (None, None)

    def attach(self, tap: LibraryTap) -> None:
        self._tap = tap
        self._heard = Heard(self._theirs, "step", self._around_step)
        if missed := _lacking(self._theirs):
            logger.warning("scalescope: of Megatron's %s is not recorded: %s", _name(self._theirs), "; ".join(missed))

    def remove(self) -> None:
        if self._heard is not None:
            self._heard.remove()
        self._heard = self._tap = None

    def shares(self) -> dict[int, Held]:
        return shares(self._theirs)

    def scaler_settings(self) -> ScalerSettings | None:
        """Waits for the device if the scale is on one: once, at the start."""
        scaler = _scaler(self._theirs)
        if scaler is None:
            return None
        growth, backoff = (getattr(scaler, name, 1.0) for name in ("growth_factor", "backoff_factor"))
        return ScalerSettings(
            name=type(scaler).__name__,
            enabled=True,
            scale=float(scaler.scale),
            growth_factor=float(growth),
            backoff_factor=float(backoff),
            growth_interval=int(getattr(scaler, "growth_interval", 0)),
        )

    def _around_step(self, own: Method, *args: Given, **kwargs: Given) -> Given:
        tap = self._tap
        if tap is None:
            return own(*args, **kwargs)
        tap.loop.edge.call(self._begin, tap)
        result = own(*args, **kwargs)
        tap.loop.edge.call(self._end, tap, result)
        return result

    def _begin(self, tap: LibraryTap) -> None:
        self._before = self._scaling()
        tap.gradients(lambda: scaled(self._theirs))

    def _end(self, tap: LibraryTap, result: object) -> None:
        """``result``: whether it was successful, the norm of all gradients, and how many elements of them are 0."""
        success, norm, zeros = result if isinstance(result, tuple) and len(result) == 3 else (True, None, None)
        skipped = success is False
        if skipped:
            tap.skipping(lambda: unscaled(self._theirs), self._before.scale, BLIND)
        config = getattr(self._theirs, "config", None)
        logged = {
            # Where nothing is clipped none may be computed, and 0 is answered.
            "global_grad_norm": norm if getattr(config, "clip_grad", 1.0) or norm else None,
            "num_zeros_in_grad": zeros if getattr(config, "log_num_zeros_in_grad", False) else None,
        }
        groups = getattr(self._theirs, "param_groups", None)
        rate = groups[0].get("lr") if groups else None
        tap.close(Outcome(self._before, self._scaling(), float(skipped), rate, logged))

    def _scaling(self) -> Scaling:
        scaler = _scaler(self._theirs)
        if scaler is None:
            return Scaling()
        # Another tensor with every change, so that one at rest is read once.
        if scaler.scale is not self._scale[0]:
            self._scale = scaler.scale, as_value(scaler.scale)
        trackers = (getattr(scaler, name, None) for name in ("_growth_tracker", "_hysteresis_tracker"))
        return Scaling(self._scale[1], *trackers)


def _scaler(optimizer: Theirs) -> Theirs:
    """That of the first optimizer of a chain, since all scale by the same; None in bf16, where there may be none."""
    scalers = (getattr(leaf, "grad_scaler", None) for leaf in leaves(optimizer))
    return next((scaler for scaler in scalers if hasattr(scaler, "scale")), None)


def _lacking(optimizer: Theirs) -> list[str]:
    """What is not recorded, with the attribute that is missed."""
    missed = []
    if not any(hasattr(leaf, "grad_scaler") or hasattr(leaf, "_scale") for leaf in leaves(optimizer)):
        missed.append("the loss scale (no grad_scaler)")
    if not hasattr(optimizer, "param_groups"):
        missed.append("the learning rate (no param_groups)")
    if not can_tell(optimizer):
        missed.append("gradients (no groups of model and main parameters)")
    return missed


def _name(optimizer: Theirs) -> str:
    """Its class; that of what it chains, where they are all of one."""
    kinds = {type(leaf).__name__ for leaf in leaves(optimizer)}
    return kinds.pop() if len(kinds) == 1 else type(optimizer).__name__


def _unwrapped(model: nn.Module) -> nn.Module:
    while type(model).__name__ in _WRAPPERS and isinstance(inner := getattr(model, "module", None), nn.Module):
        model = inner
    return model
