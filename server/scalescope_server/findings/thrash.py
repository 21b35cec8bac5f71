"""SCALE_THRASH: updates are thrown away again and again, more than a probing scaler explains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from scalescope_server.findings.history import SKIP_SHARE, History, ScalerRules, Skip
from scalescope_server.findings.words import percent, scale_code, scale_text, times
from scalescope_server.store.records import FindingRow

# Beside the share that nobody minds, a rate must be this many times what the growth interval explains.
BEYOND_PROBING = 2.0
# Separate occasions, not skips: one bad batch can cost several halvings in a row, and that is no thrashing.
OCCASIONS = 4
# Open episodes close when the share has fallen to this part of the limit, so they do not flicker.
CLOSE_BELOW = 0.5
# Of the skips, so large a part must be rejected doublings for the growth interval to be the cause.
MOSTLY = 0.75
DEFAULT_INTERVAL = 2000
KEPT_EPISODES = 20


class Episode(Struct, frozen=True):
    """A stretch of thrashing. The figures are those of its window when last seen; ``last_step`` null: open."""

    first_step: int
    last_step: int | None
    seen_step: int
    updates: int
    interval: int
    skips: tuple[Skip, ...]
    doublings: int


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
        ended = msgspec.structs.replace(episodes[-1], last_step=episodes[-1].skips[-1].step)
        return (*episodes[:-1], ended)
    return (*episodes[:-1], _seen(history, rules, first_step=episodes[-1].first_step)) if skipped else episodes


def find(episodes: Sequence[Episode]) -> list[FindingRow]:
    return [_finding(episode) for episode in episodes]


def _thrashes(history: History, rules: ScalerRules) -> bool:
    share = history.skip_share(rules)
    beyond = BEYOND_PROBING * rules.probe_share if not _interval_is_the_cause(history.skips) else 0.0
    return share > SKIP_SHARE and share > beyond and _occasions(history.skips) >= OCCASIONS


def _calm(history: History, rules: ScalerRules) -> bool:
    return history.skip_share(rules) <= CLOSE_BELOW * SKIP_SHARE


def _occasions(skips: Sequence[Skip]) -> int:
    return sum(not before or after.step > before.step + 1 for before, after in zip((None, *skips), skips, strict=False))


def _interval_is_the_cause(skips: Sequence[Skip]) -> bool:
    return len(_rejections(skips)) >= MOSTLY * len(skips)


def _rejections(skips: Sequence[Skip]) -> list[Skip]:
    return [skip for skip in skips if skip.after_growth is not None]


def _seen(history: History, rules: ScalerRules, *, first_step: int) -> Episode:
    return Episode(
        first_step=first_step,
        last_step=None,
        seen_step=history.last_step,
        updates=history.window_updates(rules),
        interval=rules.growth_interval,
        skips=history.skips,
        doublings=len(history.growths),
    )


def _finding(episode: Episode) -> FindingRow:
    skips = episode.skips
    ceiling = min(skip.scale for skip in skips)
    culprit, times_first = _culprit(skips)
    return FindingRow(
        code="SCALE_THRASH",
        subject="scale",
        severity="warning",
        sentence=" ".join(filter(None, (_lost(episode), _where(skips, ceiling, culprit, times_first)))),
        evidence={
            "skips": [skip.step for skip in skips][-50:],
            "skipped": len(skips),
            "updates": episode.updates,
            "doublings": episode.doublings,
            "ceiling": ceiling,
            "growth_interval": episode.interval,
            "parameter": culprit,
            "parameter_skips": times_first,
        },
        advice=_advice(episode, ceiling, culprit),
        first_step=episode.first_step,
        last_step=episode.last_step,
        seen_step=episode.seen_step,
    )


def _lost(episode: Episode) -> str:
    skips, share = episode.skips, len(episode.skips) / max(episode.updates, 1)
    return (
        f"{len(skips)} of the last {times(episode.updates, 'update')} were thrown away ({percent(share)})"
        f"{_after_doublings(episode)}."
    )


def _after_doublings(episode: Episode) -> str:
    """A doubling is rejected by a skip before the next one is due."""
    rejections = len(_rejections(episode.skips))
    if not rejections:
        return ""
    part = "all" if rejections == len(episode.skips) else f"{rejections}"
    return f", {part} of them within one growth interval ({times(episode.interval, 'update')}) of a doubling"


def _where(skips: Sequence[Skip], ceiling: float, culprit: str | None, times_first: int) -> str:
    at = f"The lowest scale that overflowed is {scale_text(ceiling)}"
    return (
        f"{at}; {culprit} overflows first in backward order in {times_first} of {len(skips)}." if culprit else f"{at}."
    )


def _culprit(skips: Sequence[Skip]) -> tuple[str | None, int]:
    named = Counter(skip.culprit for skip in skips if skip.culprit)
    return named.most_common(1)[0] if named else (None, 0)


def _advice(episode: Episode, ceiling: float, culprit: str | None) -> str:
    if _interval_is_the_cause(episode.skips) and episode.interval < DEFAULT_INTERVAL:
        return (
            f"Use GradScaler(init_scale={scale_code(ceiling / 2)}, growth_interval={DEFAULT_INTERVAL}): the scale is "
            f"doubled after every {times(episode.interval, 'clean update')}, and a rejected doubling costs an update."
        )
    layer = f"{culprit} first" if culprit else "the layers that overflow"
    return (
        f"The skips do not follow doublings: look at {layer}, at the batches of these updates and at the learning rate."
    )
