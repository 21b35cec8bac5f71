"""Clipping: which limit, in which units and by how much, whoever imported it by which name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from scalescope.taps.windows import clip
from torch import nn
from torch.nn.utils import clip_grad, clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm

from tests.small_training import Course, bf16, columns, samples, watching, windows

Gradients = Sequence[float]
Clipping = Callable[[nn.Parameter], object]


def by_parts(weight: nn.Parameter) -> None:
    """As trainers do that reduce the norm over ranks in between."""
    assert weight.grad is not None
    clip_grads_with_norm_([weight], 1.0, get_total_norm([weight.grad]))


BY_NORM: dict[str, Clipping] = {
    "imported": lambda weight: clip_grad_norm_([weight], 1.0),
    "module": lambda weight: nn.utils.clip_grad_norm_(weight, 1.0),
    "for-loop": lambda weight: nn.utils.clip_grad_norm_([weight], 1.0, foreach=False),
    "parts": by_parts,
}
MOVED = {"scaled": (0.0046875, 0.00625), "unscaled": (0.6, 0.8)}


class Weights(nn.Module):
    """Weights whose gradients are what they are multiplied with."""

    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        self.optimizer = torch.optim.SGD([self.weight], lr=1.0)

    def backward(self, gradients: Gradients, scaler: torch.amp.GradScaler | None = None) -> None:
        self.optimizer.zero_grad()
        loss = (self.weight * torch.tensor(gradients, dtype=torch.float64)).sum()
        (loss if scaler is None else scaler.scale(loss)).backward()


@pytest.mark.parametrize("clipping", BY_NORM)
@pytest.mark.parametrize("when", ["scaled", "unscaled"])
def test_a_clip_by_norm_is_told_with_the_units_it_ran_in(clipping: str, when: str) -> None:
    model, scaler = Weights(), torch.amp.GradScaler("cpu", init_scale=128.0)
    with watching(model, model.optimizer, scaler) as watched:
        model.backward((3.0, 4.0), scaler)
        if when == "unscaled":
            scaler.unscale_(model.optimizer)
        BY_NORM[clipping](model.weight)
        scaler.step(model.optimizer)
        scaler.update()
        records = watched.end()
    assert (-model.weight.detach()).tolist() == pytest.approx(MOVED[when], rel=1e-5)
    told = windows(records)[0]
    assert told["clip"] == {"kind": "norm", "limit": 1.0, "when": when, "calls": 1}
    # Both are limited to 1; while scaled the norm is 640.
    applied = 1 / 640 if when == "scaled" else 1 / 5
    assert columns(records)["clip_coefficient"][0] == pytest.approx(applied, rel=1e-6)
    if when == "scaled":
        found = told["clip_while_scaled"]
        assert isinstance(found, dict)
        assert found["factor"] == pytest.approx(1 / 128, rel=1e-6)
        assert found["coefficient"] == pytest.approx(1 / 640, rel=1e-6)
        assert found["intended"] == pytest.approx(1 / 5, rel=1e-6)
        assert found["scale"] == 128.0
    else:
        assert "clip_while_scaled" not in told


def test_the_coefficient_is_what_torch_multiplied_by() -> None:
    model = Weights(3)
    truth = {}
    with watching(model, model.optimizer) as watched:
        for step, gradients in enumerate([(0.25, 0.0, 0.0), (2.0, 1.0, 2.0), (0.0, 0.0, 0.0), (math.inf, 1.0, 1.0)]):
            model.backward(gradients)
            before = torch.tensor(gradients, dtype=torch.float64)
            norm = clip_grad_norm_([model.weight], 1.0)
            assert model.weight.grad is not None
            after = model.weight.grad
            truth[step] = float(torch.clamp(1.0 / (norm + 1e-6), max=1.0))
            if before.isfinite().all():
                assert torch.equal(after, before * truth[step])
            model.optimizer.step()
        found = columns(watched.end())["clip_coefficient"]
    assert found == truth == {0: 1.0, 1: pytest.approx(1 / 3), 2: 1.0, 3: 0.0}


@pytest.mark.parametrize("clipping", [clip_grad_value_, nn.utils.clip_grad_value_])
@pytest.mark.parametrize("foreach", [True, False])
def test_a_clip_by_value_is_told_with_its_limit_and_has_no_coefficient(
    clipping: Callable[..., None], *, foreach: bool
) -> None:
    model = Weights()
    with watching(model, model.optimizer) as watched:
        model.backward((3.0, 4.0))
        clipping([model.weight], 0.5, foreach=foreach)
        model.optimizer.step()
        records = watched.end()
    assert (-model.weight.detach()).tolist() == [0.5, 0.5]
    assert windows(records)[0]["clip"] == {"kind": "value", "limit": 0.5, "when": "unscaled", "calls": 1}
    assert "clip_coefficient" not in columns(records)


def test_clipping_each_micro_batch_is_told_with_the_passes_that_came_after() -> None:
    model = Weights(1)
    with watching(model, model.optimizer) as watched:
        model.optimizer.zero_grad()
        for gradient in (3.0, -2.0):
            (model.weight * gradient).sum().backward()
            clip_grad_norm_([model.weight], 1.0)
        model.optimizer.step()
        model.optimizer.zero_grad()
        for place, gradient in enumerate((3.0, -2.0)):
            (model.weight * gradient).sum().backward()
            if place == 0:
                clip_grad_norm_([model.weight], 1.0)
        model.optimizer.step()
        told = windows(watched.end())
    assert told[0]["clip"] == {"kind": "norm", "limit": 1.0, "when": "unscaled", "calls": 2}
    assert told[1]["clip"] == {"kind": "norm", "limit": 1.0, "when": "unscaled", "calls": 1, "backwards_after": 1}


def test_a_norm_that_is_only_looked_at_is_no_clip() -> None:
    course = Course(precision=bf16)
    with watching(course.model, course.optimizer) as watched:
        for _ in range(2):
            course.optimizer.zero_grad()
            course.backward()
            get_total_norm([parameter.grad for parameter in course.model.parameters() if parameter.grad is not None])
            course.step()
        records = watched.end()
    assert "clip" not in windows(records)[0]
    assert "clip_coefficient" not in columns(records)


def test_a_nan_in_the_norm_after_unscale_is_told_as_what_spread_it() -> None:
    model, scaler = Weights(), torch.amp.GradScaler("cpu", init_scale=2.0)
    with watching(model, model.optimizer, scaler, every=100) as watched:
        for step in range(2):
            model.backward((3.0, 4.0), scaler)
            scaler.unscale_(model.optimizer)
            assert model.weight.grad is not None
            if step == 1:
                model.weight.grad[0] = torch.nan
            clip_grad_norm_([model.weight], 1.0)
            scaler.step(model.optimizer)
            scaler.update()
        records = watched.end()
    # Both weights are lost, and the scaler saw nothing.
    assert model.weight.isnan().all()
    assert columns(records)["skipped"] == {0: 0.0, 1: 0.0}
    told = windows(records)
    assert told[1]["nonfinite_after_unscale"] == {"where": "clip", "norm": "nan"}
    assert "nonfinite_after_unscale" not in told[0]


def test_a_skip_that_is_clipped_is_no_news() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu", init_scale=64.0), overflows={1}, clip=True)
    with watching(course.model, course.optimizer, course.scaler) as watched:
        course.run(3)
        told = windows(watched.end())
    assert told[0] == told[1] == told[2]


def test_a_norm_that_must_be_finite_is_told_even_where_that_raises() -> None:
    model, scaler = Weights(), torch.amp.GradScaler("cpu", init_scale=2.0)
    with watching(model, model.optimizer, scaler) as watched:
        model.backward((math.inf, 4.0), scaler)
        scaler.unscale_(model.optimizer)
        with pytest.raises(RuntimeError, match="non-finite"):
            clip_grad_norm_([model.weight], 1.0, error_if_nonfinite=True)
        scaler.step(model.optimizer)
        scaler.update()
        records = watched.end()
    assert windows(records)[0]["error_if_nonfinite"] is True
    assert columns(records)["skipped"] == {0: 1.0}


def test_of_two_optimizers_the_one_that_is_clipped_is_told() -> None:
    one, other = Weights(), Weights()
    with watching([one, other], [one.optimizer, other.optimizer]) as watched:
        for model in (one, other):
            model.backward((3.0, 4.0))
        clip_grad_norm_([other.weight], 1.0)
        for model in (one, other):
            model.optimizer.step()
        told = windows(watched.end())[0]
    assert told["of"] == {"SGD#1": {"clip": {"kind": "norm", "limit": 1.0, "when": "unscaled", "calls": 1}}}


def test_a_clip_over_all_optimizers_at_once_is_of_each() -> None:
    models = [Weights() for _ in range(3)]
    with watching(models, [model.optimizer for model in models]) as watched:
        for model in models:
            model.backward((3.0, 4.0))
        clip_grad_norm_([model.weight for model in models], 1.0)
        for model in models:
            model.optimizer.step()
        told = windows(watched.end())[0]
    assert told["clip"] == {"kind": "norm", "limit": 1.0, "when": "unscaled", "calls": 1}
    assert "of" not in told


def test_a_clip_of_another_training_is_not_told() -> None:
    model, stranger = Weights(), Weights()
    with watching(model, model.optimizer) as watched:
        model.backward((3.0, 4.0))
        stranger.backward((3.0, 4.0))
        clip_grad_norm_([stranger.weight], 1.0)
        model.optimizer.step()
        records = watched.end()
    assert "clip" not in windows(records)[0]
    assert "clip_coefficient" not in columns(records)


@pytest.mark.parametrize("clipping", BY_NORM)
def test_gradients_are_measured_before_they_are_clipped(clipping: str) -> None:
    model = Weights()
    with watching(model, model.optimizer, every=1) as watched:
        model.backward((3.0, 4.0))
        BY_NORM[clipping](model.weight)
        model.optimizer.step()
        records = watched.end()
    assert samples(records).keys() == {0}


def test_torchs_own_function_is_back_with_the_last_that_listened() -> None:
    before = clip_grad._group_tensors_by_device_and_dtype  # type: ignore[attr-defined]
    one, other = Weights(), Weights()
    with watching(one, one.optimizer):
        with watching(other, other.optimizer):
            assert clip_grad._group_tensors_by_device_and_dtype is not before  # type: ignore[attr-defined]
        assert clip_grad._group_tensors_by_device_and_dtype is not before  # type: ignore[attr-defined]
    assert clip_grad._group_tensors_by_device_and_dtype is before  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("limit", "norm", "expected"), [(1.0, 5.0, 1 / 5.000001), (1.0, 0.5, 1.0), (1.0, math.inf, 0.0), (1.0, 0.0, 1.0)]
)
def test_a_coefficient_limits_and_never_amplifies(limit: float, norm: float, expected: float) -> None:
    assert clip.coefficient(limit, norm) == expected


def test_the_coefficient_of_a_nan_is_nan() -> None:
    assert math.isnan(clip.coefficient(1.0, math.nan))
