"""Updates that were skipped one after the other, and the last that was applied before them."""

from __future__ import annotations

from msgspec import Struct

from scalescope_server.store.judging import StepRow


class Streak(Struct, frozen=True):
    """Skipped updates in a row, the last of them the newest of all. None were skipped where there is no streak.

    ``applied``: the last update before them that was applied, null before the first.
    """

    segment: int
    first_step: int
    last_step: int
    applied: int | None

    @property
    def skips(self) -> int:
        return self.last_step - self.first_step + 1


def advance(streak: Streak | None, step: StepRow, before: StepRow | None) -> Streak | None:
    """The streak after ``step``; ``before`` is the update that it follows."""
    if not step.skipped:
        return None
    if streak is not None and streak.segment == step.segment:
        return Streak(step.segment, streak.first_step, step.step, streak.applied)
    applied = streak.applied if streak is not None else before.step if before is not None else None
    return Streak(step.segment, step.step, step.step, applied)
