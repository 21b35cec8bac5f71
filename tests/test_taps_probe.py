"""The reference probe tells what was lost, to the element, or says why it cannot."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch
from scalescope import wire
from scalescope.numerics.exponents import flushed
from scalescope.numerics.formats import FP16
from scalescope.packing import unpack
from scalescope.rows import indexes, tallied
from scalescope.taps.probe.result import ProbeResult
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.small_training import Course, Watched, bf16, fp16, fp32, layouts, samples, watching

LossFunction = Callable[[], torch.Tensor]


def probes(records: list[wire.Record]) -> list[wire.Probe]:
    return [record for record in records if isinstance(record, wire.Probe)]


def data(probe: wire.Probe) -> dict[str, object]:
    found: dict[str, object] = json.loads(probe.data)
    return found


def found(result: ProbeResult | None) -> ProbeResult:
    assert result is not None
    return result


class Mlp(nn.Module):
    """Small gradients, of which fp16 loses many."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
        self.to(dtype)
        self.batch = torch.randn(32, 16).to(dtype)

    def loss(self) -> torch.Tensor:
        prediction: torch.Tensor = self.layers(self.batch)
        return prediction.float().square().mean() * 1e-4


def gradients(
    model: Mlp, precision: Callable[[], AbstractContextManager[object]], scale: float = 1.0
) -> dict[str, np.ndarray]:
    """By name, unscaled in float64: a plain backward of a copy."""
    twin = copy.deepcopy(model)
    with precision():
        loss = twin.loss()
    (loss * scale).backward()
    named = ((name, parameter.grad) for name, parameter in twin.named_parameters())
    return {name: gradient.double().numpy() / scale for name, gradient in named if gradient is not None}


