"""The reference probe: one micro-batch in the training's own precision and in fp32, and training none the wiser."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.amp import GradScaler

from scalescope.taps.edge import Edge
from scalescope.taps.loop import Loop, Recording
from scalescope.taps.parameters import Parameters
from scalescope.taps.probe.compare import compare
from scalescope.taps.probe.draws import Draws, check_alike, check_none
from scalescope.taps.probe.precision import Precision, ProbeError, eager_alone, fp32, precision_of
from scalescope.taps.probe.ranks import alone, apart, refuse_sharded
from scalescope.taps.probe.reference import Checking, Widening
from scalescope.taps.probe.result import ProbeResult, differences, record_of, refusal_of, together
from scalescope.taps.probe.run import LossFunction, Outcome, run
from scalescope.taps.probe.state import StandIns, draws_kept, modules_kept
from scalescope.taps.probe.update import compare_updates

_SKIPPED = "its gradients overflow at this scale, so that the scaler would skip it"

logger = logging.getLogger("scalescope")


class Both(NamedTuple):
    """The same micro-batch in both precisions; ``scale``: of the own backward, None without a scaler."""

    own: Outcome
    reference: Outcome
    scale: float | None
    precision: Precision

    @property
    def factor(self) -> float:
        """What the own gradients are multiplied by."""
        return 1.0 if self.scale is None else self.scale


class ProbeTap:
    """Runs the probes of one scope.

    ``scaler`` gives the one in use, ``observed`` tells the autocast in force at the model's last forward.
    """

    def __init__(
        self,
        loop: Loop,
        parameters: Parameters,
        scaler: Callable[[], GradScaler | None],
        recording: Recording,
        *,
        observed: Callable[[], Mapping[str, str | None]],
        clock: Callable[[], float],
    ) -> None:
        self._loop = loop
        self._parameters = parameters
        self._scaler = scaler
        self._recording = recording
        self._observed = observed
        self._clock = clock
        self._told = ""

    def probe(self, loss_fn: LossFunction, dtype: torch.dtype | None, compare_update: bool) -> ProbeResult | None:
        """See :meth:`scalescope.scope.Scope.probe`. Never raises."""
        edge: Edge = self._loop.edge
        if edge.silent:
            return None
        result = edge.aside(self._probe, loss_fn, dtype, compare_update)
        if isinstance(result, Exception):
            edge.call(self._refuse, result)
            return None
        return result

    def _probe(self, loss_fn: LossFunction, dtype: torch.dtype | None, compare_update: bool) -> ProbeResult:
        start = time.perf_counter()
        both = self._both(loss_fn, dtype)
        columns = compare(both.own.gradients, both.reference.gradients, both.factor)
        overflowed = both.scale is not None and bool(columns["own_nonfinite"].any())
        updates, no_updates = self._updates(both, overflowed=overflowed) if compare_update else ({}, "")
        indexes = list(both.reference.gradients)
        result = ProbeResult(
            loss=both.own.loss,
            reference_loss=both.reference.loss,
            scale=both.scale,
            format=both.precision.format,
            seconds=time.perf_counter() - start,
            total=together(columns),
            parameters=dict(zip(map(self._parameters.name, indexes), differences(columns), strict=True)),
            updates=updates,
            no_updates=no_updates,
        )
        self._recording.put_known(record_of(result, indexes, columns, step=self._loop.step, at=self._clock()))
        return result

    def _both(self, loss_fn: LossFunction, dtype: torch.dtype | None) -> Both:
        models = self._parameters.models()
        refuse_sharded(models)
        precision = self._precision(models, dtype)
        scaler = self._scaler()
        # The wait for the device that this may be is one of many here.
        scale = None if scaler is None else float(scaler.get_scale())
        draws = Draws()
        with modules_kept(models), apart():
            # The reference first: what it refuses has not been run in the other precision.
            with draws:
                reference = self._reference(loss_fn, models)
            own = self._own(loss_fn, models, precision, 1.0 if scale is None else scale, draws)
        return Both(own, reference, scale, precision)

    def _precision(self, models: Sequence[nn.Module], dtype: torch.dtype | None) -> Precision:
        tensors = [tensor for model in models for tensor in model.parameters()]
        if not tensors:
            raise ProbeError("nothing is left of the watched model's parameters")
        return precision_of(tensors, dtype=dtype, observed=self._observed(), computed=self._parameters.computed())

    def _reference(self, loss_fn: LossFunction, models: Sequence[nn.Module]) -> Outcome:
        stand_ins = StandIns(models, wide=True)
        devices = stand_ins.devices
        with draws_kept(devices), fp32({device.type for device in devices}), alone(), Widening(), Checking():
            return run(loss_fn, stand_ins, self._parameters, scale=1.0, forward=contextlib.nullcontext)

    def _own(
        self, loss_fn: LossFunction, models: Sequence[nn.Module], precision: Precision, scale: float, expected: Draws
    ) -> Outcome:
        """As the training runs it. A compiled graph is left alone: a mode would keep it from being one for good."""
        stand_ins = StandIns(models, wide=False)
        with draws_kept(stand_ins.devices):
            work = functools.partial(run, loss_fn, stand_ins, self._parameters, scale=scale, forward=precision.entered)
            if self._parameters.compiled:
                check_none(expected)
                return work()
            with eager_alone(), Draws() as drawn:
                outcome = work()
            check_alike(expected, drawn)
            return outcome

    def _updates(self, both: Both, *, overflowed: bool) -> tuple[dict[str, dict[str, float]], str]:
        """By name; or none, and why: an optimizer may want more for a step than gradients, or keep more."""
        if overflowed:
            return {}, _SKIPPED
        gradients = both.own.gradients, both.reference.gradients
        found = self._loop.edge.aside(
            compare_updates, self._loop.optimizers, self._parameters, *gradients, scale=both.factor
        )
        if isinstance(found, Exception):
            return {}, f"the optimizer cannot be copied for one step: {_named(found)}"
        return {self._parameters.name(index): differences for index, differences in found.items()}, ""

    def _refuse(self, error: Exception) -> None:
        """Record why there is no result. The same reason is logged once, not at each of a thousand probes."""
        reason = str(error) if isinstance(error, ProbeError) else _named(error)
        self._recording.put_known(refusal_of(reason, step=self._loop.step, at=self._clock()))
        if reason != self._told:
            self._told = reason
            trace = None if isinstance(error, ProbeError) else error
            logger.warning("scalescope: no probe, and training goes on: %s", reason, exc_info=trace)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
