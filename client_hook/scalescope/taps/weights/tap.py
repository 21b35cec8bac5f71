"""What updates did to the weights: heard at the optimizers' steps, of the updates whose gradients are sampled.

A step that a fused optimizer skips on its device runs both hooks as well; whether it did is read with the counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

from scalescope.readback import Value, number, read_later, ready
from scalescope.taps.edge import eager
from scalescope.taps.loop import Loop
from scalescope.taps.parameters import Parameters
from scalescope.taps.weights.changed import Copied, Counted, GradientAt
from scalescope.taps.weights.intended import leaves_gradients
from scalescope.taps.weights.looked import MOST
from scalescope.taps.weights.rows import batches_of
from scalescope.updates import Update, reason_of
from scalescope.wire import Record, Tally

# A row of counts in memory: ten numbers of eight bytes.
_ROW_BYTES = 80


class Step(NamedTuple):
    """A step that was taken: its counts, by device, and whether its optimizer skipped it after all (above 0)."""

    counted: list[Counted]
    skipped: Value


class WeightsTap:
    """One scope's ears on its optimizers' steps. A watcher: what was counted goes into the update that closes next."""

    def __init__(self, loop: Loop, parameters: Parameters) -> None:
        self.loop = loop
        self._parameters = parameters
        # By the optimizer's number.
        self.copied: dict[int, tuple[list[Copied], Value]] = {}
        self._steps: dict[int, Step] = {}
        self._handles: list[RemovableHandle] = []

    def attach_after(self) -> None:
        """Hear the ends of steps. Before others hear them, who close the update there."""
        for optimizer in self.loop.optimizers:
            if hasattr(optimizer, "_optimizer_step_post_hooks"):
                self._handles.append(optimizer.register_step_post_hook(_After(self)))

    def attach_before(self) -> None:
        """Hear the beginnings of steps. After others hear them, who decide there what is sampled."""
        for optimizer in self.loop.optimizers:
            if hasattr(optimizer, "_optimizer_step_pre_hooks"):
                self._handles.append(optimizer.register_step_pre_hook(_Before(self)))

    @torch.no_grad()
    def stepping(self, optimizer: torch.optim.Optimizer, number: int, closure: bool) -> None:
        """Copy, if this update is sampled."""
        # What a step that failed has left.
        self.copied.pop(number, None)
        self._steps.pop(number, None)
        if not self.loop.sampling.due(number):
            return
        seen = {index for step in self._steps.values() for counted in step.counted for index in counted.indexes}
        at = GradientAt.BEFORE
        if closure:
            at = GradientAt.AFTER if leaves_gradients(optimizer) else GradientAt.NEVER
        # Where a fused optimizer unscales by itself, or skips.
        scale, found = (getattr(optimizer, name, None) for name in ("grad_scale", "found_inf"))
        # Where each layer has an optimizer of its own there are hundreds.
        most = MOST // len(self.loop.optimizers)
        batches = batches_of(optimizer, self._parameters, seen, closure=closure, most=most)
        if batches:
            copies = [Copied(batch, at, scale) for batch in batches]
            self.copied[number] = copies, 0.0 if found is None else read_later(found)

    @torch.no_grad()
    def stepped(self, number: int) -> None:
        copies, skipped = self.copied.pop(number)
        self._steps[number] = Step([copied.count() for copied in copies], skipped)

    def closing(self, update: Update) -> None:
        if self._steps:
            update.extras = [*update.extras, Changes(list(self._steps.values()))]
            self._steps = {}

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.copied.clear()


class Changes:
    """What the steps of one update did: an extra of it, one tally."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps

    @property
    def nbytes(self) -> int:
        return sum(_ROW_BYTES * len(counted.indexes) for step in self._steps for counted in step.counted)

    def ready(self) -> bool:
        arrived = all(counted.counts.ready() for step in self._steps for counted in step.counted)
        return arrived and all(ready(step.skipped) for step in self._steps)

    def records(self, update: Update) -> list[Record]:
        """The tally of the steps that were applied."""
        applied = [step for step in self._steps if number(step.skipped) == 0]
        found = [counted for step in applied for counted in step.counted]
        if not found:
            return []
        indexes = [index for counted in found for index in counted.indexes]
        tables = [counted.columns() for counted in found]
        return [
            Tally(
                sequence=0,
                step=update.step,
                at=update.at,
                subject="parameter",
                reason=reason_of(update),
                # Weights are in the same units at every scale.
                scale=None,
                indexes=np.asarray(indexes, "<i4").tobytes(),
                columns={
                    name: np.concatenate([table[name] for table in tables]).astype("<f8").tobytes()
                    for name in tables[0]
                },
            )
        ]


class _Before:
    """Hangs on an optimizer's step; torch passes the step's own arguments too."""

    __slots__ = ("_tap",)

    def __init__(self, tap: WeightsTap) -> None:
        self._tap = tap

    @eager
    def __call__(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tap = self._tap
        # Nearly always there is nothing to do.
        if tap.loop.sampling.quiet and not tap.copied:
            return
        number = tap.loop.numbers.get(id(optimizer))
        if number is not None and (tap.copied or tap.loop.sampling.due(number)):
            closure = callable(kwargs.get("closure")) or (len(args) > 1 and callable(args[1]))
            tap.loop.edge.call(tap.stepping, optimizer, number, closure)


class _After:
    __slots__ = ("_tap",)

    def __init__(self, tap: WeightsTap) -> None:
        self._tap = tap

    @eager
    def __call__(self, optimizer: torch.optim.Optimizer, *_step: object) -> None:
        tap = self._tap
        if tap.copied and (place := tap.loop.numbers.get(id(optimizer))) in tap.copied:
            tap.loop.edge.call(tap.stepped, place)
