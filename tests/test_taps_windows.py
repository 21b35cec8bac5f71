"""The facts of windows: real loops, beside plain arithmetic on what they must come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from scalescope import wire
from torch import nn

from tests.small_training import OPTIMIZERS, Course, bf16, columns, events, fp16, watching, windows

Make = Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer]

SGD: dict[str, Make] = {
    "foreach": lambda parameters: torch.optim.SGD(parameters, lr=0.125, foreach=True),
    "for-loop": lambda parameters: torch.optim.SGD(parameters, lr=0.125, foreach=False),
    "fused": lambda parameters: torch.optim.SGD(parameters, lr=0.125, fused=True),
}

ORDINARY = {"micro_batches": 1, "zero_grad": True, "unscale": "implicit"}


class One(nn.Module):
    """One weight, whose gradient is whatever it is multiplied with."""

    def __init__(self, size: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        return (self.weight * factor).sum()


def stepped(model: One) -> list[float]:
    """What the weights were moved by, divided by the rate: the gradients that were applied."""
    return (model.weight.detach() / -0.125).tolist()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_ordinary_loop_tells_the_same_of_every_window_once(optimizer: str) -> None:
    course = Course(OPTIMIZERS[optimizer], scaler=torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=4))
    with watching(course.model, course.optimizer, course.scaler) as watched:
        course.run(12)
        records = watched.end()
    assert set(columns(records)["scale"].values()) == {8.0, 16.0, 32.0}
    assert windows(records) == dict.fromkeys(range(12), ORDINARY)
    assert sum(len(record.windows) for record in records if isinstance(record, wire.Steps)) == 1


def test_without_a_scaler_nothing_is_said_of_scales() -> None:
    course = Course(precision=bf16)
    with watching(course.model, course.optimizer) as watched:
        course.run(3)
        told = windows(watched.end())
    assert told == {step: {"micro_batches": 1, "zero_grad": True} for step in range(3)}


def test_what_another_loss_left_and_zero_grad_threw_away_is_no_loss_that_was_not_scaled() -> None:
    """A generator with a scaler of its own, heard by another scope, leaves gradients in the discriminator."""
    model, scaler = One(), torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer, other = SGD["foreach"]([model.weight]), torch.amp.GradScaler("cpu", init_scale=2.0)
    with watching(model, optimizer, scaler) as watched:
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1))).backward()
            scaler.step(optimizer)
            scaler.update()
            other.scale(model(torch.ones(1))).backward()
        told = windows(watched.end())
    assert told == dict.fromkeys(range(3), ORDINARY)


def test_windows_of_unequal_length_each_have_their_own_count() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
    with watching(course.model, course.optimizer, course.scaler) as watched:
        for passes in (3, 3, 1, 2):
            course.optimizer.zero_grad()
            for _ in range(passes):
                course.backward()
            course.step()
        told = windows(watched.end())
    assert [window["micro_batches"] for window in told.values()] == [3, 3, 1, 2]


@pytest.mark.parametrize("kind", SGD)
def test_a_window_of_two_scales_is_told_with_the_factor_of_each_pass(kind: str) -> None:
    model = One()
    optimizer = SGD[kind]([model.weight])
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with watching(model, optimizer, scaler) as watched:
        scaler.scale(model(torch.tensor([2.0]))).backward()
        scaler.update(16.0)
        scaler.scale(model(torch.tensor([4.0]))).backward()
        scaler.step(optimizer)
        scaler.update()
        told = windows(watched.end())
    # The true sum is 6; the units were mixed.
    assert stepped(model) == [5.0]
    factors = told[0]["factors"]
    assert isinstance(factors, list)
    assert factors[0] * 2 + factors[1] * 4 == 5.0
    assert told == {
        0: {**ORDINARY, "micro_batches": 2, "scales": [8.0, 16.0], "unscaled_by": 16.0, "factors": [0.5, 1.0]}
    }


@pytest.mark.parametrize("kind", SGD)
def test_a_pass_after_unscale_is_told_with_the_scale_that_nobody_takes_out(kind: str) -> None:
    model = One()
    optimizer = SGD[kind]([model.weight])
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with watching(model, optimizer, scaler) as watched:
        scaler.scale(model(torch.tensor([2.0]))).backward()
        scaler.unscale_(optimizer)
        scaler.scale(model(torch.tensor([3.0]))).backward()
        scaler.step(optimizer)
        scaler.update()
        told = windows(watched.end())[0]
    # The truth is 2 + 3.
    assert stepped(model) == [2.0 + 8.0 * 3.0]
    assert told["backward_after_unscale"] == {"backwards": 1, "factor": 8.0}
    assert told["unscale"] == "explicit"


def test_a_second_unscale_raises_as_it_does_in_torch() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
    assert course.scaler is not None
    with watching(course.model, course.optimizer, course.scaler):
        course.backward()
        course.scaler.unscale_(course.optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            course.scaler.unscale_(course.optimizer)


@pytest.mark.parametrize("keep", [True, False], ids=["in-place", "to-none"])
@pytest.mark.parametrize("scaled", [True, False], ids=["scaled", "plain"])
def test_whether_gradients_began_at_zero_is_told_however_they_are_cleared(keep: bool, scaled: bool) -> None:
    course = Course(precision=fp16 if scaled else bf16, scaler=torch.amp.GradScaler("cpu") if scaled else None)
    with watching(course.model, course.optimizer, course.scaler) as watched:
        for step in range(8):
            if step not in {3, 6}:
                course.optimizer.zero_grad(set_to_none=not keep)
            course.backward()
            course.step()
        told = windows(watched.end())
    seen = [window["zero_grad"] for window in told.values()]
    truth = [step not in {3, 6} for step in range(8)]
    if not keep:
        assert seen == truth
    elif scaled:
        # Once it was seen that something happens in between, it is looked at.
        assert seen == [True, None, *truth[2:]]
    else:
        assert [told for told, true in zip(seen, truth, strict=True) if not true] == [False, False]
        assert True not in seen[1:]


def test_gradients_that_were_there_before_are_no_fresh_ones() -> None:
    course = Course(precision=bf16)
    course.backward()
    with watching(course.model, course.optimizer) as watched:
        course.backward()
        course.step()
        assert windows(watched.end())[0]["zero_grad"] is False


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_infinities_that_nobody_clears_are_counted_before_the_next_pass(optimizer: str) -> None:
    course = Course(OPTIMIZERS[optimizer], scaler=torch.amp.GradScaler("cpu", init_scale=64.0), overflows={2})
    truth = {}
    with watching(course.model, course.optimizer, course.scaler) as watched:
        for step in range(5):
            gradients = [parameter.grad for parameter in course.model.parameters() if parameter.grad is not None]
            truth[step] = sum(not bool(gradient.isfinite().all()) for gradient in gradients)
            course.backward()
            course.step()
        records = watched.end()
    assert truth[3] > 0
    assert columns(records)["skipped"] == {step: float(step > 1) for step in range(5)}
    stale = {step: window.get("stale_nonfinite", 0) for step, window in windows(records).items()}
    assert stale == truth


def test_infinities_that_are_cleared_after_the_skip_are_not_told() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu", init_scale=64.0), overflows={1})
    with watching(course.model, course.optimizer, course.scaler) as watched:
        course.run(4)
        told = windows(watched.end())
    assert told == dict.fromkeys(range(4), ORDINARY)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_skip_in_a_fused_kernel_is_told_and_one_of_another_optimizer_is_not(optimizer: str) -> None:
    course = Course(OPTIMIZERS[optimizer], scaler=torch.amp.GradScaler("cpu", init_scale=64.0), overflows={2})
    ran = []
    course.optimizer.register_step_post_hook(lambda *_: ran.append(course.done))
    with watching(course.model, course.optimizer, course.scaler) as watched:
        course.run(4)
        told = windows(watched.end())
    # What a hook on the optimizer is told: that it stepped.
    assert (2 in ran) is ("fused" in optimizer)
    assert [step for step, window in told.items() if window.get("skipped_in_kernel")] == [2] * ("fused" in optimizer)


@pytest.mark.parametrize("kind", SGD)
def test_a_nan_that_comes_after_unscale_is_told_where_the_update_is_looked_at(kind: str) -> None:
    model = One(2)
    optimizer = SGD[kind]([model.weight])
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with watching(model, optimizer, scaler, every=1) as watched:
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2))).backward()
            scaler.unscale_(optimizer)
            if step == 1:
                assert model.weight.grad is not None
                model.weight.grad[0] = torch.nan
            scaler.step(optimizer)
            scaler.update()
        records = watched.end()
    assert model.weight[0].isnan()
    told = windows(records)
    # The scaler found nothing, and it was applied.
    assert columns(records)["skipped"][1] == 0.0
    assert told[1]["nonfinite_after_unscale"] == {"where": "step", "parameters": 1}
    assert "nonfinite_after_unscale" not in told[0]


def test_weights_that_turned_nan_unseen_are_told_with_the_last_update_that_was_clean() -> None:
    model = One(2)
    optimizer = torch.optim.SGD([model.weight], lr=0.125)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with watching(model, optimizer, scaler, every=100) as watched:
        for step in range(6):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2)) + model.weight.square().sum()).backward()
            scaler.unscale_(optimizer)
            if step == 3:
                assert model.weight.grad is not None
                model.weight.grad[0] = torch.nan
            scaler.step(optimizer)
            scaler.update()
        records = watched.end()
    assert columns(records)["skipped"] == {step: float(step > 3) for step in range(6)}
    told = {step: window.get("nonfinite_after_unscale") for step, window in windows(records).items()}
    found = {"where": "found later", "parameters": 1, "last_finite": 3}
    assert told == {**dict.fromkeys((0, 1, 2, 3, 5)), 4: found}


def test_a_loss_that_is_not_scaled_is_told() -> None:
    model = One()
    optimizer = torch.optim.SGD([model.weight], lr=0.125)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with watching(model, optimizer, scaler) as watched:
        for scaled in (True, False):
            optimizer.zero_grad()
            loss = model(torch.tensor([2.0]))
            (scaler.scale(loss) if scaled else loss).backward()
            scaler.step(optimizer)
            scaler.update()
        told = windows(watched.end())
    assert stepped(model) == [2.0 + 2.0 / 8.0]
    assert told[0] == ORDINARY
    assert told[1] == {**ORDINARY, "loss_scaled": False, "scales": [1.0], "unscaled_by": 8.0, "factors": [0.125]}


def test_several_losses_under_one_scale_are_all_scaled() -> None:
    model = One()
    optimizer = torch.optim.SGD([model.weight], lr=0.125)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with watching(model, optimizer, scaler) as watched:
        one, other = scaler.scale([model(torch.tensor([2.0])), model(torch.tensor([3.0]))])
        one.backward()
        other.backward()
        scaler.step(optimizer)
        scaler.update()
        assert windows(watched.end())[0] == {**ORDINARY, "micro_batches": 2}


def test_a_closure_beside_a_scaler_is_told_before_torch_refuses_it() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
    assert course.scaler is not None
    with watching(course.model, course.optimizer, course.scaler) as watched:
        course.backward()
        with pytest.raises(RuntimeError, match="Closure"):
            course.scaler.step(course.optimizer, closure=lambda: torch.zeros(()))
        course.scaler.step(course.optimizer)
        course.scaler.update()
        course.update()
        told = windows(watched.end())
    assert told[0]["closure_with_scaler"] is True
    assert "closure_with_scaler" not in told[1]


def test_of_several_optimizers_each_has_its_own_facts() -> None:
    one, other = One(), One()
    optimizers = [torch.optim.SGD([model.weight], lr=0.125) for model in (one, other)]
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with watching([one, other], optimizers, scaler) as watched:
        for step in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            scaler.scale(one(torch.ones(1))).backward()
            if step < 2:
                for _ in range(2):
                    scaler.scale(other(torch.ones(1))).backward()
            if step == 1:
                scaler.unscale_(optimizers[1])
            scaler.step(optimizers[0])
            if step < 2:
                scaler.step(optimizers[1])
            scaler.update()
        told = windows(watched.end())
    both = {"micro_batches": {"SGD#0": 1, "SGD#1": 2}, "zero_grad": True}
    assert told[0] == {**both, "unscale": "implicit"}
    assert told[1] == {**both, "of": {"SGD#0": {"unscale": "implicit"}, "SGD#1": {"unscale": "explicit"}}}
    assert told[2] == {**ORDINARY, "optimizers": ["SGD#0"]}


def test_the_gradients_a_generator_leaves_in_a_discriminator_are_not_of_its_window() -> None:
    generator, discriminator = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (generator, discriminator)]
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    with watching([generator, discriminator], optimizers, scaler) as watched:
        for _ in range(4):
            optimizers[1].zero_grad()
            scaler.scale(discriminator(generator(torch.randn(3, 2)).detach()).mean()).backward()
            scaler.step(optimizers[1])
            optimizers[0].zero_grad()
            scaler.scale(-discriminator(generator(torch.randn(3, 2))).mean()).backward()
            scaler.step(optimizers[0])
            # The scale doubles with every update: units that were mixed would show.
            scaler.update()
        told = windows(watched.end())
    ordinary = {**ORDINARY, "micro_batches": {"SGD#0": 1, "SGD#1": 1}}
    assert told == dict.fromkeys(range(4), ordinary)


def test_an_optimizer_that_was_unscaled_and_never_stepped_is_named() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
    assert course.scaler is not None
    with watching(course.model, course.optimizer, course.scaler) as watched:
        course.backward()
        course.scaler.unscale_(course.optimizer)
        course.scaler.update()
        assert windows(watched.end())[0]["not_stepped"] == ["AdamW"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_abnormal_windows_train_to_the_same_bits_as_without_the_hook(optimizer: str) -> None:
    def train(course: Course) -> list[torch.Tensor]:
        assert course.scaler is not None
        for step in range(12):
            if step % 4 != 1:
                course.optimizer.zero_grad(set_to_none=step % 2 == 0)
            course.backward()
            if step % 3 == 1:
                course.scaler.update(64.0)
            if step % 3 == 2:
                nn.utils.clip_grad_norm_(course.model.parameters(), 0.5)
                course.scaler.unscale_(course.optimizer)
                course.backward()
                nn.utils.clip_grad_value_(course.model.parameters(), 0.25)
            course.step()
        return course.weights()

    def make() -> Course:
        return Course(OPTIMIZERS[optimizer], scaler=torch.amp.GradScaler("cpu", init_scale=64.0), overflows={5})

    plain = train(make())
    course = make()
    with watching(course.model, course.optimizer, course.scaler, every=3) as watched:
        weights = train(course)
        watched.end()
    assert all(torch.equal(one, other) for one, other in zip(plain, weights, strict=True))


def test_what_another_optimizer_of_the_class_overflows_is_no_skip_in_a_kernel() -> None:
    models, scaler = [One(), One()], torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizers = [SGD["foreach"]([model.weight]) for model in models]
    with watching(models[0], optimizers[0], scaler) as watched:
        for step in range(3):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                bad = step == 1 and model is models[1]
                scaler.scale(model(torch.full((1,), torch.inf if bad else 1.0))).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
        records = watched.end()
    assert columns(records)["skipped"] == {0: 0.0, 1: 1.0, 2: 0.0}
    assert events(records, "skip")[1]["optimizers"] == ["SGD (not watched)"]
    assert windows(records) == dict.fromkeys(range(3), ORDINARY)