def assert_true(result: ProbeResult, own: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> None:
    """Every number of ``result`` is what the two gradients say, the counts exactly."""
    assert result.parameters.keys() == reference.keys()
    for name, difference in result.parameters.items():
        low, high = own[name], reference[name]
        nonzero = int(np.count_nonzero(high))
        lost = int(np.count_nonzero((high != 0) & (low == 0)))
        assert difference.true_underflow == lost / nonzero
        assert difference.relative_error == pytest.approx(np.linalg.norm(low - high) / np.linalg.norm(high), rel=1e-9)
        cosine = (low * high).sum() / np.linalg.norm(low) / np.linalg.norm(high)
        assert difference.cosine == pytest.approx(cosine, rel=1e-9)
        assert difference.nonfinite == 0


@pytest.fixture
def mlp() -> Mlp:
    return Mlp()


@pytest.fixture
def watched(mlp: Mlp) -> Iterator[Watched]:
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    with watching(mlp, torch.optim.SGD(mlp.parameters(), lr=0.1), scaler, every=1) as ears:
        yield ears


def test_true_underflow_is_an_independent_count_to_the_element(mlp: Mlp, watched: Watched) -> None:
    result = found(watched.tap.probe(mlp.loss, dtype=torch.float16))
    assert_true(result, gradients(mlp, fp16), gradients(mlp, fp32))
    assert result.total.true_underflow is not None
    assert 0.1 < result.total.true_underflow < 0.9
    assert (result.scale, result.format) == (1.0, "fp16")


@pytest.mark.parametrize("scale", [2.0**6, 2.0**16])
def test_at_a_higher_scale_less_is_lost_as_counted(mlp: Mlp, scale: float) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with watching(mlp, torch.optim.SGD(mlp.parameters(), lr=0.1), scaler) as ears:
        result = found(ears.tap.probe(mlp.loss, dtype=torch.float16))
        ears.end()
    assert_true(result, gradients(mlp, fp16, scale), gradients(mlp, fp32))
    assert result.total.true_underflow is not None
    assert result.total.true_underflow < 0.1
    assert result.scale == scale


def test_the_flush_share_of_the_recorded_gradient_is_an_estimate_that_differs() -> None:
    mlp, scaler = Mlp(), torch.amp.GradScaler("cpu", init_scale=1.0)
    optimizer = torch.optim.SGD(mlp.parameters(), lr=0.0)
    with watching(mlp, optimizer, scaler, every=1) as ears:
        with fp16():
            loss = mlp.loss()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        result = found(ears.tap.probe(mlp.loss))
        records = ears.end()
    sample = samples(records)[0]
    table = unpack(sample.table)
    names = [layouts(records)[-1].parameters[index].name for index in indexes(sample)]
    row = names.index("layers.0.weight")
    low, high = flushed(table, FP16)
    nonzero = int(table.nonzero[row])
    truth = result.parameters["layers.0.weight"].true_underflow
    # What had flushed is zero already, and no longer among the non-zeros.
    assert low[row] == 0
    assert truth is not None
    assert high[row] / nonzero < truth / 2


def test_the_record_holds_what_is_returned(mlp: Mlp, watched: Watched) -> None:
    result = found(watched.tap.probe(mlp.loss, dtype=torch.float16))
    records = watched.end()
    (probe,) = probes(records)
    told, columns = tallied(probe)
    names = [layouts(records)[-1].parameters[index].name for index in told]
    assert names == list(result.parameters)
    shares = columns["lost"] / columns["reference_nonzero"]
    assert shares.tolist() == [difference.true_underflow for difference in result.parameters.values()]
    assert columns["own_nonfinite"].tolist() == [0] * len(names)
    assert data(probe) == {
        "loss": result.loss,
        "reference_loss": result.reference_loss,
        "scale": 1.0,
        "format": "fp16",
        "seconds": pytest.approx(result.seconds, abs=1e-6),
    }
    assert result.loss != result.reference_loss
    assert probe.step == 0


def test_a_probe_belongs_to_the_update_under_way(mlp: Mlp) -> None:
    optimizer = torch.optim.SGD(mlp.parameters(), lr=0.1)
    with watching(mlp, optimizer) as ears:
        for _ in range(3):
            optimizer.zero_grad()
            with bf16():
                loss = mlp.loss()
            loss.backward()
            ears.tap.probe(mlp.loss)
            optimizer.step()
        found(ears.tap.probe(mlp.loss))
        assert [probe.step for probe in probes(ears.end())] == [0, 1, 2, 3]


@pytest.mark.parametrize(("precision", "name"), [(fp16, "fp16"), (bf16, "bf16")])
def test_the_precision_is_seen_in_the_training(
    precision: Callable[[], AbstractContextManager[object]], name: str
) -> None:
    mlp = Mlp()
    optimizer = torch.optim.SGD(mlp.parameters(), lr=0.1)
    with watching(mlp, optimizer) as ears:
        with precision():
            loss = mlp.loss()
        (loss * 1e4).backward()
        optimizer.step()
        optimizer.zero_grad()
        result = found(ears.tap.probe(mlp.loss))
        ears.end()
    assert (result.format, result.scale) == (name, None)
    assert_true(result, gradients(mlp, precision), gradients(mlp, fp32))


def test_the_autocast_around_the_call_tells_the_precision(mlp: Mlp, watched: Watched) -> None:
    with bf16():
        result = found(watched.tap.probe(mlp.loss))
    assert result.format == "bf16"
    assert_true(result, gradients(mlp, bf16), gradients(mlp, fp32))


def test_the_autocast_of_the_last_forward_tells_the_precision_where_gradients_do_not() -> None:
    """The gradient of a tied weight is a sum, and off the grid of what it was computed in."""
    layer = nn.Linear(4, 4)
    optimizer, batch = torch.optim.SGD(layer.parameters(), lr=0.1), torch.randn(2, 4)

    def loss() -> torch.Tensor:
        return layer(layer(batch)).float().square().mean()  # type: ignore[no-any-return]

    with watching(layer, optimizer, every=1) as ears:
        with bf16():
            value = loss()
        value.backward()
        optimizer.step()
        assert found(ears.tap.probe(loss)).format == "bf16"


def test_parameters_in_half_have_a_reference_of_fp32_copies() -> None:
    mlp = Mlp(torch.bfloat16)
    with watching(mlp, torch.optim.SGD(mlp.parameters(), lr=0.1)) as ears:
        result = found(ears.tap.probe(mlp.loss))
        ears.end()
    wide = copy.deepcopy(mlp).float()
    wide.batch = mlp.batch.float()
    assert result.format == "bf16"
    assert_true(result, gradients(mlp, fp32), gradients(wide, fp32))
    assert all(parameter.dtype == torch.bfloat16 and parameter.grad is None for parameter in mlp.parameters())


def test_a_batch_cast_to_half_inside_is_the_same_batch_for_both(mlp: Mlp, watched: Watched) -> None:
    def cast() -> torch.Tensor:
        return mlp.layers(mlp.batch.half()).float().square().mean() * 1e-4  # type: ignore[no-any-return]

    result = found(watched.tap.probe(cast, dtype=torch.float16))
    mlp.batch = mlp.batch.half().float()
    assert_true(result, gradients(mlp, fp16), gradients(mlp, fp32))


def test_a_mask_in_half_that_is_filled_in_place_stays_the_mask() -> None:
    layer = nn.Linear(4, 4).bfloat16()
    batch = torch.ones(4, 4, dtype=torch.bfloat16)

    def loss() -> torch.Tensor:
        mask = torch.zeros(4, 4, dtype=torch.bfloat16).masked_fill_(torch.eye(4, dtype=torch.bool), 8.0)
        torch.mul(mask, 2.0, out=mask)
        value: torch.Tensor = (layer(batch) * mask).float().sum()
        return value

    with watching(layer, torch.optim.SGD(layer.parameters(), lr=0.1)) as ears:
        result = found(ears.tap.probe(loss))
        ears.end()
    assert result.reference_loss == pytest.approx(layer.float()(batch.float()).diagonal().sum().item() * 16, rel=1e-5)


def test_overflowed_values_are_counted_and_left_out() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu", init_scale=2.0**30))
    with watching(course.model, course.optimizer, course.scaler) as ears:
        result = found(
            ears.tap.probe(
                lambda: course.model(course.batches[0]).square().mean(), compare_update=True, dtype=torch.float16
            )
        )
        ears.end()
    assert result.total.nonfinite > 0
    assert result.updates == {}
    assert "the scaler would skip it" in result.no_updates
    assert all(difference.relative_error != float("inf") for difference in result.parameters.values())


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_block_is_probed_as_any_other(reentrant: bool) -> None:
    class Checkpointed(Mlp):
        def loss(self) -> torch.Tensor:
            batch = self.batch.requires_grad_()
            hidden = checkpoint(self.layers[:4], batch, use_reentrant=reentrant)
            prediction: torch.Tensor = self.layers[4](hidden)
            return prediction.float().square().mean() * 1e-4

    plain, mlp = Mlp(), Checkpointed()
    with watching(mlp, torch.optim.SGD(mlp.parameters(), lr=0.1)) as ears:
        result = found(ears.tap.probe(mlp.loss, dtype=torch.float16))
        ears.end()
    assert_true(result, gradients(plain, fp16), gradients(plain, fp32))
    assert all(parameter.grad is None for parameter in mlp.parameters())


def test_each_of_several_losses_is_probed_by_itself(mlp: Mlp, watched: Watched) -> None:
    def whole() -> torch.Tensor:
        return mlp.loss() * 1e5 + mlp.loss() * 1e-2

    results = [found(watched.tap.probe(part, dtype=torch.float16)) for part in (whole, lambda: mlp.loss() * 1e-2)]
    shares = [result.total.true_underflow for result in results]
    assert shares[0] is not None
    assert shares[1] is not None
    # The small term is lost beside the large one, which alone hides it.
    assert shares[0] < 0.05
    assert shares[1] > 0.9


def test_a_compiled_model_is_compared_with_its_eager_reference() -> None:
    mlp = Mlp()
    plain = gradients(mlp, fp32)
    mlp.layers.compile(backend="aot_eager")
    with watching(mlp, torch.optim.SGD(mlp.parameters(), lr=0.1)) as ears:
        result = found(ears.tap.probe(mlp.loss, dtype=torch.float16))
        ears.end()
    assert result.parameters["layers.0.weight"].true_underflow is not None
    mlp.layers._compiled_call_impl = None
    assert_true(result, gradients(mlp, fp16), plain)


def test_a_weight_that_the_loss_reaches_past_its_module_is_compared_too() -> None:
    layer = nn.Linear(4, 4)
    weight, batch = layer.weight, torch.randn(2, 4)
    with watching(layer, torch.optim.SGD(layer.parameters(), lr=0.1)) as ears:
        result = found(ears.tap.probe(lambda: (batch @ weight).float().square().mean(), dtype=torch.float16))
        ears.end()
    assert list(result.parameters) == ["weight"]
    assert weight.grad is None


def inner_autocast(mlp: Mlp) -> LossFunction:
    def loss() -> torch.Tensor:
        with fp16():
            return mlp.loss()

    return loss


def inner_cast(mlp: Mlp) -> LossFunction:
    return lambda: mlp.layers[:4](mlp.batch).half().square().mean().float()


def raising(mlp: Mlp) -> LossFunction:
    def loss() -> torch.Tensor:
        mlp.loss()
        raise LookupError("no more batches")

    return loss


CANNOT: dict[str, tuple[Callable[[Mlp], LossFunction], str]] = {
    "inner autocast": (inner_autocast, "leave autocast and casts out of it"),
    "inner cast": (inner_cast, "leave autocast and casts out of it"),
    "raises": (raising, "LookupError: no more batches"),
    "no gradient": (lambda mlp: lambda: mlp.loss().detach(), "has no gradient"),
    "not a scalar": (lambda mlp: lambda: mlp.layers(mlp.batch), "a tensor of one element"),
    "another model": (lambda _: lambda: nn.Linear(2, 2)(torch.ones(1, 2)).sum(), "call the watched model"),
}


@pytest.mark.parametrize("case", CANNOT)
def test_what_cannot_be_compared_is_told_and_recorded_and_never_raised(
    case: str, mlp: Mlp, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    make, reason = CANNOT[case]
    with caplog.at_level(logging.WARNING, "scalescope"):
        assert watched.tap.probe(make(mlp), dtype=torch.float16) is None
        assert watched.tap.probe(make(mlp), dtype=torch.float16) is None
    (line,) = caplog.messages
    assert reason in line
    told = probes(watched.end())
    assert [reason in str(data(probe)["reason"]) for probe in told] == [True, True]
    assert all(len(tallied(probe)[0]) == 0 for probe in told)


@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_where_no_half_precision_is_known_the_probe_asks_for_it(mlp: Mlp, watched: Watched, dtype: torch.dtype) -> None:
    assert watched.tap.probe(mlp.loss, dtype=dtype) is None
    (probe,) = probes(watched.end())
    assert "torch.float16" in str(data(probe)["reason"])


def test_after_the_end_and_in_a_silent_scope_nothing_is_probed(mlp: Mlp, watched: Watched) -> None:
    watched.edge.silent = True
    assert watched.tap.probe(mlp.loss, dtype=torch.float16) is None
    assert watched.edge.silent
