"""Hooks that come and go: what runs twice, copies, pickles, failures, and nothing left behind."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import nn
from torch.jit import _recursive
from torch.utils import checkpoint

from tests.small_modules import Account, no_hooks, tallies, trained
from tests.small_training import Course, fp32, watching

WIDTH = 4


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        batch = self.first(batch)
        answer: torch.Tensor = checkpoint.checkpoint(self.second, batch, use_reentrant=self.reentrant)
        return answer


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_checkpointing_runs_twice_is_heard_once(reentrant: bool) -> None:
    torch.manual_seed(0)
    batches = torch.randn(2, 3, WIDTH)
    model = Checkpointed(reentrant=reentrant)
    plain = nn.Sequential(copy.deepcopy(model.first), *copy.deepcopy(model.second))
    account = Account(plain)
    plain(batches[0]).square().mean().backward()
    truth = account.numbers()
    told = tallies(trained(model, lambda: model(batches[0]).square().mean()))[0]
    names = {"first": "0", "second.0": "1", "second.1": "2", "second": "2", "": "2"}
    assert told == {name: truth[plain_name] for name, plain_name in names.items()}


class Normalized(nn.Module):
    """Divides twice its input by the largest value of that, an operation that we look at values with as well."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return 2 * batch / torch.aminmax(2 * batch).max


def test_selective_checkpointing_keeps_its_list_of_operations() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Normalized(), nn.Linear(WIDTH, WIDTH), Normalized())
    kept = [torch.ops.aten.aminmax.default, torch.ops.aten.addmm.default]
    contexts = partial(checkpoint.create_selective_checkpoint_contexts, kept)
    batch = torch.randn(3, WIDTH)

    def loss(net: nn.Module) -> torch.Tensor:
        answer = checkpoint.checkpoint(net, batch, use_reentrant=False, context_fn=contexts)
        total: torch.Tensor = answer.abs().sum()
        return total

    plain = copy.deepcopy(model)
    loss(plain).backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watching(model, optimizer) as watched:
        loss(model).backward()
        optimizer.step()
        told = tallies(watched.end())[0]
    assert set(told) == {"", "0", "1", "2", "3"}
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_a_deep_copy_made_while_hooks_hang_reports_nothing_and_loses_them() -> None:
    course = Course(precision=fp32)
    with watching(course.model, course.optimizer, every=1) as watched:
        course.update()
        average = copy.deepcopy(course.model)
        assert not no_hooks(average)
        average(torch.full((9, 8), 1e6)).sum().backward()
        assert no_hooks(average)
        course.update()
        assert tallies(watched.end())[1][""]["forward_numel"] == 32


def test_a_pickle_made_while_hooks_hang_loads_and_runs_where_the_package_is_absent(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = tmp_path_factory.mktemp("pickle") / "model.pkl"
    with watching(model, optimizer, every=1) as watched:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        path.write_bytes(pickle.dumps(model))
        torch.save(model, io.BytesIO())
        watched.end()
    code = (
        "import sys, pickle, torch\n"
        "sys.modules['scalescope'] = None\n"
        f"model = pickle.load(open({str(path)!r}, 'rb'))\n"
        "assert model(torch.ones(1, 2)).shape == (1, 2)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_closing_leaves_every_hook_as_it_was() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    heard: list[int] = []
    course.model.layers[1].register_forward_hook(lambda *_: heard.append(1))
    before = {name: dict(module._forward_hooks) for name, module in course.model.named_modules()}
    with watching(course.model, course.optimizer, course.scaler, every=1) as watched:
        course.run(2)
        assert not no_hooks(course.model)
        watched.end()
    assert {name: dict(module._forward_hooks) for name, module in course.model.named_modules()} == before
    course.model.layers[1]._forward_hooks.clear()
    assert no_hooks(course.model)
    assert len(heard) == 2


def test_an_unsampled_update_finds_no_hook() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    with watching(course.model, course.optimizer, course.scaler, every=4) as watched:
        hooked = []
        for _ in range(9):
            hooked.append(not no_hooks(course.model))
            course.update()
        watched.end()
    assert hooked == [True, False, False, False, True, False, False, False, True]


def test_a_forward_that_raises_leaves_nothing_behind() -> None:
    class Raising(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.raises = True

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            batch = self.first(batch)
            if self.raises:
                raise MemoryError
            answer: torch.Tensor = self.second(batch)
            return answer

    model = Raising()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    account = Account(model)
    with watching(model, optimizer, every=1) as watched:
        with pytest.raises(MemoryError):
            model(torch.ones(7, WIDTH) * 1e6)
        account.numbers()
        model.raises = False
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        assert tallies(watched.end())[0] == account.numbers()
        model.raises = True
    for handle in list(model._forward_hooks):
        del model._forward_hooks[handle]
    assert not model._forward_pre_hooks


def test_transforms_of_functions_are_left_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    account_free = dict(model.named_parameters())
    batch = torch.randn(5, WIDTH)

    def loss() -> torch.Tensor:
        per_example = torch.func.vmap(model)(batch)
        slopes = torch.func.grad(lambda p: torch.func.functional_call(model, p, (batch,)).sum())(account_free)
        assert all(slope.isfinite().all() for slope in slopes.values())
        total: torch.Tensor = per_example.sum()
        return total

    assert tallies(trained(model, loss)) == {}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_model_may_be_scripted_while_hooks_hang_and_is_heard_again_afterwards() -> None:
    own = _recursive.create_script_module
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer, every=1) as watched:
        scripted = torch.jit.script(model)
        for _ in range(2):
            assert torch.equal(scripted(torch.ones(1, 2)), model(torch.ones(1, 2)))
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        assert set(tallies(watched.end())) == {1}
    assert _recursive.create_script_module is own


def test_a_cuda_graph_that_is_being_captured_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer, every=1) as watched:
        # There is no device here to capture with.
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        model(torch.ones(1, 2)).sum().backward()
        monkeypatch.undo()
        optimizer.step()
        assert tallies(watched.end()) == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a device it would be captured")
def test_a_model_may_be_captured_as_a_cuda_graph_while_hooks_hang() -> None:
    own = torch.cuda.make_graphed_callables
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer, every=1) as watched:
        # Without a device torch comes as far as its look at the hooks, and then finds nothing to capture with.
        with pytest.raises((RuntimeError, AssertionError)) as refused:
            torch.cuda.make_graphed_callables(model, (torch.ones(1, 2),))
        assert "hooks" not in str(refused.value)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert set(tallies(watched.end())) == {1}
    assert torch.cuda.make_graphed_callables is own
