"""Whose turn it is with the judge: runs that have news at once, runs that another server judges later again.

Pure: time is an argument, in seconds of any clock that only goes forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from scalescope_server.store.leases import Claim
from scalescope_server.store.records import RunId

# How often a run that another server judges is looked at, until all of it is judged: a lease that was given back is
# found within this time, one whose holder died within its term.
LOOK_S = 1.0
# Of a lease, what is not used up: the two clocks are read at different moments.
MARGIN_S = 0.5
# What one look asks about.
LOOK_RUNS = 1000
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
        self._call(now)
        run = next(iter(self._now), None)
        if run is not None:
            del self._now[run]
        return run

    def take_all(self, now: float, chosen: Callable[[RunId], bool], at_most: int) -> list[RunId]:
        """Those of the runs whose turn it is that are ``chosen``, in their order."""
        self._call(now)
        taken = [run for run in self._now if chosen(run)][:at_most]
        for run in taken:
            del self._now[run]
        return taken

    def wait_s(self, now: float, at_most: float) -> float:
        """How long nobody has a turn, unless there is news."""
        if self._now:
            return 0.0
        return min(at_most, max(0.0, min(self._later.values(), default=now + at_most) - now))

    def _call(self, now: float) -> None:
        # They go to the end of the line: who has news all the time does not keep them from being looked at.
        for due in [run for run, at in self._later.items() if at <= now]:
            del self._later[due]
            self._now[due] = None


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


# A run that cannot be judged is tried again after so long, then after twice that, and so on.
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 300.0


@dataclass(slots=True)
class Failures:
    """Runs that could not be judged, for a reason that lies in them or in the program. ``count``: how often, in all."""

    count: int = 0
    _failed: dict[RunId, tuple[str, float]] = field(default_factory=dict)

    def note(self, run: RunId, reason: str) -> tuple[float, bool]:
        """It failed: how long to leave ``run`` alone, and whether that is the first time or has a new reason."""
        self.count += 1
        known, pause_s = self._failed.get(run, ("", 0.0))
        pause_s = min(max(2 * pause_s, FIRST_RETRY_S), LAST_RETRY_S)
        self._failed[run] = reason, pause_s
        return pause_s, reason != known

    def clear(self, run: RunId) -> None:
        """It was judged, or is gone."""
        self._failed.pop(run, None)

    def runs(self) -> int:
        """How many cannot be judged."""
        return len(self._failed)

    def __contains__(self, run: object) -> bool:
        return run in self._failed
