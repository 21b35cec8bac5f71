"""A scaler that ``watch`` was not given: recorded in the place of the one it was given, else told about."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from scalescope import wire
from scalescope.taps.scaler.swapped import Listened
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from tests.public_scaler import PublicScaler
from tests.small_training import OPTIMIZERS, Course, columns, events, steps, watching, windows

UPDATES = 8
BAD = {2, 5}
ORDINARY = {"micro_batches": 1, "zero_grad": True, "unscale": "implicit"}
ANEW = {**ORDINARY, "scaler_recreated": True}


def scaler_of(scale: float = 8.0) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale)


def changes(records: Sequence[wire.Record], kind: str) -> dict[int, tuple[object, object]]:
    """Step -> the scale before and after, of the events of one kind."""
    return {step: (data["scale"], data["next_scale"]) for step, data in events(records, kind).items()}


@pytest.mark.parametrize("clip", [False, True], ids=["plain", "unscale-and-clip"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_scaler_made_anew_in_every_update_is_recorded_with_its_scale_and_its_skips(
    optimizer: str, clip: bool, caplog: pytest.LogCaptureFixture
) -> None:
    course = Course(OPTIMIZERS[optimizer], scaler=scaler_of(), overflows=BAD, overflow_at=1, clip=clip)
    with watching(course.model, course.optimizer, course.scaler, every=4) as watched:
        for _ in range(UPDATES):
            course.scaler = scaler_of(1024.0)
            course.update()
        records = watched.end()
    assert steps(records) == list(range(UPDATES))
    assert set(columns(records)["scale"].values()) == {1024.0}
    assert columns(records)["growth_tracker"] == dict.fromkeys(range(UPDATES), 0.0)
    assert columns(records)["skipped"] == {step: float(step in BAD) for step in range(UPDATES)}
    assert {str(data["parameter"])[:8] for data in events(records, "skip").values()} == {"layers.1"}
    assert changes(records, "backoff") == dict.fromkeys(BAD, (1024.0, 512.0))
    # What is back at 1024 in the update after each skip is a scaler that knows nothing of it.
    assert changes(records, "scale_set") == {step + 1: (512.0, 1024.0) for step in BAD}
    told = windows(records)
    assert all(window["scaler_recreated"] is True for window in told.values())
    assert all("loss_scaled" not in window and "stepped_outside" not in window for window in told.values())
    assert not caplog.records


def test_a_probe_uses_the_scale_of_the_scaler_in_use() -> None:
    course = Course(scaler=scaler_of(1024.0))
    with watching(course.model, course.optimizer, course.scaler) as watched:
        course.run(2)
        course.scaler = scaler_of(4096.0)
        course.run(2)
        probed = watched.tap.probe(lambda: course.model(torch.ones(2, 8)).square().mean(), dtype=torch.bfloat16)
    assert probed is not None
    assert probed.scale == 4096.0


def test_one_made_anew_in_mid_run_is_told_in_its_first_update_alone() -> None:
    course = Course(scaler=scaler_of(1024.0), overflows={5})
    with watching(course.model, course.optimizer, course.scaler) as watched:
        course.run(4)
        course.scaler = scaler_of(65536.0)
        course.run(4)
        records = watched.end()
    assert windows(records) == {step: ANEW if step == 4 else ORDINARY for step in range(8)}
    assert list(columns(records)["scale"].values()) == [1024.0] * 4 + [65536.0] * 2 + [32768.0] * 2
    assert changes(records, "scale_set") == {4: (1024.0, 65536.0)}
    assert changes(records, "skip") == {5: (65536.0, 32768.0)}


def test_passes_that_were_heard_before_their_scaler_was_are_of_its_scale() -> None:
    course = Course(scaler=scaler_of())
    with watching(course.model, course.optimizer, course.scaler) as watched:
        for scale in (8.0, 16.0, 32.0):
            course.scaler = scaler_of(scale)
            course.optimizer.zero_grad()
            course.backward()
            course.backward()
            nn.utils.clip_grad_norm_(course.model.parameters(), 1e-3)
            course.step()
        told = windows(watched.end())
    clips = [window.pop("clip_while_scaled") for window in told.values()]
    assert [clip["scale"] for clip in clips if isinstance(clip, dict)] == [8.0, 16.0, 32.0]
    clip = {"kind": "norm", "limit": 1e-3, "when": "scaled", "calls": 1}
    assert all(window == {**ANEW, "micro_batches": 2, "clip": clip} for window in told.values())


def test_one_loss_for_several_optimizers_was_scaled_for_all_of_them() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (one, other)]
    with watching([one, other], optimizers, scaler_of()) as watched:
        for _ in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            scaler = scaler_of(16.0)
            scaler.scale(other(one(torch.randn(3, 2))).mean()).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
        told = windows(watched.end())
    assert all(window == {**ANEW, "micro_batches": {"SGD#0": 1, "SGD#1": 1}} for window in told.values())


def test_two_scalers_of_which_one_was_named_are_both_recorded() -> None:
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    scalers = [scaler_of(8.0), scaler_of(32.0)]
    with watching(models, optimizers, scalers[0]) as watched:
        for _ in range(3):
            for model, optimizer, scaler in zip(models, optimizers, scalers, strict=True):
                optimizer.zero_grad()
                scaler.scale(model(torch.randn(3, 2)).mean()).backward()
                scaler.step(optimizer)
                scaler.update()
        records = watched.end()
    assert list(columns(records)["scale"].values()) == [8.0, 32.0] * 3
    assert [step for step, window in windows(records).items() if "scaler_recreated" in window] == [1]
    assert all("loss_scaled" not in window and "factors" not in window for window in windows(records).values())


def test_updates_of_scalers_that_are_thrown_away_without_an_update_are_updates() -> None:
    course = Course(scaler=scaler_of(), overflows=BAD)
    with watching(course.model, course.optimizer, course.scaler) as watched:
        for step in range(UPDATES):
            course.optimizer.zero_grad()
            course.scaler = scaler_of(8.0 + step)
            course.backward()
            course.scaler.step(course.optimizer)
            watched.log(loss=float(step))
            course.done += 1
        records = watched.end()
    assert steps(records) == list(range(UPDATES))
    assert columns(records)["loss"] == {step: float(step) for step in range(UPDATES)}
    assert columns(records)["scale"] == {step: 8.0 + step for step in range(UPDATES)}
    assert events(records, "skip").keys() == BAD
    # Nothing after the last one tells what was in it.
    told = windows(records)
    assert told.pop(UPDATES - 1) == {**ANEW, "micro_batches": None, "zero_grad": None}
    assert told == dict.fromkeys(range(UPDATES - 1), ANEW)


def test_scalers_that_were_thrown_away_are_neither_kept_nor_remembered() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    made: list[weakref.ref[torch.amp.GradScaler]] = []
    with watching(model, optimizer, scaler_of()) as watched:
        for _ in range(300):
            scaler = scaler_of()
            made.append(weakref.ref(scaler))
            scaler.scale(model(torch.ones(1, 2)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            watched.drain()
        assert sum(reference() is not None for reference in made) == 1
        assert sum(type(found) is Listened for found in gc.get_objects()) <= 2


class Own(torch.amp.GradScaler):
    """A user's own scaler, which counts how often it is asked."""

    asked = 0

    def step(self, optimizer: torch.optim.Optimizer, *args: object, **kwargs: object) -> float | None:
        self.asked += 1
        return super().step(optimizer, *args, **kwargs)


