"""DeepSpeed: ``scope = scalescope.integrations.deepspeed.watch(engine)`` in place of ``scalescope.watch``.

DeepSpeed scales the loss, looks for overflow and skips inside of optimizers of its own. They are heard at two of
their methods: ``step``, and ``_update_scale``, which is called when it is decided whether an update is skipped, and
before its gradients are thrown away. Both are replaced on the object while it is watched. Nothing of DeepSpeed is
imported, and what an optimizer does not have is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import nn

from scalescope.errors import SettingError
from scalescope.integrations.deepspeed_gradients import BLIND, Theirs, held, parameters, stays_with_parameters
from scalescope.integrations.deepspeed_scaling import (
    decides_later,
    global_norm,
    lacking,
    scaler_settings,
    scaling,
)
from scalescope.integrations.deepspeed_shares import shares
from scalescope.integrations.options import Options
from scalescope.readback import Value, at_hand
from scalescope.scope import Scope
from scalescope.taps.edge import Edge
from scalescope.taps.library.optimizer import LibraryOptimizer, stand_in
from scalescope.taps.library.replaced import Given, Heard, Method, listener
from scalescope.taps.library.tap import LibraryTap, Outcome, Scaling
from scalescope.taps.logged import as_value
from scalescope.taps.ranks.wrappers import Held
from scalescope.watching import watch as watch_torch
from scalescope.wire import ScalerSettings

logger = logging.getLogger("scalescope")


def watch(engine: object, **options: Unpack[Options]) -> Scope:
    """Watch the training of a DeepSpeed engine from here on.

    Args:
        engine: what ``deepspeed.initialize`` returns first.
        options: what :func:`scalescope.watch` takes besides model, optimizer, scaler and scheduler.

    Returns:
        The scope. What of this engine cannot be recorded is said in one log line.

    Raises:
        SettingError: for an argument that cannot be used. Nothing is raised later.
    """
    model, optimizer = getattr(engine, "module", None), getattr(engine, "optimizer", None)
    if not isinstance(model, nn.Module) or optimizer is None:
        raise SettingError("engine", expected="what deepspeed.initialize() returns first", got=type(engine).__name__)
    scheduler = getattr(engine, "lr_scheduler", None)
    if isinstance(optimizer, torch.optim.Optimizer):
        # Not wrapped: it steps as torch does, with torch's own scaler or none.
        scaler = getattr(engine, "torch_autocast_z0_gradscaler", None)
        return watch_torch(model, optimizer, scaler, scheduler=scheduler, **options)
    standing = Edge().call(_standing_in_for, optimizer, model)
    return Scope() if standing is None else watch_torch(model, standing, scheduler=scheduler, **options)


def _standing_in_for(optimizer: Theirs, model: nn.Module) -> LibraryOptimizer:
    """The same as long as it is watched: so watching it again closes the scope before."""
    earlier = listener(optimizer, "step")
    if isinstance(earlier, DeepSpeedOptimizer):
        return earlier.optimizer
    return DeepSpeedOptimizer(optimizer, model).optimizer


class DeepSpeedOptimizer:
    """Listens to one of DeepSpeed's optimizers, ``theirs``; ``optimizer`` is what the taps know it by."""

    def __init__(self, theirs: Theirs, model: nn.Module) -> None:
        stepped = parameters(theirs) or [each for each in model.parameters() if each.requires_grad]
        inner = getattr(theirs, "optimizer", None)
        self.optimizer = stand_in(type(theirs).__name__, self, stepped, _settings(inner))
        self.optimizer.moves_gradients = not stays_with_parameters(theirs)
        self._theirs = theirs
        self._tap: LibraryTap | None = None
        self._heard: list[Heard] = []
        self._before = Scaling()
        self._overflow: Value | None = None

    def attach(self, tap: LibraryTap) -> None:
        self._tap = tap
        self._heard = [
            Heard(self._theirs, name, around)
            for name, around in (("step", self._around_step), ("_update_scale", self._around_update))
            if callable(getattr(self._theirs, name, None))
        ]
        if missed := lacking(self._theirs):
            logger.warning(
                "scalescope: of DeepSpeed's %s is not recorded: %s", type(self._theirs).__name__, "; ".join(missed)
            )

    def remove(self) -> None:
        for heard in self._heard:
            heard.remove()
        self._heard, self._tap = [], None

    def shares(self) -> dict[int, Held]:
        return shares(self._theirs)

    def scaler_settings(self) -> ScalerSettings | None:
        return scaler_settings(self._theirs)

    def _around_step(self, own: Method, *args: Given, **kwargs: Given) -> Given:
        tap = self._tap
        if tap is None:
            return own(*args, **kwargs)
        tap.loop.edge.call(self._begin, tap)
        try:
            result = own(*args, **kwargs)
        except BaseException:
            tap.loop.edge.call(self._fail, tap)
            raise
        tap.loop.edge.call(self._end, tap)
        return result

    def _around_update(self, own: Method, *args: Given, **kwargs: Given) -> Given:
        """With ``has_overflow`` or ``skip``: whether the update under way is skipped."""
        if self._tap is not None:
            self._tap.loop.edge.call(self._decide, self._tap, *args, *kwargs.values())
        return own(*args, **kwargs)

    def _begin(self, tap: LibraryTap) -> None:
        self._before, self._overflow = scaling(self._theirs), None
        if not decides_later(self._theirs):
            tap.gradients(self._source)

    def _decide(self, tap: LibraryTap, overflow: object = False) -> None:
        self._overflow = as_value(overflow)
        tap.gradients(self._source)
        if self._overflow is not None and at_hand(self._overflow):
            tap.skipping(self._source, 1.0, BLIND)

    def _end(self, tap: LibraryTap) -> None:
        after = scaling(self._theirs)
        skipped = getattr(self._theirs, "overflow", None) if self._overflow is None else self._overflow
        norm = None if skipped else global_norm(self._theirs, self._before.scale, after.scale)
        rate = self._theirs.param_groups[0].get("lr") if hasattr(self._theirs, "param_groups") else None
        logged = {"global_grad_norm": norm}
        tap.close(Outcome(self._before, after, 0.0 if skipped is None else skipped, rate, logged))

    def _fail(self, tap: LibraryTap) -> None:
        """A step that raised. At the lowest scale it does so after an overflow, which is an update all the same."""
        if self._overflow is not None and at_hand(self._overflow):
            self._end(tap)

    def _source(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(held(self._theirs))


def _settings(inner: object) -> Mapping[str, Any]:
    """The numbers of the wrapped optimizer's first group."""
    groups = getattr(inner, "param_groups", None)
    return {name: value for name, value in groups[0].items() if name != "params"} if groups else {}
