"""What is the matter with the ranks, in sentences."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from scalescope_server.ranks import named, rank_sentences
from scalescope_server.store.records import Disagreement, Opinion, RankRow, RankState, SegmentRow

from tests.test_figures_told import detail

NOW = 1000.0


def rank(
    number: int, state: RankState = "running", *, last: int | None = 99, lag: int = 0, attempted: int = 100
) -> RankRow:
    return RankRow(
        rank=number,
        segment="s",
        state=state,
        last_step=last,
        lag=lag,
        attempted=attempted,
        last_seen_at=NOW - 180,
        progress_at=NOW - 240,
    )


def said(*ranks: RankRow, world_size: int = 4, disagreements: tuple[Disagreement, ...] = ()) -> list[str]:
    run = replace(detail(), world_size=world_size, rank_states=list(ranks), disagreements=list(disagreements))
    return rank_sentences(run, NOW)


def test_ranks_that_go_on_together_need_no_sentence() -> None:
    assert said(*map(rank, range(4))) == []
    assert said(rank(0, "crashed"), world_size=1) == []


def test_a_rank_that_died_and_those_that_wait_for_it_are_told() -> None:
    assert said(
        rank(0, "stalled"), rank(1, "stalled"), rank(2, "silent", last=None), rank(3, "crashed", last=1204)
    ) == [
        "Rank 3 crashed, after update 1,204.",
        "Rank 2 has given no sign of life for 3 min, before its first update.",
        "Ranks 0 and 1 have closed no update for 4 min, after update 99.",
    ]


def test_ranks_that_fell_silent_together_are_told_in_one_sentence() -> None:
    assert said(*(rank(number, "silent", last=4 if number == 2 else 99) for number in range(4))) == [
        "Rank 2 has given no sign of life for 3 min, after update 4.",
        "Ranks 0, 1 and 3 have given no sign of life for 3 min, after update 99.",
    ]


def test_a_disagreement_is_told_with_who_says_what() -> None:
    scale = Disagreement("scale", 120, "s", [Opinion(65536.0, [0, 1, 3]), Opinion("inf", [2])])
    skip = Disagreement("skipped", 7, "s", [Opinion(1.0, [1, 2, 3]), Opinion(0.0, [0])])
    scales, skips = said(*map(rank, range(4)), disagreements=(scale, skip))
    first = "the ranks disagree for the first time on"
    assert scales == f"At update 120 {first} the loss scale: ranks 0, 1 and 3 say 65,536; rank 2 says inf."
    told = "ranks 1 to 3 have skipped it; rank 0 has applied it"
    assert skips == f"At update 7 {first} whether it was skipped: {told}."


def test_ranks_that_ended_apart_lag_or_never_called_are_told() -> None:
    ended = [rank(0, "finished"), rank(1, "finished", attempted=99), rank(2, "finished"), rank(3, "finished")]
    assert said(*ended) == [
        "The ranks finished after different numbers of updates: ranks 0, 2 and 3 after 100, rank 1 after 99."
    ]
    assert said(rank(0), rank(1, lag=1200), rank(2, lag=3), rank(3, "absent")) == [
        "Rank 1 is 1,200 updates behind the farthest one.",
        "Of 4 ranks 3 have called: rank 3 not yet.",
    ]
    assert said(rank(0), rank(1, "absent"), world_size=5000)[0] == "Of 5,000 ranks 1 has called: 4,999 ranks not yet."


def test_ranks_that_have_not_called_yet_are_not_missed_while_a_training_starts() -> None:
    segment = SegmentRow(
        id="s", ordinal=0, started_at=NOW - 29, ended_at=None, end=None, detail=None, first_step=0, order="unknown"
    )
    run = replace(detail(), world_size=2, rank_states=[rank(0), rank(1, "absent")], segments=[segment])
    assert rank_sentences(run, NOW) == []
    assert len(rank_sentences(run, NOW + 2)) == 1


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([2], "rank 2"),
        ([0, 1], "ranks 0 and 1"),
        ([0, 1, 3], "ranks 0, 1 and 3"),
        ([0, 1, 2, 5], "ranks 0 to 2 and 5"),
        (list(range(64)), "ranks 0 to 63"),
        (list(range(0, 64, 2)), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and others"),
    ],
)
def test_many_ranks_are_named_in_few_words(ranks: list[int], words: str) -> None:
    assert named(ranks) == words
