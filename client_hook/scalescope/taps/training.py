"""All ears on one training: its parameters, its optimizers and its scaler, attached and removed together."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.amp import GradScaler

from scalescope.errors import SettingError
from scalescope.taps.budget import Budget
from scalescope.taps.edge import Edge
from scalescope.taps.library.optimizer import LibraryOptimizer
from scalescope.taps.library.tap import LibraryTap
from scalescope.taps.loop import Loop, Recording
from scalescope.taps.modules.histograms import KINDS, WeightHistograms
from scalescope.taps.modules.named import Modules
from scalescope.taps.modules.tap import ModulesTap
from scalescope.taps.optimizer import OptimizerTap, StepTap
from scalescope.taps.parameters import Parameters
from scalescope.taps.probe.result import ProbeResult
from scalescope.taps.probe.run import LossFunction
from scalescope.taps.probe.tap import ProbeTap
from scalescope.taps.routine.notes import Notes
from scalescope.taps.scaler.strangers import StrangersTap
from scalescope.taps.scaler.swapped import tap_scaler, untap_scalers
from scalescope.taps.scaler.tap import ScalerTap
from scalescope.taps.setup.parts import read_parts
from scalescope.taps.setup.setups import Setups
from scalescope.taps.weights.tap import WeightsTap


@dataclass(frozen=True, slots=True)
class Training:
    """What is watched. ``scaler`` is None where none is used, a disabled one included.

    ``scheduler`` is the one that the user named: anything with a ``step``; ``modules``: whether they are heard,
    ``histograms``: of what besides gradients they are measured.
    """

    models: Sequence[nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    scaler: GradScaler | None
    scheduler: object = None
    modules: bool = True
    histograms: Collection[str] = ()


def training_of(
    model: object,
    optimizer: object,
    scaler: object,
    scheduler: object = None,
    *,
    modules: object = True,
    histograms: Collection[object] = (),
) -> Training:
    """The training that a user names: one model or a list, one optimizer or a list, a scaler or None.

    Raises:
        SettingError: for anything else, naming the argument.
    """
    models = [thing for thing in _listed(model) if isinstance(thing, nn.Module)]
    if not models or len(models) != len(_listed(model)):
        raise SettingError("model", expected="a torch.nn.Module or a list of them", got=_kinds(model))
    optimizers = [thing for thing in _listed(optimizer) if isinstance(thing, torch.optim.Optimizer)]
    if not optimizers or len(optimizers) != len(_listed(optimizer)):
        raise SettingError("optimizer", expected="a torch.optim.Optimizer or a list of them", got=_kinds(optimizer))
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise SettingError("scaler", expected="a torch.amp.GradScaler or None", got=_kinds(scaler))
    enabled = scaler if scaler is not None and scaler.is_enabled() else None
    return Training(
        models, optimizers, enabled, scheduler, bool(modules), histogram_kinds(histograms, modules=bool(modules))
    )


class TrainingTap:
    """Hands the updates of ``training`` to ``recording``. Every entry goes through ``edge``."""

    def __init__(
        self,
        training: Training,
        recording: Recording,
        edge: Edge,
        *,
        every: int,
        adapts: bool = False,
        clock: Callable[[], float],
    ) -> None:
        """``every``: updates from one periodic sample to the next; where it ``adapts``, the fewest."""
        parameters = Parameters(training.models, training.optimizers)
        self._edge = edge
        self.shares = parameters.shares
        # Samples of one step add up over shards, so that ranks must not choose each for itself.
        alone = all(part.placement == "replicated" for part in parameters.shares.parts)
        budget = Budget(every, fixed=not (adapts and alone))
        self._loop = Loop(
            recording, parameters, training.optimizers, edge, budget, clock=clock, scheduler=training.scheduler
        )
        self._loop.sampling.trouble.together = not alone
        self._loop.windows.hear_from(training.models, scaled=training.scaler is not None)
        self._setups = Setups(recording.put_known, edge)
        read_parts(self._setups, self._loop, parameters)
        self._weights_tap = WeightsTap(self._loop, parameters)
        self._weight_histograms = [WeightHistograms(parameters)] if "weight" in training.histograms else []
        modules = Modules(training.models if training.modules else ())
        edge.guard(modules.places)
        parameters.modules = modules.entries
        self._modules_tap = ModulesTap(modules, self._loop, self._setups, training.histograms)
        self._scaler_tap = ScalerTap(self._loop, parameters)
        self._optimizer_tap = OptimizerTap(self._loop)
        closes = self._optimizer_tap if training.scaler is None else self._scaler_tap
        recording.overtaken = _weakly(closes.routine)
        libraries = [each for each in training.optimizers if isinstance(each, LibraryOptimizer)]
        self._library_taps = [LibraryTap(self._loop, optimizer) for optimizer in libraries]
        self._strangers_tap = StrangersTap(self._loop, None if training.scaler is None else self._scaler_tap)
        self._step_tap = StepTap(self._loop, self._scaler_tap.note_step)
        self._probe_tap = ProbeTap(
            self._loop,
            parameters,
            self._scaler_tap.scaler,
            recording,
            observed=lambda: self._modules_tap.autocast,
            clock=clock,
        )
        self._attached = True
        try:
            self._attach(training.scaler)
        except BaseException:
            self.remove()
            raise

    @property
    def refused(self) -> int:
        """Logged values that were no number."""
        return self._loop.intake.refused

    def log(self, values: Mapping[str, object]) -> None:
        self._edge.call(self._loop.log, values)

    def probe(
        self, loss_fn: LossFunction, *, compare_update: bool = False, dtype: torch.dtype | None = None
    ) -> ProbeResult | None:
        return self._probe_tap.probe(loss_fn, dtype, compare_update)

    def remove(self) -> None:
        """Put every hook and class back; the last update is complete. Again: nothing."""
        if self._attached:
            self._attached = False
            self._edge.call(self._remove)

    def _attach(self, scaler: GradScaler | None) -> None:
        # The set-ups last: they send what the other watchers tell.
        self._loop.watchers += [self._weights_tap, *self._weight_histograms, self._modules_tap, self._setups]
        self._weights_tap.attach_after()
        if scaler is not None:
            tap_scaler(scaler, self._scaler_tap)
            self._step_tap.attach()
        elif not self._library_taps:
            self._optimizer_tap.attach()
        for tap in self._library_taps:
            tap.attach()
        self._weights_tap.attach_before()
        self._strangers_tap.attach(scaler)
        self._loop.start()
        self._edge.guard(self._modules_tap.start)

    def _remove(self) -> None:
        self._strangers_tap.remove()
        untap_scalers(self._scaler_tap)
        self._scaler_tap.finish()
        self._step_tap.remove()
        self._optimizer_tap.remove()
        for tap in self._library_taps:
            tap.remove()
        self._loop.finish()


def histogram_kinds(given: Collection[object], *, modules: bool) -> frozenset[str]:
    """Of what histograms are asked for. Raises :class:`SettingError` for anything that they are not made of."""
    kinds = KINDS if modules else KINDS[:1]
    if isinstance(given, str) or not all(kind in kinds for kind in given):
        told = "a list of some of" if modules else "without modules at most"
        raise SettingError("histograms", expected=f"{told} {', '.join(map(repr, kinds))}", got=given)
    return frozenset(map(str, given))


def _weakly(routine: Notes) -> Callable[[], int]:
    """Its ``overtaken``; -1 once it is gone: what is recorded must not be kept by what records it."""
    reference = weakref.ref(routine)

    def overtaken() -> int:
        here = reference()
        return -1 if here is None else here.overtaken()

    return overtaken


def _listed(given: object) -> list[object]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _kinds(given: object) -> str:
    return ", ".join(type(thing).__name__ for thing in _listed(given)) or "nothing"
