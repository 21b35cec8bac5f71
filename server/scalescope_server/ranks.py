"""What is the matter with the ranks of a run, in sentences. Pure.

A run of several ranks is what its ranks make of it: crashed when any of them crashed, finished when all have, and
silent when none gives a sign of life. One silent rank alone does not make a silent run, since the others still tell
what happens; it is told here instead, as is one that goes on living and closes no update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from scalescope_server.store.records import Disagreement, Opinion, RankRow, RankState, RunDetail

# So many updates may one rank be ahead of another between two deliveries.
USUAL_LAG = 100
# Ranks do not all call at once.
STARTING_S = 30.0
_MOST_NAMED = 8


def rank_sentences(detail: RunDetail, now: float) -> list[str]:
    """One for each thing that is not as it should be, the gravest first; none for a run of one rank."""
    if detail.world_size == 1:
        return []
    ranks = detail.rank_states
    found = [*_dead(ranks, now), *map(_disagreement, detail.disagreements), *_ends(ranks), *_laggards(ranks)]
    starting = bool(detail.segments) and now - detail.segments[-1].started_at < STARTING_S
    return found if starting else [*found, *_absent(ranks, detail)]


def named(ranks: Sequence[int]) -> str:
    """Such as "rank 2", "ranks 0, 1 and 3", "ranks 0 to 7": many neighbours as a range."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    words = list(_stretches(sorted(ranks)))
    words = [*words[:_MOST_NAMED], "others"] if len(words) > _MOST_NAMED else words
    return f"ranks {words[0]}" if len(words) == 1 else f"ranks {', '.join(words[:-1])} and {words[-1]}"


def _stretches(ranks: Sequence[int]) -> Iterator[str]:
    """Single ranks, and three neighbours or more as a range."""
    for _, neighbours in groupby(enumerate(ranks), key=lambda placed: placed[1] - placed[0]):
        some = [rank for _, rank in neighbours]
        yield from [f"{some[0]} to {some[-1]}"] if len(some) > 2 else map(str, some)


def _dead(ranks: Sequence[RankRow], now: float) -> Iterator[str]:
    for crashed in _alike(ranks, "crashed"):
        yield f"{_named(crashed)} crashed{_after(crashed[0])}."
    for silent in _alike(ranks, "silent"):
        since = max(rank.last_seen_at or 0.0 for rank in silent)
        yield f"{_named(silent)} {_have(silent)} given no sign of life for {_duration(now - since)}{_after(silent[0])}."
    for waiting in _alike(ranks, "stalled"):
        since = max(rank.progress_at or 0.0 for rank in waiting)
        yield f"{_named(waiting)} {_have(waiting)} closed no update for {_duration(now - since)}{_after(waiting[0])}."


def _alike(ranks: Sequence[RankRow], state: RankState) -> list[list[RankRow]]:
    """The ranks in ``state``, those of the same last update together, the fewest updates first."""
    found = [rank for rank in ranks if rank.state == state]
    lasts = sorted({-1 if rank.last_step is None else rank.last_step for rank in found})
    return [[rank for rank in found if (-1 if rank.last_step is None else rank.last_step) == last] for last in lasts]


def _named(ranks: Sequence[RankRow]) -> str:
    return named([rank.rank for rank in ranks]).capitalize()


def _have(ranks: Sequence[RankRow]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _after(rank: RankRow) -> str:
    return ", before its first update" if rank.last_step is None else f", after update {rank.last_step:,}"


def _disagreement(found: Disagreement) -> str:
    what = "on the loss scale" if found.name == "scale" else "on whether it was skipped"
    told = "; ".join(f"{named(opinion.ranks)} {_says(found.name, opinion)}" for opinion in found.opinions)
    return f"At update {found.step:,} the ranks disagree for the first time {what}: {told}."


def _says(name: str, opinion: Opinion) -> str:
    one = len(opinion.ranks) == 1
    if name == "skipped":
        return f"{'has' if one else 'have'} {'skipped' if opinion.value else 'applied'} it"
    value = opinion.value
    return (
        f"{'says' if one else 'say'} {value:,.6g}"
        if isinstance(value, float)
        else f"{'says' if one else 'say'} {value}"
    )


def _ends(ranks: Sequence[RankRow]) -> Iterator[str]:
    attempted = {rank.attempted for rank in ranks if rank.state == "finished"}
    if len(attempted) > 1:
        told = (
            f"{named([r.rank for r in ranks if r.state == 'finished' and r.attempted == count])} after {count:,}"
            for count in sorted(attempted, reverse=True)
        )
        yield f"The ranks finished after different numbers of updates: {', '.join(told)}."


def _laggards(ranks: Sequence[RankRow]) -> Iterator[str]:
    behind = [rank for rank in ranks if rank.state == "running" and (rank.lag or 0) > USUAL_LAG]
    for rank in sorted(behind, key=lambda each: -(each.lag or 0))[:_MOST_NAMED]:
        yield f"Rank {rank.rank} is {rank.lag:,} updates behind the farthest one."


def _absent(ranks: Sequence[RankRow], detail: RunDetail) -> Iterator[str]:
    called = sum(rank.state != "absent" for rank in ranks)
    if called < detail.world_size and ranks:
        absent = [rank.rank for rank in ranks if rank.state == "absent"]
        who = named(absent) if called + len(absent) == detail.world_size else f"{detail.world_size - called:,} ranks"
        yield f"Of {detail.world_size:,} ranks {called:,} {'has' if called == 1 else 'have'} called: {who} not yet."


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 5400 else f"{seconds / 3600:,.0f} h"