@pytest.mark.parametrize("first", [scaler_of, lambda: Own("cpu")], ids=["torch", "own"])
def test_an_own_scaler_that_takes_over_is_asked_once_a_step_and_is_itself_afterwards(first: type) -> None:
    methods = torch.amp.GradScaler.step, torch.amp.GradScaler.unscale_, Own.step
    course = Course(scaler=first())
    with watching(course.model, course.optimizer, course.scaler) as watched:
        course.run(2)
        course.scaler = own = Own("cpu", init_scale=64.0)
        course.run(3)
        assert isinstance(own, Own)
        double = copy.deepcopy(own)
        assert type(double) is type(pickle.loads(pickle.dumps(own))) is Own
        assert double.state_dict() == own.state_dict()
        records = watched.end()
    assert own.asked == 3
    assert type(own) is Own
    assert (torch.amp.GradScaler.step, torch.amp.GradScaler.unscale_, Own.step) == methods
    assert list(columns(records)["scale"].values())[2:] == [64.0] * 3
    assert all("stepped_outside" not in window for window in windows(records).values())


@pytest.mark.parametrize("kind", [ShardedGradScaler, PublicScaler])
def test_a_scaler_that_unscales_by_a_method_of_its_own_is_heard_where_the_first_was_of_its_class(
    kind: type[torch.amp.GradScaler], tmp_path: Path
) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        course = Course(scaler=kind("cpu", init_scale=1024.0), overflows={2}, clip=True)
        with watching(course.model, course.optimizer, course.scaler) as watched:
            for _ in range(4):
                course.scaler = kind("cpu", init_scale=1024.0)
                course.update()
            records = watched.end()
    finally:
        dist.destroy_process_group()
    assert list(columns(records)["skipped"].values()) == [0.0, 0.0, 1.0, 0.0]
    assert {window["unscale"] for window in windows(records).values()} == {"explicit"}


