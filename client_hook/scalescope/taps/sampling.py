"""Which gradients of the update under way are measured, and when: before anything has changed them.

Each optimizer has its turn when the interval of the budget has passed since its last one, so that of several on one
scaler none is left out. A measurement counts for one step of one optimizer: when that optimizer is measured
again before the update closes, after a step that failed for example, the later one replaces it. For a bounded
time after trouble all are measured at every update, which changes nobody's turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from scalescope.taps.backward.gradients import has_gradient, measure_gradients, unknown_parameters
from scalescope.taps.backward.watch import BackwardWatch
from scalescope.taps.budget import Budget
from scalescope.taps.parameters import Parameters
from scalescope.taps.trouble import Trouble
from scalescope.updates import Measured, Update

_CLIPPED = "the gradients were clipped before they were unscaled, which spreads a non-finite one over all"
_STRANGER = "the optimizer that overflowed is not watched"
# For so many updates a turn is expected that did not come: where an optimizer rests, or never steps, what listens
# to whole updates must not listen to each of them.
_PATIENCE = 8


class Part(NamedTuple):
    """What was measured of one optimizer, after how many of its gradients had come."""

    measured: list[Measured]
    micro_batches: int | None
    gradients: int
    before_clipping: bool


class Sampling:
    """Measures, and remembers for one update. Optimizers go by their number."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        parameters: Parameters,
        backward: BackwardWatch,
        budget: Budget,
    ) -> None:
        self._optimizers = optimizers
        self._parameters = parameters
        self._backward = backward
        self._budget = budget
        self.trouble = Trouble()
        self._step = 0
        self._turns: dict[int, int] = {}
        # Whether nothing is to be measured in the update under way, whatever is asked: known at its beginning.
        self.quiet = False
        # The first update at which some optimizer's turn comes.
        self.next_turn = 0
        # What was measured of the update under way.
        self.parts: dict[int, Part] = {}
        self._unscaled: set[int] = set()
        self._clips: set[int] = set()
        self._blind = ""

    def due(self, number: int) -> bool:
        """Whether an optimizer is to be measured: its turn has come, or the update under way is dense."""
        return not self.quiet and (self.trouble.dense or self._has_turn(number))

    def expects(self) -> bool:
        """Whether gradients are likely to be measured in the update under way, known at its beginning."""
        return not self.quiet and (self.trouble.dense or any(map(self._expected, range(len(self._optimizers)))))

    def take(self, number: int) -> None:
        """Its turn: measure its gradients as they stand, unless they were measured before they were clipped."""
        part = self.parts.get(number)
        fresh = part is not None and part.before_clipping and part.gradients == self._backward.gradients(number)
        if not fresh:
            self._measure(number)
        self._take_turn(number)

    def unscaled(self, number: int | None) -> bool:
        """From here on its gradients are in other units: a clipping measures them no more. Whether they were."""
        if number is not None:
            self._unscaled.add(number)
        return number in self.parts

    def clipping(self, gradients: Sequence[torch.Tensor]) -> None:
        """These are about to be clipped, and some may be those of an optimizer whose turn it is."""
        self._clips.add(id(gradients[0]))
        waiting = [number for number in range(len(self._optimizers)) if self.due(number) and not self._fresh(number)]
        if waiting:
            identities = {id(gradient) for gradient in gradients}
            for number in waiting:
                if has_gradient(self._optimizers[number], identities):
                    self._measure(number, before_clipping=True)
                    self._take_turn(number)

    def look(self, number: int | None, factor: float) -> None:
        """It was skipped: measure its gradients, times ``factor``, so that the culprit can be named."""
        if number is None:
            self.cannot_see(_STRANGER)
        elif spread := self.spread(number):
            self.cannot_see(spread)
        else:
            self._measure(number, factor=factor)

    def spread(self, number: int) -> str:
        """Why the gradients of an optimizer tell nobody any more which of them overflowed; "" while they do."""
        return _CLIPPED if self._clips and has_gradient(self._optimizers[number], self._clips) else ""

    def cannot_see(self, reason: str) -> None:
        """The culprit of this update, should it be skipped, cannot be named."""
        self._blind = reason

    def close(self, update: Update) -> None:
        """Give what was measured to ``update``, and begin the next."""
        self._step += 1
        self._unscaled.clear()
        if self._clips:
            self._clips.clear()
        if self._blind:
            update.blind, self._blind = self._blind, ""
        if self.parts:
            self._hand_over(update)
        self.trouble.ask_of(update.verdicts, update.measured)
        self.heed_trouble()

    def pay(self, update: Update, now_ns: int, total_ns: int, spent_ns: int) -> None:
        """``update``, which was measured, has closed: what it took decides when the next turn is."""
        if not update.periodic:
            self._budget.looked(spent_ns)
            return
        self._budget.sampled(update.step, now_ns, total_ns, spent_ns)
        self._reckon()
        self.quiet = not self.trouble.dense and self._step < self.next_turn

    def pass_by(self, step: int) -> None:
        """Updates closed in which nothing was measured, nor is anything awaited. The next is ``step``."""
        self._step = step
        self.quiet = step < self.next_turn

    def heed_trouble(self) -> None:
        """Hear what is known by now of things that went wrong, for the update that begins."""
        if self.trouble.dense or self.trouble.awaited:
            self.trouble.heed(self._step)
        self.quiet = not self.trouble.dense and self._step < self.next_turn

    def _has_turn(self, number: int) -> bool:
        last = self._turns.get(number)
        return last is None or last == self._step or self._step - last >= self._budget.interval

    def _expected(self, number: int) -> bool:
        waited = self._step - self._turns.get(number, -self._budget.interval)
        return waited == 0 or self._budget.interval <= waited < self._budget.interval + _PATIENCE

    def _take_turn(self, number: int) -> None:
        if self._has_turn(number):
            self._turns[number] = self._step
            self._reckon()

    def _reckon(self) -> None:
        if len(self._turns) == len(self._optimizers):
            self.next_turn = min(self._turns.values()) + self._budget.interval

    def _hand_over(self, update: Update) -> None:
        parts = list(self.parts.values())
        update.measured = [measured for part in parts for measured in part.measured]
        update.periodic = any(self._turns.get(number) == update.step for number in self.parts)
        counts = {part.micro_batches for part in parts}
        update.micro_batches = counts.pop() if len(counts) == 1 else None
        self.parts = {}

    def _fresh(self, number: int) -> bool:
        part = self.parts.get(number)
        same = part is not None and part.gradients == self._backward.gradients(number)
        return same or number in self._unscaled

    def _measure(self, number: int, *, factor: float = 1.0, before_clipping: bool = False) -> None:
        optimizer = self._optimizers[number]
        self._parameters.settle_shares()
        if unknown_parameters(optimizer, self._parameters) or self._parameters.shares.changed:
            self._parameters.extend(self._optimizers)
            self._backward.arm()
        self.parts.pop(number, None)
        known = {index for part in self.parts.values() for measured in part.measured for index in measured.indexes}
        self.parts[number] = Part(
            measure_gradients(optimizer, self._parameters, factor=factor, known=known),
            self._backward.passes(number),
            self._backward.gradients(number),
            before_clipping,
        )
