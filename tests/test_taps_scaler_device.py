"""Skips that only a device knows of, with the CPU in its place: who was skipped, who overflowed, and how it is learnt.

That nothing of it waits is tested where there is a CUDA device.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scalescope import wire
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.moving_loop import Loop, Move
from tests.small_training import OPTIMIZERS, Chain, Course, columns, events, samples, steps, watching, windows
from tests.stand_in_device import StandIn
from tests.test_taps_routine import STYLES, odd

BAD = {3, 7, 8, 30}
LOOPS = pytest.mark.parametrize("clip", [False, True], ids=["plain", "unscale-and-clip"])
EACH = pytest.mark.parametrize("optimizer", OPTIMIZERS)


def course(optimizer: str = "adamw-fused", clip: bool = False, overflows: set[int] = BAD) -> Course:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    return Course(OPTIMIZERS[optimizer], clip=clip, scaler=scaler, overflows=overflows, overflow_at=1)


def recorded(course: Course, updates: int, stand_in: StandIn | None, every: int = 100) -> list[wire.Record]:
    with watching(course.model, course.optimizer, course.scaler, every=every) as watched:
        if stand_in is not None:
            stand_in.put_under(watched)
        course.run(updates)
        return watched.end()


def reason(course: Course, stand_in: StandIn, step: int = 3) -> str:
    """Why the culprit of the skip at ``step`` is not known."""
    data = events(recorded(course, 5, stand_in), "skip")[step]
    assert (data["parameter"], data["nonfinite"]) == (None, {})
    return str(data["reason"])


@LOOPS
@EACH
def test_every_skip_names_its_culprit_and_its_counts_as_on_the_host(optimizer: str, clip: bool) -> None:
    here, there = course(optimizer, clip), course(optimizer, clip)
    on_host, on_device = recorded(here, 34, None), recorded(there, 34, StandIn())
    assert events(on_device, "skip").keys() == BAD
    for kind in ("skip", "backoff"):
        assert events(on_device, kind) == events(on_host, kind)
    for name in ("scale", "skipped", "growth_tracker"):
        assert columns(on_device)[name] == columns(on_host)[name]
    assert windows(on_device) == windows(on_host)
    assert all(torch.equal(a, b) for a, b in zip(here.weights(), there.weights(), strict=True))


def test_a_step_that_torch_skips_itself_is_measured_as_soon_as_it_has() -> None:
    told = samples(recorded(course("adamw-foreach"), 5, StandIn()))
    assert {step: sample.reason for step, sample in told.items()} == {0: "periodic", 3: "skip", 4: "request"}


@LOOPS
@EACH
def test_an_update_that_is_not_sampled_takes_one_transfer_and_no_more(
    optimizer: str, clip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, stand_in = course(optimizer, clip, set()), StandIn()
    with watching(training.model, training.optimizer, training.scaler, every=100) as watched:
        stand_in.put_under(watched)
        training.run(2)
        before = stand_in.rings[0].gathered
        monkeypatch.setattr("scalescope.readback._alone", lambda _: pytest.fail("read by itself"))
        training.run(8)
        assert stand_in.rings[0].gathered == before + 8
        assert columns(watched.end())["skipped"] == dict.fromkeys(range(10), 0.0)
    assert len(stand_in.rings) == 1
    # Where the host learns of a skip in time, nothing is to be looked for in advance.
    assert stand_in.launches.calls == (9 if optimizer.endswith("fused") or clip else 0)


def test_nothing_is_told_before_its_numbers_have_arrived_and_then_all_of_it() -> None:
    training, stand_in = course(), StandIn()
    with watching(training.model, training.optimizer, training.scaler, every=100) as watched:
        stand_in.put_under(watched)
        training.run(2)
        watched.drain()
        stand_in.event.arrived = False
        training.run(6)
        assert not events(watched.drain(), "skip")
        stand_in.event.arrived = True
        # Training has paused: nobody but the link's thread asks.
        assert events(watched.drain(), "skip").keys() == {3, 7}
        assert watched.end()


@pytest.mark.parametrize("arrives", [True, False])
def test_more_updates_than_the_ring_has_lines_lose_none_though_nobody_reads(arrives: bool) -> None:
    here, there = course(), course()
    stand_in = StandIn(lines=4)
    with watching(there.model, there.optimizer, there.scaler, every=100) as watched:
        stand_in.put_under(watched)
        there.run(3)
        stand_in.event.arrived = arrives
        there.run(31)
        stand_in.event.arrived = True
        on_device = watched.end()
    on_host = recorded(here, 34, None)
    for name in ("scale", "skipped", "growth_tracker"):
        assert columns(on_device)[name] == columns(on_host)[name]
    assert len(stand_in.rings[0]._lines) == 4


def test_of_two_optimizers_the_one_that_overflowed_is_named() -> None:
    models = [Chain(), Chain()]
    optimizers = [OPTIMIZERS["adamw-fused"](model) for model in models]
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    with watching(models, optimizers, scaler, every=100) as watched:
        StandIn().put_under(watched)
        for step in range(4):
            models[1].overflow_at = 2 if step == 2 else None
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = model(torch.randn(4, 8)).float().square().mean()
                scaler.scale(loss).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
        records = watched.end()
    assert list(columns(records)["skipped"].values()) == [0, 0, 1, 0]
    data = events(records, "skip")[2]
    assert data["optimizers"] == ["AdamW#1"]
    assert str(data["parameter"]).startswith("Chain1.layers.2.")


def test_a_parameter_without_a_gradient_shifts_nobodys_count() -> None:
    training = course()
    training.model.layers[3].bias.requires_grad_(False)
    training.model.unused = nn.Linear(2, 2)
    training.optimizer.add_param_group({"params": list(training.model.unused.parameters())})
    data = events(recorded(training, 5, StandIn()), "skip")[3]
    assert data["nonfinite"] == {
        "layers.1.weight": 64,
        "layers.1.bias": 8,
        "layers.0.weight": 64,
        "layers.0.bias": 8,
    }


@pytest.mark.parametrize(
    ("optimizer", "clip", "why"), [("adamw-fused", False, "too late to look"), ("sgd-foreach", True, "been changed")]
)
def test_without_the_kernel_the_culprit_is_not_known_and_the_reason_says_so(
    optimizer: str, clip: bool, why: str
) -> None:
    told = reason(course(optimizer, clip), StandIn(kernel=False))
    assert why in told
    assert told.endswith("counting there: none (triton: not installed)")


def test_where_updates_are_too_short_not_each_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    training, stand_in = course(), StandIn()
    prepare = stand_in.launches.count_if

    def take_one_us(*arguments: object) -> None:
        stand_in.now_ns += 1000
        prepare(*arguments)  # type: ignore[arg-type]  # what it was called with

    monkeypatch.setattr(stand_in.launches, "count_if", take_one_us)
    with watching(training.model, training.optimizer, training.scaler, every=100) as watched:
        stand_in.put_under(watched)
        for _ in range(40):
            training.run(1)
            # An update takes 50 us, of which a look at each would be a fiftieth.
            stand_in.now_ns += 50_000
        told = events(watched.end(), "skip")
    assert stand_in.launches.calls == 8
    assert "too short for a look at each" in str(told[3]["reason"])


def test_of_two_optimizers_each_has_its_look_though_neither_has_time_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [Chain(), Chain()]
    optimizers = [OPTIMIZERS["adamw-fused"](model) for model in models]
    scaler, stand_in, looked = torch.amp.GradScaler("cpu", init_scale=8.0), StandIn(), list[int]()
    prepare = stand_in.launches.count_if

    def take_one_us(*arguments: object) -> None:
        stand_in.now_ns += 1000
        looked.append(stand_in.now_ns)
        prepare(*arguments)  # type: ignore[arg-type]  # what it was called with

    monkeypatch.setattr(stand_in.launches, "count_if", take_one_us)
    with watching(models, optimizers, scaler, every=100) as watched:
        stand_in.put_under(watched)
        for _ in range(6):
            for optimizer in optimizers:
                optimizer.zero_grad()
            scaler.scale(torch.stack([model(torch.ones(2, 8)).sum() for model in models]).sum()).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            # Time enough for two looks.
            stand_in.now_ns += 500_000
        watched.end()
    # The first update is sampled.
    assert len(looked) == 2 * 5


def test_gradients_clipped_while_scaled_name_no_culprit() -> None:
    training, stand_in = course(overflows={1}), StandIn()
    with watching(training.model, training.optimizer, training.scaler, every=100) as watched:
        stand_in.put_under(watched)
        for _ in range(2):
            training.optimizer.zero_grad()
            training.backward()
            nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
            training.step()
        data = events(watched.end(), "skip")[1]
    assert data["parameter"] is None
    assert "clipped before" in str(data["reason"])


def test_sparse_gradients_are_not_counted_and_the_reason_says_so() -> None:
    model = nn.Sequential(nn.Embedding(4, 2, sparse=True), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with watching(model, optimizer, scaler, every=100) as watched:
        StandIn().put_under(watched)
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.tensor([1])).sum() * (float("inf") if step == 2 else 1.0)).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        data = events(watched.end(), "skip")[2]
    assert data["parameter"] is None
    assert "sparse" in str(data["reason"])


def test_of_a_sharded_gradient_the_shard_of_this_rank_is_counted(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        training = course(overflows={3})
        mesh = init_device_mesh("cpu", (1,))
        for layer in training.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(training.model, mesh=mesh)
        training.optimizer = OPTIMIZERS["adamw-fused"](training.model)
        data = events(recorded(training, 5, StandIn()), "skip")[3]
    finally:
        dist.destroy_process_group()
    assert data["parameter"] == "layers.1.weight"
    assert data["nonfinite"] == {
        "layers.1.weight": 64,
        "layers.1.bias": 8,
        "layers.0.weight": 64,
        "layers.0.bias": 8,
    }


def test_a_step_that_fails_is_not_taken_for_a_skip_of_the_scaler() -> None:
    training = course("adamw-foreach", overflows=set())
    with watching(training.model, training.optimizer, training.scaler, every=100) as watched:
        StandIn().put_under(watched)
        training.run(2)
        handle = training.optimizer.register_step_pre_hook(_fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            training.run(1)
        handle.remove()
        assert training.scaler is not None
        training.scaler.update()
        records = watched.end()
    assert events(records, "skip")[2]["reason"] == "not stepped"
    assert steps(records) == [0, 1, 2]


def _fail(*_step: object) -> None:
    raise RuntimeError("out of memory")


def told(moves: Sequence[Move], optimizers: int, stand_in: StandIn | None) -> list[object]:
    """What is told of a loop, but for times and samples."""
    loop = Loop(optimizers)
    with watching(loop.model, loop.optimizer, loop.scaler) as watched:
        if stand_in is not None:
            stand_in.put_under(watched)
        loop.watched = watched
        for move in moves:
            loop.update(move)
        records = watched.end()
    rows = {name: values for name, values in columns(records).items() if not name.endswith("_ms")}
    kinds: tuple[wire.EventKind, ...] = ("skip", "growth", "backoff", "scale_set")
    return [rows, windows(records), *(events(records, kind) for kind in kinds)]


@given(
    style=st.sampled_from(list(STYLES.values())),
    moves=st.lists(st.one_of(st.none(), odd), max_size=12),
    optimizers=st.sampled_from([1, 2]),
)
@settings(max_examples=12, deadline=None)
def test_whatever_a_loop_does_is_told_as_on_the_host(style: Move, moves: list[Move | None], optimizers: int) -> None:
    course = [style] * 2 + [move or style for move in moves]
    assert told(course, optimizers, StandIn()) == told(course, optimizers, None)
