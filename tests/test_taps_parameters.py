"""Parameters are known by the author's names, once each, and by the same index throughout."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from scalescope.taps.parameters import Parameters
from torch import nn

from tests.small_training import layouts, watching


def names(parameters: Parameters) -> list[str]:
    return [entry.name for entry in parameters.layout("unknown", []).parameters]


def sgd(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)


def compiled(model: nn.Module) -> nn.Module:
    found = torch.compile(model, backend="aot_eager")
    assert isinstance(found, nn.Module)
    return found


def test_names_are_in_forward_order_with_module_shape_and_own_format() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1).bfloat16())
    found = Parameters([model], [sgd(model)]).layout("unknown", []).parameters
    assert [(p.name, p.module, p.shape, p.dtype, p.numel, p.compute_format) for p in found] == [
        ("0.weight", "0", [2, 3], "float32", 6, None),
        ("0.bias", "0", [2], "float32", 2, None),
        ("1.weight", "1", [1, 2], "bfloat16", 2, "bf16"),
        ("1.bias", "1", [1], "bfloat16", 1, "bf16"),
    ]


def test_a_shared_parameter_appears_once_and_a_frozen_one_not_at_all() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    model[2].bias.requires_grad_(False)
    assert names(Parameters([model], [sgd(model)])) == ["0.weight", "2.weight"]


def test_wrappers_leave_no_trace_in_names() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    expected = ["0.weight", "0.bias"]
    inside = nn.Sequential(compiled(model[0]))
    for one in (nn.DataParallel(model), compiled(model), nn.DataParallel(compiled(model)), inside):
        assert names(Parameters([one], [sgd(model)])) == expected


def test_a_module_that_is_named_like_a_wrapper_keeps_its_name() -> None:
    model = nn.ModuleDict({"module": nn.Linear(1, 1, bias=False)})
    assert names(Parameters([model], [sgd(model)])) == ["module.weight"]


def test_several_models_are_told_apart_by_class_then_by_number() -> None:
    models = [nn.Linear(1, 1, bias=False), nn.Sequential(nn.Linear(1, 1, bias=False)), nn.Linear(1, 1, bias=False)]
    assert names(Parameters(models, [sgd(*models)])) == ["Linear0.weight", "Sequential.0.weight", "Linear1.weight"]


def test_what_the_optimizer_holds_beyond_the_models_comes_last() -> None:
    model = nn.Linear(1, 1)
    optimizer = sgd(model)
    parameters = Parameters([model], [optimizer])
    extra = nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [extra]})
    parameters.extend([optimizer])
    parameters.extend([optimizer])
    assert names(parameters) == ["weight", "bias", "optimizer0.1.0"]
    assert parameters.index(extra) == 2


def test_a_parameter_that_is_unfrozen_later_is_added_under_its_name() -> None:
    model = nn.Linear(1, 1)
    model.weight.requires_grad_(False)
    optimizer = sgd(model)
    parameters = Parameters([model], [optimizer])
    model.weight.requires_grad_(True)
    parameters.extend([optimizer])
    assert names(parameters) == ["bias", "weight"]


def test_a_model_is_not_kept_alive_and_its_parameters_until_they_are_released() -> None:
    model = nn.Linear(1, 1)
    parameters, reference = Parameters([model], [sgd(model)]), weakref.ref(model.weight)
    del model
    gc.collect()
    assert names(parameters) == ["weight", "bias"]
    assert reference() is not None
    parameters.release()
    gc.collect()
    assert reference() is None
    assert names(parameters) == ["weight", "bias"]


def test_parameters_can_be_swapped() -> None:
    model = nn.Linear(1, 1)
    parameters = Parameters([model], [sgd(model)])
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
        model.to(torch.float64)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert parameters.index(model.weight) == 0


def test_a_module_inside_that_is_compiled_makes_the_model_compiled() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    parameters = Parameters([model], [sgd(model)])
    assert not parameters.compiled
    model[0].compile(backend="aot_eager")
    assert parameters.compiled


def test_a_parameter_that_is_not_initialized_yet_is_entered_with_its_first_gradient() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer, every=1) as watched:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        first, *_, last = layouts(watched.end())
    assert [entry.name for entry in first.parameters] == ["1.weight", "1.bias"]
    assert {entry.name: entry.shape for entry in last.parameters}["0.weight"] == [3, 4]


def test_ranks_that_meet_after_their_training_is_watched_are_told_what_that_means(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(2, 2)
    parameters = Parameters([model], [sgd(model)])
    parameters.settle_shares()
    assert caplog.messages == []
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node"}.items():
        monkeypatch.setenv(name, value)
    parameters.settle_shares()
    parameters.settle_shares()
    (line,) = caplog.messages
    assert "call watch() after init_process_group()" in line
    assert parameters.layout("unknown", []).parts == []
