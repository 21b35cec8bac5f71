"""Compiled models: whole graphs stay whole, nothing is compiled anew for us, and what can be heard is heard."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from tests.small_modules import Account, tallies
from tests.small_training import layouts, watching

# Torch's compiler warns, watched or not, when an input of a graph comes out of another module.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")

WIDTH = 4
Run = Callable[[torch.Tensor], torch.Tensor]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.act = nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.act(self.inner(batch))
        return answer


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.second(self.first(batch))
        return answer


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compiled(function: Run | nn.Module) -> Run:
    made: Run = torch.compile(function, backend="eager", fullgraph=True)
    return made


def outside(model: Net) -> tuple[nn.Module, Run]:
    return model, compiled(model)


def before_watching(model: Net) -> tuple[nn.Module, Run]:
    wrapped = torch.compile(model, backend="eager", fullgraph=True)
    assert isinstance(wrapped, nn.Module)
    return wrapped, wrapped


def in_place(model: Net) -> tuple[nn.Module, Run]:
    model.compile(backend="eager", fullgraph=True)
    return model, model


def one_block_in_place(model: Net) -> tuple[nn.Module, Run]:
    model.second.compile(backend="eager", fullgraph=True)
    return model, model


def one_block(model: Net) -> tuple[nn.Module, Run]:
    model.second = torch.compile(model.second, backend="eager", fullgraph=True)  # type: ignore[assignment]
    return model, model


def a_function(model: Net) -> tuple[nn.Module, Run]:
    return model, compiled(lambda batch: model(batch) * 1.0)


ROOT = {""}
FIRST = {"first", "first.inner", "first.act"}

WAYS = [
    pytest.param(outside, ROOT, id="outside"),
    pytest.param(before_watching, ROOT, id="before watch"),
    pytest.param(in_place, ROOT, id="Module.compile"),
    pytest.param(one_block_in_place, ROOT | FIRST | {"second"}, id="a block's Module.compile"),
    pytest.param(one_block, ROOT | FIRST | {"second"}, id="a block"),
    pytest.param(a_function, set(), id="a function"),
]


def train(way: Callable[[Net], tuple[nn.Module, Run]], *, watched: bool, every: int = 2) -> tuple[list[float], object]:
    torch.manual_seed(0)
    model, run = way(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[float] = []

    def update() -> None:
        optimizer.zero_grad()
        loss = run(torch.full((3, WIDTH), 1.0 + len(losses))).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    if not watched:
        for _ in range(6):
            update()
        return losses, None
    with watching(model, optimizer, every=every) as ears:
        for _ in range(6):
            update()
        return losses, ears.end()


@pytest.mark.parametrize(("way", "heard"), WAYS)
def test_a_whole_graph_is_compiled_once_and_what_is_outside_of_it_is_heard(
    way: Callable[[Net], tuple[nn.Module, Run]], heard: set[str]
) -> None:
    losses, records = train(way, watched=True)
    # Hooks come and go with the updates that are sampled, and no guard minds.
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    told = tallies(records)  # type: ignore[arg-type]
    assert {step: set(modules) for step, modules in told.items()} == ({0: heard, 2: heard, 4: heard} if heard else {})
    assert [module.name for module in layouts(records)[0].modules] == [  # type: ignore[arg-type]
        "",
        "first",
        "first.inner",
        "first.act",
        "second",
        "second.inner",
        "second.act",
    ]
    assert losses == train(way, watched=False)[0]


def test_a_model_with_breaks_in_its_graph_is_compiled_no_more_often() -> None:
    class Broken(Net):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            batch = self.first(batch)
            torch._dynamo.graph_break()
            answer: torch.Tensor = self.second(batch)
            return answer

    def way(_: Net) -> tuple[nn.Module, Run]:
        model = Broken()
        return model, torch.compile(model, backend="eager")

    losses, _ = train(way, watched=False)
    graphs = counters["stats"]["unique_graphs"]
    torch._dynamo.reset()
    counters.clear()
    watched, _ = train(way, watched=True)
    assert watched == losses
    assert counters["stats"]["unique_graphs"] == graphs


def test_a_compiled_model_with_the_real_backward_graph_trains_to_the_same_bits() -> None:
    def way(model: Net) -> tuple[nn.Module, Run]:
        model.compile(backend="aot_eager", fullgraph=True)
        return model, model

    assert train(way, watched=True, every=1)[0] == train(way, watched=False)[0]


def test_a_data_parallel_model_is_told_under_its_own_names(tmp_path_factory: pytest.TempPathFactory) -> None:
    store = tmp_path_factory.mktemp("ranks") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    try:
        inner = Net()
        account = Account(inner)
        model = DistributedDataParallel(inner)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with watching(model, optimizer, every=1) as watched:
            model(torch.ones(2, WIDTH)).sum().backward()
            optimizer.step()
            records = watched.end()
    finally:
        torch.distributed.destroy_process_group()
    assert tallies(records)[0] == account.numbers()
    assert layouts(records)[0].modules[0].kind == "Net"
