"""How often gradients are sampled: as often as a budget of the training's time allows.

What the hook takes is the time of its taps in the training's thread, and the CPU time of the thread of its own: the
interpreter runs one thread at a time, so a training of small operations waits for that one too.

The time between two samples is a *cycle*. Of each it is asked how far apart samples would have to be for the hook
to stay within ``share`` of the training's own time: the smallest n with

    ordinary + extra / n <= share * step

where ``step`` is what an update of the training takes without the hook, ``ordinary`` what the hook takes of an
update that is not sampled, and ``extra`` what the samples of the cycle took above that; all of this cycle alone, so
that a machine that is slow for a while is slow in all three. The median over some cycles decides: a collection of
garbage, an evaluation or a suspended laptop is one of them, and what the first sample took, when everything is
still cold, is in none. Where ordinary updates alone take the whole budget, of a tiny training or on a machine that many
share, rarer samples would not mend it: a tenth of the budget is theirs whatever the others take.

Intervals are ``every`` times a power of two, a sample moves them by one octave at most, and down only where it
leaves room: so they do not flutter, nor does a short training lose sight of itself at once.

An ordinary update costs nothing here: told are only those that were measured, and sums of all of them.

The interval is fixed where the user gave ``every``, and over shards: there the samples of one step are added up, and no
rank can know what the clocks of the others say. Nested intervals would not help: the steps that only some ranks sample
would add up to a part that looks like the whole. Where one rank alone reports (replicas do not measure), it may adapt.
"""

from __future__ import annotations

from collections import deque
from statistics import median_low

# Of the training's own time, in all.
SHARE = 0.01
# The longest interval, in units of `every`: 640 updates where it is 10. A sample that takes six times an update
# still fits, and a training of some thousand updates is still seen more than a few times.
MOST = 64
# Cycles that decide, and the fewest that may: two of three are not led astray by the third.
_CYCLES = 5
_FEWEST = 3
# Down only if the shorter interval would do with a quarter to spare.
_ROOM = 0.75
# The part of the budget that samples have in any case.
_LEAST = 0.1


class Budget:
    """``interval`` is the number of updates from one periodic sample to the next; it starts as ``every``.

    Of several optimizers each may have its turn at an update of its own: all within one interval are one cycle.
    """

    def __init__(self, every: int, *, share: float = SHARE, fixed: bool = False) -> None:
        self.interval = every
        self._every = every
        self._share = share
        self._fixed = fixed
        self._needed: deque[float] = deque(maxlen=_CYCLES)
        # The cycle under way: when it began, and what it has had of updates that were measured.
        self._step, self._now_ns, self._total_ns = -1, 0, 0
        self._samples = self._sampled_ns = self._looks = self._looked_ns = 0

    def sampled(self, step: int, now_ns: int, total_ns: int, spent_ns: int) -> None:
        """A turn was taken in update ``step``, which closes at ``now_ns``.

        ``spent_ns`` is what the taps took of it, and ``total_ns`` what the hook took of all so far, this one included.
        """
        if self._fixed:
            return
        self._samples += 1
        self._sampled_ns += spent_ns
        if self._step >= 0 and step - self._step < self.interval:
            return
        if self._step >= 0:
            self._needed.append(self._need(step - self._step, now_ns - self._now_ns, total_ns - self._total_ns))
            self._decide()
        self._step, self._now_ns, self._total_ns = step, now_ns, total_ns
        self._samples = self._sampled_ns = self._looks = self._looked_ns = 0

    def looked(self, spent_ns: int) -> None:
        """An update closes that was measured out of turn: its ``spent_ns`` say nothing of ordinary ones.

        Such looks are bounded by themselves and not paid for out of the budget.
        """
        self._looks += 1
        self._looked_ns += spent_ns

    def _need(self, updates: int, wall_ns: int, spent_ns: int) -> float:
        """The interval that the budget asks for, by the cycle that ends."""
        own = wall_ns - spent_ns
        others = updates - self._samples - self._looks
        ordinary = (spent_ns - self._sampled_ns - self._looked_ns) / others if others > 0 else 0.0
        extra = self._sampled_ns - self._samples * ordinary
        allowed = self._share * own / updates
        return extra / max(allowed - ordinary, _LEAST * allowed, 1.0)

    def _decide(self) -> None:
        if len(self._needed) < _FEWEST:
            return
        needed = median_low(self._needed)
        if needed > self.interval:
            self.interval = min(2 * self.interval, MOST * self._every)
        elif self.interval > self._every and needed <= _ROOM * self.interval / 2:
            self.interval //= 2
