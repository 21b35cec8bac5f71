"""Schedulers: found by themselves, counted once, and told by the clock that they follow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from tests.small_training import Course, columns, watching, windows

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")

Make = Callable[[torch.optim.Optimizer], LRScheduler]

KINDS: dict[str, Make] = {
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100),
    "CosineAnnealingWarmRestarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer), lr_scheduler.ConstantLR(optimizer)], milestones=[3]
    ),
    "ChainedScheduler": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    ),
    "Mine": lambda optimizer: Mine(optimizer, lambda step: 0.5**step),
}
UPDATES = 8
SKIPPED = {3, 5}


class Mine(lr_scheduler.LambdaLR):
    """One that somebody derived, whose step does more."""

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)


class Stranger:
    """Of no class of torch's, and of no optimizer that it tells of."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, epoch: int = 0) -> int:
        self.steps += 1
        return epoch


def training() -> Course:
    return Course(scaler=torch.amp.GradScaler("cpu", init_scale=64.0), overflows=SKIPPED)


def told_of(course: Course, follow: Callable[[int, float], None]) -> tuple[dict[int, object], dict[int, float]]:
    """The scheduler's facts and its column; ``follow`` gets each update's number and the scale before it."""
    assert course.scaler is not None
    with watching(course.model, course.optimizer, course.scaler) as watched:
        for step in range(UPDATES):
            scale = course.scaler.get_scale() if step else 64.0
            course.update()
            follow(step, scale)
        records = watched.end()
    column = columns(records).get("scheduler_steps", {})
    return {step: window.get("scheduler") for step, window in windows(records).items()}, column


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("made", ["before", "after"])
def test_every_scheduler_is_found_and_counted_once(kind: str, made: str) -> None:
    course = training()
    schedulers = [KINDS[kind](course.optimizer)] if made == "before" else []

    def step_it(step: int, _scale: float) -> None:
        if step == 0 and not schedulers:
            schedulers.append(KINDS[kind](course.optimizer))
        schedulers[0].step()

    facts, column = told_of(course, step_it)
    first = {"class": kind, "steps": 1, "follows": "unknown"}
    later = {"class": kind, "steps": 1, "follows": "attempted"}
    assert facts == {step: first if step < 3 else later for step in range(UPDATES)}
    assert column == {step: float(step + 1) for step in range(UPDATES)}


def test_one_that_rests_at_skipped_updates_follows_the_applied_ones() -> None:
    course = training()
    scheduler = KINDS["LambdaLR"](course.optimizer)
    applied = []

    def step_if_applied(step: int, scale: float) -> None:
        assert course.scaler is not None
        if course.scaler.get_scale() >= scale:
            scheduler.step()
            applied.append(step)

    facts, column = told_of(course, step_if_applied)
    assert set(range(UPDATES)) - set(applied) == SKIPPED
    assert facts[7] == {"class": "LambdaLR", "steps": 1, "follows": "applied"}
    assert facts[5] == {"class": "LambdaLR", "steps": 0, "follows": "applied"}
    assert column[7] == len(applied)


def test_one_that_steps_by_epochs_tells_nothing_of_skips() -> None:
    course = training()
    scheduler = KINDS["LambdaLR"](course.optimizer)
    facts, column = told_of(course, lambda step, _: scheduler.step() if step % 2 else None)
    assert facts[0] is None
    assert [facts[step] for step in (6, 7)] == [
        {"class": "LambdaLR", "steps": 0, "follows": "unknown"},
        {"class": "LambdaLR", "steps": 1, "follows": "unknown"},
    ]
    assert column[7] == 4.0


def test_a_plateau_of_the_loss_is_a_scheduler_too() -> None:
    course = training()
    scheduler = lr_scheduler.ReduceLROnPlateau(course.optimizer)
    facts, _ = told_of(course, lambda *_: scheduler.step(1.0))
    assert facts[7] == {"class": "ReduceLROnPlateau", "steps": 1, "follows": "attempted"}


def test_one_of_another_training_is_not_heard() -> None:
    course, other = training(), training()
    scheduler = KINDS["LambdaLR"](other.optimizer)
    facts, column = told_of(course, lambda *_: scheduler.step())
    assert set(facts.values()) == {None}
    assert column == {}


def test_the_one_that_the_user_names_counts_and_no_other() -> None:
    course = training()
    mine, torchs = Stranger(), KINDS["LambdaLR"](course.optimizer)
    own = vars(Stranger)["step"]
    with watching(course.model, course.optimizer, course.scaler, scheduler=mine) as watched:
        for _ in range(4):
            course.update()
            assert mine.step(epoch=7) == 7
            torchs.step()
            torchs.step()
        records = watched.end()
    assert vars(Stranger)["step"] is own
    assert mine.steps == 4
    assert windows(records)[3]["scheduler"] == {"class": "Stranger", "steps": 1, "follows": "attempted"}
    assert columns(records)["scheduler_steps"] == {step: float(step + 1) for step in range(4)}


def test_rates_are_those_of_the_same_loop_without_the_hook() -> None:
    def rates(course: Course) -> list[float]:
        scheduler = KINDS["OneCycleLR"](course.optimizer)
        found = []
        for _ in range(UPDATES):
            course.update()
            scheduler.step()
            found.append(scheduler.get_last_lr()[0])
        return [float(rate) for rate in found]

    course = training()
    with watching(course.model, course.optimizer, course.scaler):
        heard = rates(course)
    assert heard == rates(training())


def test_every_class_has_its_own_step_again() -> None:
    kinds = [LRScheduler, lr_scheduler.SequentialLR, lr_scheduler.ReduceLROnPlateau, Mine]
    before = [vars(kind)["step"] for kind in kinds]
    one, other = training(), training()
    with watching(one.model, one.optimizer, one.scaler):
        with watching(other.model, other.optimizer, other.scaler):
            assert all(vars(kind)["step"] is not own for kind, own in zip(kinds, before, strict=True))
        assert all(vars(kind)["step"] is not own for kind, own in zip(kinds, before, strict=True))
    assert [vars(kind)["step"] for kind in kinds] == before
