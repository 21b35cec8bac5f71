"""What a mirror is: something that numbers and findings of a run are echoed to, from a thread of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What the server found to be the matter with a run.

    Attributes:
        code: which kind of finding, such as ``SCALE_THRASH``.
        subject: what it is about: a parameter, an optimizer, or "" for all of the run.
        sentence, advice: what was found, and what to do about it.
        first_step, last_step: the updates that it covers; ``last_step`` is None while it goes on.
        withdrawn: whether it was taken back: what came later told otherwise.
    """

    code: str
    subject: str
    severity: Severity
    sentence: str
    advice: str
    first_step: int
    last_step: int | None
    withdrawn: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """Numbers of one update, by the name of their series. ``at``: seconds since the epoch."""

    step: int
    at: float
    values: Mapping[str, float]


@runtime_checkable
class Mirror(Protocol):
    """What ``watch(..., mirror=...)`` takes of your own. Called in one thread, never the training's.

    Whatever it raises is told in one log line, and the training goes on. While it is slow, points are left out.
    """

    def scalars(self, points: Sequence[Point]) -> None:
        """Show numbers: at most ten updates a second, in order, each update once or twice."""

    def finding(self, finding: Finding) -> None:
        """Show a finding that is new, or has changed its severity, its sentence for good, or was taken back."""
