"""SCALE_THRASH: updates are thrown away again and again, more than a probing scaler explains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from scalescope_server.findings.history import SKIP_SHARE, History, Skip
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.findings.words import percent, scale_text, times
from scalescope_server.store.records import FindingRow

# Beside the share that nobody minds, a rate must be this many times what the growth interval explains.
BEYOND_PROBING = 2.0
# Separate occasions, not skips: one bad batch can cost several halvings in a row, and that is no thrashing.
OCCASIONS = 4
# Open episodes close when the share has fallen to this part of the limit, so they do not flicker.
CLOSE_BELOW = 0.5
# Of the skips, so large a part must be rejected doublings for the growth interval to be the cause.
MOSTLY = 0.75
KEPT_EPISODES = 20
KEPT_STEPS = 50


class Episode(Struct, frozen=True):
    """A stretch of thrashing. The figures are those of its window when last seen; ``last_step`` null: open.

    ``rejections``: skips at a scale that a doubling had reached. ``ceiling``: the lowest scale that was skipped.
    ``culprit`` overflowed first in ``culprit_skips`` of the skips. ``steps``: the last of the skipped updates.
    """

    first_step: int
    last_step: int | None
    seen_step: int
    updates: int
    interval: int
    skips: int
    rejections: int
    doublings: int
    ceiling: float
    culprit: str | None
    culprit_skips: int
    steps: tuple[int, ...]


def advance(
    episodes: tuple[Episode, ...], history: History, rules: ScalerRules, *, skipped: bool
) -> tuple[Episode, ...]:
    """The episodes after one more update, the last of ``history``."""
    open_one = bool(episodes) and episodes[-1].last_step is None
    if not open_one and not (skipped and _thrashes(history, rules)):
        return episodes
    if not open_one:
        return (*episodes, _seen(history, rules, first_step=history.skips[0].step))[-KEPT_EPISODES:]
    if _calm(history, rules):
        ended = msgspec.structs.replace(episodes[-1], last_step=episodes[-1].steps[-1])
        return (*episodes[:-1], ended)
    return (*episodes[:-1], _seen(history, rules, first_step=episodes[-1].first_step)) if skipped else episodes


def current(episodes: tuple[Episode, ...], history: History, rules: ScalerRules) -> tuple[Episode, ...]:
    """``episodes`` as they stand at the end of ``history``: one that is open has the figures of the window there."""
    if not episodes or episodes[-1].last_step is not None or not history.skips:
        return episodes
    return (*episodes[:-1], _seen(history, rules, first_step=episodes[-1].first_step))


def find(episodes: Sequence[Episode], rules: ScalerRules) -> list[FindingRow]:
    return [_finding(episode, rules) for episode in episodes]


def by_interval(episode: Episode) -> bool:
    """Whether most of what was lost are rejected doublings."""
    return episode.rejections >= MOSTLY * episode.skips


def _thrashes(history: History, rules: ScalerRules) -> bool:
    share = history.skip_share(rules)
    if share <= SKIP_SHARE or _occasions(history.skips) < OCCASIONS:
        return False
    rejected = len(_rejections(history.skips)) >= MOSTLY * len(history.skips)
    return rejected or share > BEYOND_PROBING * rules.probe_share


def _calm(history: History, rules: ScalerRules) -> bool:
    return history.skip_share(rules) <= CLOSE_BELOW * SKIP_SHARE


def _occasions(skips: Sequence[Skip]) -> int:
    return sum(not before or after.step > before.step + 1 for before, after in zip((None, *skips), skips, strict=False))


def _rejections(skips: Sequence[Skip]) -> list[Skip]:
    """A doubling is rejected by a skip before the next one is due."""
    return [skip for skip in skips if skip.after_growth is not None]


def _seen(history: History, rules: ScalerRules, *, first_step: int) -> Episode:
    skips = history.skips
    culprit, culprit_skips = _culprit(skips)
    return Episode(
        first_step=first_step,
        last_step=None,
        seen_step=history.last_step,
        updates=history.window_updates(rules),
        interval=rules.growth_interval,
        skips=len(skips),
        rejections=len(_rejections(skips)),
        doublings=len(history.growths),
        ceiling=min(skip.scale for skip in skips),
        culprit=culprit,
        culprit_skips=culprit_skips,
        steps=tuple(skip.step for skip in skips[-KEPT_STEPS:]),
    )


def _culprit(skips: Sequence[Skip]) -> tuple[str | None, int]:
    named = Counter(skip.culprit for skip in skips if skip.culprit)
    return named.most_common(1)[0] if named else (None, 0)


def _finding(episode: Episode, rules: ScalerRules) -> FindingRow:
    return FindingRow(
        code="SCALE_THRASH",
        subject="scale",
        severity="warning",
        sentence=f"{_lost(episode)} {_where(episode)}",
        evidence={
            "skips": list(episode.steps),
            "skipped": episode.skips,
            "updates": episode.updates,
            "doublings": episode.doublings,
            "ceiling": episode.ceiling,
            "growth_interval": episode.interval,
            "parameter": episode.culprit,
            "parameter_skips": episode.culprit_skips,
        },
        advice=_advice(episode, rules),
        first_step=episode.first_step,
        last_step=episode.last_step,
        seen_step=episode.seen_step,
    )


def _lost(episode: Episode) -> str:
    share = percent(episode.skips / max(episode.updates, 1))
    lost = f"{episode.skips} of the last {times(episode.updates, 'update')} were thrown away ({share})"
    if not episode.rejections:
        return f"{lost}."
    part = "all" if episode.rejections == episode.skips else f"{episode.rejections}"
    return f"{lost}, {part} of them within one growth interval ({times(episode.interval, 'update')}) of a doubling."


def _where(episode: Episode) -> str:
    at = f"The lowest scale that overflowed is {scale_text(episode.ceiling)}"
    if episode.culprit is None:
        return f"{at}."
    return f"{at}; {episode.culprit} overflows first in backward order in {episode.culprit_skips} of {episode.skips}."


def _advice(episode: Episode, rules: ScalerRules) -> str:
    if by_interval(episode) and episode.interval < rules.usual_interval:
        return (
            f"Use {rules.written(episode.ceiling / 2, rules.usual_interval)}: "
            f"the scale is doubled after every {times(episode.interval, 'clean update')}, and each rejected doubling "
            "costs an update."
        )
    layer = f"{episode.culprit} first" if episode.culprit else "the layers that overflow"
    return (
        f"The skips do not follow doublings: look at {layer}, at the batches of these updates and at the learning rate."
    )
