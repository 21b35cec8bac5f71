"""The fold over all detectors: what an ordinary update may pass by, and how much is kept."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from scalescope_server.findings.catalogue import Case, findings, fold, remember, stand
from scalescope_server.findings.course import Course, advance, follow
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.store.judging import Setting, StepRow

from tests.timelines import Scaler, codes_over_time, found_of


def rhythmic(period: int) -> Callable[[int, float], bool]:
    return lambda step, _: step % period == 0


def now_and_then(chance: random.Random) -> Callable[[int, float], bool]:
    rate = chance.choice([0.0, 0.1, 0.9])
    return lambda *_: chance.random() < rate


def random_rows(seed: int, updates: int = 600) -> list[StepRow]:
    """Anything at all: skips at a changing rate and rhythm, scales set by hand, new scalers, new starts."""
    chance = random.Random(seed)
    scaler = Scaler(scale=2.0 ** chance.randint(-30, 20), interval=chance.choice([1, 5, 40]))
    rows: list[StepRow] = []
    while len(rows) < updates:
        kind = chance.randrange(6)
        overflows = rhythmic(chance.randint(2, 9)) if kind == 0 else now_and_then(chance)
        rows += scaler.run(chance.randint(1, 80), overflows)
        if kind == 1:
            scaler.resume(chance.choice([None, 65536.0]))
        if kind == 2:
            scaler.scale = 2.0 ** chance.randint(-149, 100)
        if kind == 3:
            rows[-1] = msgspec.structs.replace(rows[-1], recreated=True)
        if kind == 4:
            rows[-1] = msgspec.structs.replace(rows[-1], scale=None)
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_an_update_that_is_passed_by_changes_nothing(seed: int) -> None:
    rules, quick, full = ScalerRules(5), Course(), Course()
    before: StepRow | None = None
    for step in random_rows(seed):
        quick = follow(quick, step, before, rules, settled=step.step > 50)
        full = advance(full, step, before, rules, settled=step.step > 50)
        assert quick == full, step
        before = step


@pytest.mark.parametrize("seed", range(5))
def test_what_is_found_does_not_depend_on_how_often_the_judge_looks(seed: int) -> None:
    rows, rules = random_rows(seed), ScalerRules(5)
    often = list(codes_over_time(rows, 7, rules))[-1]
    assert often == list(codes_over_time(rows, len(rows), rules))[-1]


def test_the_memory_of_a_long_run_in_every_trouble_stays_small() -> None:
    case = Case()
    for seed in range(20):
        case = fold(case, random_rows(seed), ScalerRules(5))
    assert len(remember(case)) < 60_000
    assert found_of(random_rows(0), ScalerRules(5))


@pytest.mark.parametrize("setting", [Setting(), Setting(elements={"bf16": 8})])
@pytest.mark.parametrize("seed", range(12))
def test_as_long_as_it_stands_the_same_the_same_is_open(seed: int, setting: Setting) -> None:
    rules, case, told = ScalerRules(5), Case(), 0
    known: tuple[tuple[object, ...], set[str]] = ((), set())
    for step in random_rows(seed):
        case = fold(case, [step], rules)
        stands = stand(case, rules)
        is_open = {finding.code for finding in findings(case, rules, setting) if finding.last_step is None}
        if stands == known[0]:
            assert is_open == known[1]
        told += stands != known[0]
        known = stands, is_open
    assert told > 0
