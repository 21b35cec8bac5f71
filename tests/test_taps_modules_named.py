"""Which module is which, by the names that its author gave."""

from __future__ import annotations

import copy

import pytest
import torch
from scalescope import wire
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.hooks import RemovableHandle

from tests.small_modules import Account, tallies, trained
from tests.small_training import layouts, watching

WIDTH = 4


class Nested(nn.Module):
    """A container in a container, a list, a shared module, one that is called twice and one that never is."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.body = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)), self.shared])
        self.unused = nn.Linear(WIDTH, WIDTH)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        batch = self.shared(batch)
        for part in self.body:
            batch = part(batch)
        return batch


def test_nested_shared_and_repeated_modules_are_told_by_their_first_name() -> None:
    torch.manual_seed(0)
    model = Nested()
    account = Account(model)
    records = trained(model, lambda: model(torch.randn(3, WIDTH)).square().mean())
    told = tallies(records)[0]
    assert told == account.numbers()
    assert told["shared"]["forward_numel"] == 2 * 3 * WIDTH
    assert [(module.name, module.kind) for module in layouts(records)[0].modules] == [
        ("", "Nested"),
        ("shared", "Linear"),
        ("body.0", "Sequential"),
        ("body.0.0", "Linear"),
        ("body.0.1", "ReLU"),
        ("unused", "Linear"),
    ]


def test_a_model_whose_forward_is_never_called_is_heard_by_its_parts() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    account = Account(model)
    records = trained(model, lambda: model[1](model[0](torch.ones(1, 2))).sum())
    assert tallies(records)[0] == account.numbers()
    assert [module.name for module in layouts(records)[0].modules] == ["0", "1"]


def test_two_watched_models_carry_their_names_and_share_no_row() -> None:
    one, other = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)
    with watching([one, other], optimizer, every=1) as watched:
        other(one(torch.ones(1, 2))).sum().backward()
        optimizer.step()
        records = watched.end()
    assert set(tallies(records)[0]) == {"Linear", "Sequential", "Sequential.0"}
    assert [module.name for module in layouts(records)[0].modules] == ["Linear", "Sequential", "Sequential.0"]


def test_a_module_that_is_added_later_is_told_with_a_new_layout() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer, every=1) as watched:
        for place in range(2):
            model(torch.ones(1, 2)).sum().backward()
            if not place:
                model.append(nn.Linear(2, 2))
            optimizer.step()
        records = watched.end()
    assert [[module.name for module in layout.modules] for layout in layouts(records)][-1] == ["", "0", "1"]
    assert set(tallies(records)[1]) == {"", "0", "1"}
    told = [type(record) for record in records if isinstance(record, wire.Layout | wire.Tally)]
    assert told.index(wire.Tally) > 0


def test_wrappers_leave_no_trace_and_are_heard_once() -> None:
    torch.manual_seed(0)
    first, inner = nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    model, plain = nn.Sequential(first, checkpoint_wrapper(inner)), nn.Sequential(first, inner)
    batch = torch.randn(2, WIDTH)
    account = Account(copy.deepcopy(plain))
    account.model(batch).sum().backward()
    told = trained(model, lambda: model(batch).sum())
    assert [(module.name, module.kind) for module in layouts(told)[0].modules] == [
        ("", "Sequential"),
        ("0", "Linear"),
        ("1", "Sequential"),
        ("1.0", "Linear"),
        ("1.1", "Tanh"),
    ]
    assert [(p.name, p.module) for p in layouts(told)[0].parameters][2:] == [("1.0.weight", "1.0"), ("1.0.bias", "1.0")]
    assert tallies(told)[0] == account.numbers()


def test_more_modules_than_the_wire_carries_are_watched_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalescope.taps.modules.named.MAX_MODULES", 3)
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(5)))
    records = trained(model, lambda: model(torch.ones(1, 1)).sum())
    assert set(tallies(records)[0]) == {"", "0", "1"}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_scripted_modules_take_no_hook_and_keep_nobody_from_being_heard() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    model = nn.Sequential(nn.Linear(2, 2), scripted, nn.Linear(2, 2))
    records = trained(model, lambda: model(torch.ones(1, 2)).sum())
    assert set(tallies(records)[0]) == {"", "0", "2"}


def test_a_module_that_refuses_a_hook_keeps_nobody_from_being_heard() -> None:
    class Refusing(nn.Linear):
        def register_forward_hook(self, *_: object, **__: object) -> RemovableHandle:
            raise RuntimeError("no hooks here")

    model = nn.Sequential(Refusing(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer, every=10) as watched:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        watched.tap.remove()
        assert set(tallies(watched.recorder.drain())[0]) == {"", "1"}
        assert watched.edge.errors == 1
