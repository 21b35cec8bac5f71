"""Histograms of weights, outputs and output gradients, against numpy's own exponents."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scalescope import wire
from scalescope.errors import SettingError
from scalescope.numerics.exponents import MIN_EXPONENT
from scalescope.packing import unpack
from scalescope.recorder import Recorder
from scalescope.rows import indexes
from scalescope.taps.edge import Edge
from scalescope.taps.modules.histograms import KINDS
from scalescope.taps.training import TrainingTap, training_of
from torch import nn

WIDTH = 8
SCALE = 2.0**12


class Twice(nn.Module):
    """Calls one layer twice, and keeps what it answered and what came back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.outputs: list[NDArray[np.float32]] = []
        self.gradients: list[NDArray[np.float32]] = []

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            batch = self.layer(batch)
            self.outputs.append(batch.detach().numpy().copy())
            batch.register_hook(lambda gradient: self.gradients.append(gradient.numpy().copy()))
        return batch


def trained(kinds: Collection[str], model: Twice, *, updates: int = 1) -> list[wire.Record]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    recorder, edge = Recorder(), Edge()
    tap = TrainingTap(
        training_of(model, optimizer, scaler, histograms=list(kinds)), recorder, edge, every=5, clock=lambda: 1.0
    )
    for _ in range(updates):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(3, WIDTH)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    tap.remove()
    assert edge.errors == 0
    return recorder.drain()


def of_kind(records: Sequence[wire.Record], kind: str) -> list[wire.Sample]:
    return [record for record in records if isinstance(record, wire.Sample) and record.kind == kind]


def counted(values: NDArray[np.float32]) -> dict[int, int]:
    """Exponent -> how many values have it."""
    exponents = np.frexp(np.abs(values[values != 0]))[1] - 1
    found, counts = np.unique(exponents, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def told(sample: wire.Sample, index: int) -> dict[int, int]:
    table = unpack(sample.table)
    counts = table.counts[indexes(sample).tolist().index(index)]
    return {int(place) + MIN_EXPONENT: int(counts[place]) for place in np.flatnonzero(counts)}


def test_outputs_and_their_gradients_are_counted_by_module_all_calls_together() -> None:
    torch.manual_seed(0)
    model = Twice()
    records = trained(("forward", "grad_output"), model)
    (forward,), (backward,) = of_kind(records, "forward"), of_kind(records, "grad_output")
    # The model and its layer, as the layout lists them.
    assert indexes(forward).tolist() == [1, 0]
    assert told(forward, 1) == counted(np.concatenate(model.outputs))
    assert told(forward, 0) == counted(model.outputs[-1])
    assert told(backward, 1) == counted(np.concatenate(model.gradients))
    assert forward.scale is None
    assert backward.scale == SCALE
    assert not of_kind(records, "weight")


def test_weights_are_counted_by_parameter_as_a_sampled_update_leaves_them() -> None:
    torch.manual_seed(0)
    model = Twice()
    records = trained(("weight",), model, updates=6)
    first, last = of_kind(records, "weight")
    assert (first.step, last.step) == (0, 5)
    assert first.reason == "periodic"
    assert indexes(last).tolist() == [0, 1]
    for index, tensor in enumerate(model.parameters()):
        assert told(last, index) == counted(tensor.detach().numpy())
    assert not of_kind(records, "forward")


def test_without_a_request_gradients_alone_are_counted() -> None:
    kinds = {record.kind for record in trained((), Twice()) if isinstance(record, wire.Sample)}
    assert kinds == {"grad"}


@pytest.mark.parametrize("given", ["weight", ["weights"], ["forward", 3], [["weight"]]], ids=str)
def test_anything_else_is_refused_with_what_was_expected(given: list[object]) -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(SettingError, match=r"histograms.*weight.*forward.*grad_output"):
        training_of(model, torch.optim.SGD(model.parameters()), None, histograms=given)


def test_without_modules_only_weights_can_be_asked_for() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    assert training_of(model, optimizer, None, modules=False, histograms=KINDS[:1]).histograms == {"weight"}
    with pytest.raises(SettingError, match="histograms"):
        training_of(model, optimizer, None, modules=False, histograms=KINDS)


def test_what_one_update_keeps_is_bounded() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder, edge = Recorder(), Edge()
    tap = TrainingTap(
        training_of(model, optimizer, None, histograms=["forward"]), recorder, edge, every=1, clock=lambda: 1.0
    )
    for _ in range(4200):
        model(torch.ones(1, 1))
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    tap.remove()
    (sample,) = of_kind(recorder.drain(), "forward")
    assert unpack(sample.table).counts.sum() == 4096