def test_each_scope_takes_it_up() -> None:
    scaler, course = scaler_of(), Course(scaler=scaler_of(16.0))
    with watching(course.model, course.optimizer, scaler) as one:
        with watching(course.model, course.optimizer, scaler_of()) as other:
            course.run(3)
            inner = other.end()
        assert type(course.scaler) is not torch.amp.GradScaler
        course.run(1)
        outer = one.end()
    for records, updates in ((inner, 3), (outer, 4)):
        assert columns(records)["scale"] == dict.fromkeys(range(updates), 16.0)
        assert windows(records) == {step: ORDINARY if step else ANEW for step in range(updates)}
    assert type(course.scaler) is torch.amp.GradScaler


def test_what_is_heard_by_another_scope_is_a_stranger_all_the_same() -> None:
    course = Course(scaler=scaler_of(16.0))
    other = Course()
    with (
        watching(course.model, course.optimizer, course.scaler),
        watching([course.model, other.model], [course.optimizer, other.optimizer], scaler_of()) as both,
    ):
        course.run(2)
        records = both.end()
    assert columns(records)["scale"] == {0: 16.0, 1: 16.0}
    assert steps(records) == [0, 1]


def test_a_training_that_was_given_none_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    own = torch.amp.GradScaler.step
    course = Course(scaler=scaler_of())
    with watching(course.model, course.optimizer):
        course.run(3)
        assert type(course.scaler) is torch.amp.GradScaler
    assert torch.amp.GradScaler.step is own
    (warning,) = (record.message for record in caplog.records)
    assert "AdamW is stepped by a GradScaler that is not watched" in warning
    assert "pass watch() the one scaler that the loop uses" in warning


@pytest.mark.parametrize("given", [None, 8.0], ids=["none-given", "one-given"])
def test_a_scaler_that_is_disabled_or_steps_others_is_nobodys_business(
    given: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    course, other = Course(scaler=torch.amp.GradScaler("cpu", enabled=False)), Course(scaler=scaler_of())
    with watching(course.model, course.optimizer, None if given is None else scaler_of(given)) as watched:
        before = watched.edge.spent_ns
        other.run(2)
        # Not even looked at.
        assert watched.edge.spent_ns == before
        course.run(2)
        assert type(other.scaler) is torch.amp.GradScaler
    assert not caplog.records


def test_a_scaler_for_each_optimizer_in_one_scope_is_told_about(caplog: pytest.LogCaptureFixture) -> None:
    courses = [Course(scaler=scaler_of(scale)) for scale in (8.0, 64.0)]
    models, optimizers = [course.model for course in courses], [course.optimizer for course in courses]
    with watching(models, optimizers, courses[0].scaler) as watched:
        for _ in range(3):
            for course in courses:
                course.update()
        records = watched.end()
    assert len(steps(records)) == 6
    (warning,) = (record.message for record in caplog.records)
    assert "give each scaler a watch() of its own" in warning
