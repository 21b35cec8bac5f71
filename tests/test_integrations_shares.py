"""What one of several ranks keeps of a gradient, as DeepSpeed and Megatron divide them: told on stand-ins of theirs."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from scalescope.integrations import deepspeed
from scalescope.integrations.deepspeed_gradients import elements
from scalescope.integrations.deepspeed_shares import shares as of_deepspeed
from scalescope.integrations.megatron_gradients import shares as of_megatron
from scalescope.taps.parameters import Parameters
from scalescope.wire import Part

from tests.deepspeed_stand_ins import DynamicLossScaler, WithoutZero, half
from tests.megatron_stand_ins import DistributedOptimizer, DynamicGradScaler, Float16Optimizer


def test_without_ranks_a_gradient_is_whole() -> None:
    assert of_deepspeed(WithoutZero(half(), DynamicLossScaler(1.0))) == {}


def test_a_parameter_in_parts_has_the_shape_of_the_whole() -> None:
    """As ZeRO 3 leaves them: nothing where they are, a third of all in another tensor."""
    parameter = torch.nn.Parameter(torch.empty(0))
    parameter.ds_shape = torch.Size([4, 5])  # type: ignore[attr-defined]
    parameter.ds_tensor = torch.zeros(7)  # type: ignore[attr-defined]
    optimizer = SimpleNamespace(fp32_partitioned_groups_flat=[], fp16_groups=[[parameter]])
    (held,) = of_deepspeed(optimizer).values()
    assert (held.shape, held.part) == ((4, 5), Part("sharded", 7, leads=True))


def test_the_padding_of_the_last_part_is_no_element() -> None:
    whole = SimpleNamespace(ds_numel=20, ds_process_group=None)
    assert elements(whole, 7) == 7
    assert elements(SimpleNamespace(), 7) == 7


def test_the_distributed_optimizer_tells_its_ranges() -> None:
    model = half()
    parameters = list(model.parameters())
    optimizer = DistributedOptimizer(parameters[:2], DynamicGradScaler(1.0))
    optimizer.buffers = [SimpleNamespace(params=parameters)]  # type: ignore[attr-defined]
    found = of_megatron(optimizer)
    assert [found[id(parameter)].part for parameter in parameters[:3]] == [
        Part("sharded", 32, leads=True),
        Part("sharded", 4, leads=True),
        Part("sharded", 0, leads=False),
    ]


def test_what_tensor_parallelism_divides_is_each_ranks_own() -> None:
    model = half()
    parameters = list(model.parameters())
    parameters[0].tensor_model_parallel = True  # type: ignore[attr-defined]
    found = of_megatron(DistributedOptimizer(parameters, DynamicGradScaler(1.0)))
    assert id(parameters[0]) not in found
    assert of_megatron(Float16Optimizer(parameters, DynamicGradScaler(1.0))) == {}


def test_the_layout_has_the_shape_that_a_library_tells() -> None:
    model = half()
    standing = deepspeed._standing_in_for(WithoutZero(model, DynamicLossScaler(1.0)), model)
    first = next(model.parameters())
    assert isinstance(first, torch.nn.Parameter)
    theirs = SimpleNamespace(fp32_partitioned_groups_flat=[], fp16_groups=[list(model.parameters())])
    for parameter in model.parameters():
        parameter.ds_shape = torch.Size([2, *parameter.shape])  # type: ignore[attr-defined]
    standing.library._theirs = theirs  # type: ignore[attr-defined]
    layout = Parameters([model], [standing]).layout("unknown", [])
    assert layout.parameters[0].shape == [2, 8, 8]
    assert layout.parameters[0].numel == 128
