"""Whose turn it is with the judge: runs that have news at once, runs that another server judges later again.

Pure: time is an argument, in seconds of any clock that only goes forward.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scalescope_server.store.leases import Claim
from scalescope_server.store.records import RunId

# How often a run that another server judges is looked at, until all of it is judged: a lease that was given back is
# found within this time, one whose holder died within its term.
LOOK_S = 1.0
# Of a lease, what is not used up: the two clocks are read at different moments.
MARGIN_S = 0.5
# Not sooner, however short the rest of a lease is.
SOONEST_S = 0.05


@dataclass(slots=True)
class Turns:
    """The judge's line. A run stands in it once."""

    _now: dict[RunId, None] = field(default_factory=dict)
    _later: dict[RunId, float] = field(default_factory=dict)

    def at_once(self, run: RunId) -> None:
        """It has news. One that was put off has its turn when that time comes: another server judges it."""
        if run not in self._later:
            self._now[run] = None

    def later(self, run: RunId, at: float) -> None:
        """Let it have its turn at ``at``, unless it has one before."""
        if run not in self._now:
            self._later[run] = min(at, self._later.get(run, at))

    def take(self, now: float) -> RunId | None:
        """The run whose turn it is, if any."""
        # They go to the end of the line: who has news all the time does not keep them from being looked at.
        for due in [run for run, at in self._later.items() if at <= now]:
            del self._later[due]
            self._now[due] = None
        run = next(iter(self._now), None)
        if run is not None:
            del self._now[run]
        return run

    def wait_s(self, now: float, at_most: float) -> float:
        """How long nobody has a turn, unless there is news."""
        if self._now:
            return 0.0
        return min(at_most, max(0.0, min(self._later.values(), default=now + at_most) - now))


@dataclass(slots=True)
class Tenure:
    """The leases that this server holds, as far as it can know without asking."""

    _held: dict[RunId, tuple[int, float]] = field(default_factory=dict)

    def fence(self, run: RunId, now: float) -> int | None:
        """That of a run which nobody else can be judging at ``now``."""
        fence, ends = self._held.get(run, (0, now))
        return fence if now < ends else None

    def note(self, run: RunId, claim: Claim, asked_at: float) -> None:
        """Keep the answer to a claim that was made at ``asked_at``."""
        if claim.mine:
            self._held[run] = (claim.fence, asked_at + claim.left_s - MARGIN_S)
        else:
            self._held.pop(run, None)

    def count(self, now: float) -> int:
        """How many it holds; those whose time is over are forgotten."""
        self._held = {run: held for run, held in self._held.items() if now < held[1]}
        return len(self._held)


def look_again_at(claim: Claim, now: float) -> float:
    """When to look again at a run that another server judges."""
    return now + min(max(claim.left_s, SOONEST_S), LOOK_S)
