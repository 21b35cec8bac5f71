"""The scaler's tap: the truth about skips, whoever unscales."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scalescope.numerics.exponents import Histograms
from scalescope.numerics.measure import measure
from scalescope.packing import unpack
from scalescope.rows import indexes
from scalescope.taps.scaler.swapped import TappedCalls
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from tests.public_scaler import PublicScaler
from tests.small_training import OPTIMIZERS, Chain, Course, columns, events, fp16, samples, steps, watching

BAD = {3, 7, 8}


def first_nonfinite(model: nn.Module) -> list[str]:
    """A list that fills, backward by backward, with the parameters whose gradient turned non-finite, in order."""
    found: list[str] = []
    for name, parameter in model.named_parameters():

        def look(tensor: torch.Tensor, name: str = name) -> None:
            if tensor.grad is not None and not bool(tensor.grad.isfinite().all()):
                found.append(name)

        parameter.register_post_accumulate_grad_hook(look)
    return found


@pytest.mark.parametrize("clip", [False, True], ids=["plain", "unscale-and-clip"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("overflow_at", [1, 3])
def test_exactly_the_overflowing_updates_are_skipped_and_blamed(optimizer: str, clip: bool, overflow_at: int) -> None:
    course = Course(
        OPTIMIZERS[optimizer],
        clip=clip,
        scaler=torch.amp.GradScaler("cpu", init_scale=1024.0),
        overflows=BAD,
        overflow_at=overflow_at,
    )
    bad_now = first_nonfinite(course.model)
    culprits = {}
    with watching(course.model, course.optimizer, course.scaler, every=4) as watched:
        for step in range(12):
            bad_now.clear()
            course.update()
            if bad_now:
                culprits[step] = bad_now[0]
        records = watched.end()
    assert culprits.keys() == BAD
    assert steps(records) == list(range(12))
    assert columns(records)["skipped"] == {step: float(step in BAD) for step in range(12)}
    told = events(records, "skip")
    assert {step: data["parameter"] for step, data in told.items()} == culprits
    assert all(data["order"] == "observed" and data["optimizers"] for data in told.values())
    assert [(data["scale"], data["next_scale"]) for data in told.values()] == [(1024, 512), (512, 256), (256, 128)]
    assert events(records, "backoff").keys() == BAD


@pytest.mark.parametrize("clip", [False, True], ids=["plain", "unscale-and-clip"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_gradients_are_told_as_they_stood_scaled(optimizer: str, clip: bool) -> None:
    course = Course(
        OPTIMIZERS[optimizer],
        clip=clip,
        scaler=torch.amp.GradScaler("cpu", init_scale=1024.0),
        overflows=BAD,
        overflow_at=1,
    )
    truth = {}
    with watching(course.model, course.optimizer, course.scaler, every=4) as watched:
        for step in range(9):
            course.optimizer.zero_grad()
            course.backward()
            gradients = [parameter.grad for parameter in course.model.parameters()]
            truth[step] = measure([gradient for gradient in gradients if gradient is not None]).result()
            course.step()
        found = samples(watched.end())
    assert {step: sample.reason for step, sample in found.items()} == {
        0: "periodic",
        3: "skip",
        4: "periodic",
        5: "request",
        6: "request",
        7: "skip",
        8: "periodic",
    }
    for step, sample in found.items():
        assert_same(unpack(sample.table), truth[step])
    assert [sample.scale for sample in found.values()] == [1024, 1024, 512, 512, 512, 512, 256]


def assert_same(found: Histograms, truth: Histograms) -> None:
    np.testing.assert_array_equal(found.counts, truth.counts)
    np.testing.assert_array_equal(found.zero, truth.zero)
    np.testing.assert_array_equal(found.nonfinite, truth.nonfinite)
    np.testing.assert_array_equal(found.amax, truth.amax)


def test_facts_are_those_in_force_before_the_update_with_every_step_told() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    course = Course(scaler=scaler, overflows={4})
    with watching(course.model, course.optimizer, scaler) as watched:
        course.run(8)
        records = watched.end()
    found = columns(records)
    assert list(found["scale"].values()) == [8, 8, 8, 16, 16, 8, 8, 8]
    assert list(found["growth_tracker"].values()) == [0, 1, 2, 0, 1, 0, 1, 2]
    assert list(found["learning_rate"].values()) == [1e-2] * 8
    assert list(found["step_ms"]) == list(range(1, 8))
    assert events(records, "growth") == {
        2: {"scale": 8, "next_scale": 16},
        7: {"scale": 8, "next_scale": 16},
    }
    assert events(records, "backoff") == {4: {"scale": 16, "next_scale": 8}}


def test_a_scale_that_the_trainer_sets_is_an_event() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    course = Course(scaler=scaler)
    with watching(course.model, course.optimizer, scaler) as watched:
        course.run(2)
        scaler.update(64.0)  # between two updates: attempts nothing
        course.run(1)
        scaler.load_state_dict(scaler.state_dict() | {"scale": 32.0})
        course.run(1)
        course.optimizer.zero_grad()
        course.backward()
        scaler.step(course.optimizer)
        scaler.update(16.0)  # ends an update, and sets
        records = watched.end()
    assert steps(records) == list(range(5))
    assert list(columns(records)["scale"].values()) == [8, 8, 64, 32, 32]
    assert events(records, "scale_set") == {
        1: {"scale": 8, "next_scale": 64},
        3: {"scale": 64, "next_scale": 32},
        4: {"scale": 32, "next_scale": 16},
    }
    assert not events(records, "growth")
    assert not events(records, "backoff")


def test_an_update_is_skipped_if_any_of_its_optimizers_skipped() -> None:
    torch.manual_seed(0)
    one, other = Chain(), Chain()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.1)]
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    before = [parameter.detach().clone() for parameter in one.parameters()]
    with watching([one, other], optimizers, scaler, every=100) as watched:
        for step in range(3):
            other.overflow_at = 2 if step == 1 else None
            batch = torch.randn(4, 8)
            for model, optimizer in zip((one, other), optimizers, strict=True):
                optimizer.zero_grad()
                with fp16():
                    loss = model(batch).float().square().mean()
                scaler.scale(loss).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
        records = watched.end()
    assert list(columns(records)["skipped"].values()) == [0, 1, 0]
    data = events(records, "skip")[1]
    assert data["optimizers"] == ["SGD#1"]
    assert str(data["parameter"]).startswith("Chain1.layers.2.")
    assert list(columns(records)["scale"].values()) == [16, 16, 8]
    assert not torch.equal(before[0], next(iter(one.parameters())))


def test_the_culprit_of_an_optimizer_that_is_not_watched_is_not_named() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"), overflows={1})
    stranger = nn.Linear(2, 2)
    with watching(stranger, torch.optim.SGD(stranger.parameters(), lr=1.0), course.scaler) as watched:
        course.run(3)
        records = watched.end()
    assert list(columns(records)["skipped"].values()) == [0, 1, 0]
    skip = events(records, "skip")[1]
    assert skip["parameter"] is None
    assert skip["reason"] == "the optimizer that overflowed is not watched"
    assert skip["optimizers"] == ["AdamW"]


def test_a_sharded_scaler_is_heard_too(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        scaler = ShardedGradScaler("cpu", init_scale=1024.0, process_group=dist.group.WORLD)
        course = Course(scaler=scaler, overflows=BAD, overflow_at=1, clip=True)
        with watching(course.model, course.optimizer, scaler, every=4) as watched:
            course.run(10)
            records = watched.end()
    finally:
        dist.destroy_process_group()
    assert type(scaler) is ShardedGradScaler
    assert {step for step, skipped in columns(records)["skipped"].items() if skipped} == BAD
    assert events(records, "skip").keys() == events(records, "backoff").keys() == BAD


def test_an_update_of_many_micro_batches_is_one_step() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    with watching(course.model, course.optimizer, course.scaler, every=1) as watched:
        for micro_batches in (1, 3, 2):
            course.optimizer.zero_grad()
            for _ in range(micro_batches):
                course.backward()
            course.step()
        records = watched.end()
    assert steps(records) == [0, 1, 2]
    assert [sample.micro_batches for sample in samples(records).values()] == [1, 3, 2]


def test_a_scaler_without_the_private_method_is_heard_at_its_public_calls() -> None:
    for clip in (False, True):
        scaler = PublicScaler("cpu", init_scale=1024.0)
        course = Course(scaler=scaler, overflows=BAD, overflow_at=1, clip=clip)
        with watching(course.model, course.optimizer, scaler, every=4) as watched:
            assert isinstance(scaler, TappedCalls)
            course.run(10)
            records = watched.end()
        assert {step for step, skipped in columns(records)["skipped"].items() if skipped} == BAD
        assert {str(data["parameter"])[:8] for data in events(records, "skip").values()} == {"layers.1"}


def test_training_goes_on_when_a_tap_fails(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    with watching(course.model, course.optimizer, course.scaler) as watched:
        monkeypatch.setattr(watched.tap._loop.sampling, "take", None)
        monkeypatch.setattr(watched.tap._loop, "close", None)
        course.run(3)
        assert watched.edge.errors == 6
    assert course.done == 3
    assert len([record for record in caplog.records if record.name == "scalescope"]) == 1


@pytest.mark.parametrize(
    ("fused", "explicit", "reason"),
    [(True, False, "too late to look"), (True, True, "too late to look"), (False, True, "may have been changed")],
)
def test_a_skip_that_only_a_device_knows_of_has_a_reason_where_nothing_counts_there(
    fused: bool, explicit: bool, reason: str
) -> None:
    # A device that is none of CUDA's, and whose numbers never reach the host.
    device = torch.device("meta")
    course = Course(OPTIMIZERS["adamw-fused" if fused else "adamw-foreach"])
    with watching(course.model, course.optimizer, every=100) as watched:
        course.run(1)
        tap = watched.tap._scaler_tap
        tap.stepping_now = None if explicit else course.optimizer
        tap.unscaled(torch.amp.GradScaler("cpu"), course.optimizer, None, {device: torch.zeros((), device=device)})
        assert reason in watched.tap._loop.sampling._blind
        assert "of this kind" in watched.tap._loop.sampling._blind
        assert not watched.tap._loop.sampling.parts


def test_an_update_that_was_unscaled_and_never_stepped_is_not_applied_and_blames_nobody() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    course = Course(scaler=scaler)
    with watching(course.model, course.optimizer, scaler) as watched:
        for step in range(4):
            course.optimizer.zero_grad()
            course.backward()
            scaler.unscale_(course.optimizer)
            if step == 1:
                course.optimizer.step()  # without the scaler
            elif step != 2:
                scaler.step(course.optimizer)
            scaler.update()
        records = watched.end()
    assert list(columns(records)["skipped"].values()) == [0, 0, 1, 0]
    data = events(records, "skip")[2]
    assert (data["parameter"], data["reason"], data["optimizers"]) == (None, "not stepped", ["AdamW"])


def test_of_several_optimizers_on_one_scaler_each_has_its_turn() -> None:
    models = [nn.Linear(8, 8), nn.Linear(8, 8)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with watching(models, optimizers, scaler, every=10) as watched:
        for _ in range(12):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                scaler.scale(model(torch.randn(4, 8)).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
        found = samples(watched.end())
    assert {step: indexes(sample).tolist() for step, sample in found.items()} == {
        0: [0, 1],
        1: [2, 3],
        10: [0, 1],
        11: [2, 3],
        20: [0, 1],
        21: [2, 3],
    }


def test_gradients_clipped_while_scaled_name_no_culprit() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"), overflows={1})
    assert course.scaler is not None
    with watching(course.model, course.optimizer, course.scaler) as watched:
        for _ in range(2):
            course.optimizer.zero_grad()
            course.backward()
            nn.utils.clip_grad_norm_(course.model.parameters(), 1.0)
            course.step()
        skip = events(watched.end(), "skip")[1]
    assert skip["parameter"] is None
    assert "clipped before" in str(skip["reason"])
