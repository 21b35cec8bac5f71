"""What each of several ranks reports: together what one rank alone reports of the same training, to the last count."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests import launching, ranked
from tests.programs import Programs

pytestmark = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")

REPLICATED = ("ddp", "ddp, the inner model watched", "ddp, wrapped later", "fsdp1, replicas")
WHOLE = (*REPLICATED, "fsdp2", "hybrid", "fsdp1, originals", "fsdp1, hybrid")
# Culprits of a module whose parameters come together are those of a tie.
CULPRITS = ("first.weight", "first.bias")

Told = dict[str, Any]
# By rank and by training.
Ranks = list[dict[str, Told]]


@pytest.fixture(scope="module")
def alone() -> Told:
    """One rank that has the whole batch."""
    told: Told = json.loads(json.dumps(ranked.train()))
    return told


@pytest.fixture(scope="module")
def launch(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Ranks]:
    """What each rank told, of so many; they train once."""

    @functools.cache
    def launched(world: int) -> Ranks:
        return launching.launched(programs, world, tmp_path_factory.mktemp("ranks"), "tests.ranked")

    return launched


@pytest.fixture(params=[2, 4])
def ranks(request: pytest.FixtureRequest, launch: Callable[[int], Ranks]) -> Ranks:
    return launch(request.param)


@pytest.fixture
def two(launch: Callable[[int], Ranks]) -> Ranks:
    return launch(2)


@pytest.fixture
def four(launch: Callable[[int], Ranks]) -> Ranks:
    return launch(4)


def of(ranks: Ranks, name: str) -> list[Told]:
    return [told[name] for told in ranks]


def merged(each: list[Told], kind: str = "samples") -> dict[str, dict[str, list[int]]]:
    """Step -> parameter -> counts, added up over ranks."""
    found: dict[str, dict[str, list[int]]] = {}
    for told in each:
        for step, rows in told[kind].items():
            for name, counts in rows.items():
                so_far = found.setdefault(step, {}).get(name, [0] * len(counts))
                found[step][name] = [one + other for one, other in zip(so_far, counts, strict=True)]
    return found


def leading(each: list[Told], name: str) -> list[int]:
    return [rank for rank, told in enumerate(each) if told["parts"][name][2]]


def test_all_ranks_together_report_what_one_alone_does(ranks: Ranks, alone: Told) -> None:
    names = [name for name in WHOLE if name in ranks[0]]
    assert len(names) >= 5
    for name in names:
        each = of(ranks, name)
        assert merged(each) == alone["samples"], name
        assert merged(each, "weight_samples") == alone["weight_samples"], name
        for parameter, shape in alone["shapes"].items():
            assert each[0]["shapes"][parameter] == shape, name
            assert sum(told["parts"][parameter][1] for told in each) == torch.Size(shape).numel(), name
            assert len(leading(each, parameter)) == 1, name
        looked = {parameter: sum(told["looked"].get(parameter, 0) for told in each) for parameter in alone["shapes"]}
        assert looked == alone["looked"], name


def test_every_rank_tells_scale_and_skips(ranks: Ranks, alone: Told) -> None:
    watched = [name for name, told in ranks[0].items() if "scale" in told]
    assert len(watched) >= 5
    for name in watched:
        for told in of(ranks, name):
            assert (told["scale"], told["skipped"]) == (alone["scale"], alone["skipped"]), name
            assert list(told["skips"]) == list(alone["skips"]), name


def test_replicated_gradients_are_measured_by_the_first_rank_alone(two: Ranks) -> None:
    for name in REPLICATED:
        first, *others = of(two, name)
        assert {part[0] for told in (first, *others) for part in told["parts"].values()} == {"replicated"}
        assert first["skips"]["2"]["parameter"] == "first.bias"
        for told in others:
            assert (told["samples"], told["looked"]) == ({}, {})
            assert told["skips"]["2"]["parameter"] is None
            assert "another rank" in told["skips"]["2"]["reason"]


def test_the_rank_that_has_the_culprit_names_it_and_the_others_say_that_they_have_none(
    ranks: Ranks, alone: Told
) -> None:
    for name in ("fsdp2", "fsdp1, originals"):
        each = [told["skips"]["2"] for told in of(ranks, name)]
        nonfinite: dict[str, int] = {}
        for skip in each:
            nonfinite |= skip["nonfinite"]
            assert (skip["parameter"] in CULPRITS) is bool(skip["nonfinite"])
            assert (skip["parameter"] is None) is ("another rank" in skip.get("reason", ""))
        assert nonfinite == alone["skips"]["2"]["nonfinite"]
        # What overflowed was in the data of the last rank; the row of the layer is the first one's.
        assert each[0]["parameter"] in CULPRITS
        assert each[-1]["parameter"] is None or name == "fsdp1, originals"


def test_a_rank_that_leads_reports_an_empty_shard(ranks: Ranks) -> None:
    first, *others = of(ranks, "fsdp2")
    # One row over all ranks: the others have none of it.
    assert first["parts"]["second.weight"] == ["sharded", 7, True]
    for told in others:
        assert told["parts"]["second.weight"] == ["sharded", 0, False]
        assert "second.weight" not in told["samples"]["0"]


def test_of_replicas_of_a_sharded_model_the_first_reports(four: Ranks) -> None:
    each = of(four, "hybrid")
    reported = [{name: part[1] for name, part in told["parts"].items()} for told in each]
    assert reported[0]["first.weight"] + reported[1]["first.weight"] == 35
    assert set(reported[2].values()) == set(reported[3].values()) == {0}
    assert each[2]["samples"] == each[3]["samples"] == {}


def test_plain_gradients_are_each_rank_s_own(two: Ranks, alone: Told) -> None:
    for told in of(two, "by hand"):
        assert told["samples"] == alone["samples"]
        assert {(part[0], part[2]) for part in told["parts"].values()} == {("local", True)}


def test_a_flat_parameter_is_a_row_of_its_module(two: Ranks) -> None:
    each = of(two, "fsdp1, flat")
    world = len(each)
    for name, numel in (("first._flat_param", 42), ("second._flat_param", 8)):
        padded = -(-numel // world) * world
        assert each[0]["shapes"][name] == [padded]
        assert [told["parts"][name][1] for told in each] == [padded // world] * world
        assert sum(merged(each)["0"][name]) == padded
    assert each[0]["skips"]["2"]["parameter"] == "first._flat_param"


def test_the_format_of_a_sum_over_ranks_is_not_guessed_but_read_from_its_policy(two: Ranks) -> None:
    assert set(of(two, "fsdp2")[0]["formats"].values()) == {None}
    assert set(of(two, "fsdp2, bf16")[0]["formats"].values()) == {"bf16"}


def test_summands_are_each_rank_s_own_where_tensors_are_parallel(two: Ranks) -> None:
    first, second = of(two, "tensor parallel")
    for told in (first, second):
        assert told["parts"]["norm.weight"] == ["local", 8, True]
        for name, part in told["parts"].items():
            assert told["counted"].get(name, 0) == (told["held"][name] if part[1] else 0)
    assert [told["parts"]["up.weight"] for told in (first, second)] == [["sharded", 24, True], ["sharded", 24, False]]
    assert second["parts"]["down.bias"] == ["replicated", 0, False]


def test_a_rank_that_is_recorded_alone_reports_what_another_one_would_have(two: Ranks, alone: Told) -> None:
    _, second = of(two, "ddp, rank 1 watched")
    assert second["parts"] == of(two, "ddp")[0]["parts"]
    assert second["samples"] == {step: rows for step, rows in alone["samples"].items() if step != "0"}
    assert second["skips"] == alone["skips"]


@pytest.mark.parametrize(
    ("watched", "plain"),
    [
        ("ddp", "ddp, not watched"),
        ("ddp, rank 1 watched", "ddp, not watched"),
        ("fsdp2", "fsdp2, not watched"),
        ("fsdp2, rank 1 watched", "fsdp2, not watched"),
        ("fsdp2, clipped", "fsdp2, clipped, not watched"),
        ("fsdp1, originals", "fsdp1, not watched"),
    ],
)
def test_the_bits_of_a_training_and_what_its_ranks_ask_of_each_other_stay_the_same(
    watched: str, plain: str, two: Ranks
) -> None:
    for told, without in zip(of(two, watched), of(two, plain), strict=True):
        assert (told["weights"], told["calls"]) == (without["weights"], without["calls"])
