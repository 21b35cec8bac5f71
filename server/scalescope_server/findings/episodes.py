"""The stretches in which something held, as detectors keep them: closed ones, and at most one that is open."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from scalescope_server.store.records import FindingRow

KEPT_EPISODES = 20


class Stretch(Struct, frozen=True, kw_only=True):
    """Updates ``first_step`` to ``last_step``, which is null while it is open."""

    first_step: int
    last_step: int | None = None


Each = TypeVar("Each", bound=Stretch)


def open_one(episodes: tuple[Each, ...]) -> Each | None:
    """The stretch that holds now."""
    return episodes[-1] if episodes and episodes[-1].last_step is None else None


def held(episodes: tuple[Each, ...], stretch: Each) -> tuple[Each, ...]:
    """With ``stretch``, which holds now, in the place of the open one, or begun."""
    kept = episodes[:-1] if open_one(episodes) is not None else episodes
    return (*kept, stretch)[-KEPT_EPISODES:]


def closed(episodes: tuple[Each, ...], last_step: int) -> tuple[Each, ...]:
    """With the open one, if there is one, at its end."""
    if open_one(episodes) is None:
        return episodes
    now = episodes[-1]
    # An older segment that came late may end before the first step of this one.
    return (*episodes[:-1], msgspec.structs.replace(now, last_step=max(last_step, now.first_step)))


def meets(finding: FindingRow, others: list[FindingRow]) -> bool:
    """Whether any of ``others`` held at an update at which ``finding`` did."""
    return any(finding.first_step <= _end(other) and other.first_step <= _end(finding) for other in others)


def _end(finding: FindingRow) -> int:
    return finding.seen_step if finding.last_step is None else finding.last_step
