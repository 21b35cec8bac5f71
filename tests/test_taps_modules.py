"""What modules answer and get back, against an account of one's own; and training as it is without."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from scalescope import wire
from torch import nn
from torch.utils import checkpoint

from tests.small_modules import Account, reasons, tallies
from tests.small_training import Course, bf16, fp16, fp32, layouts, samples, watching

WIDTH = 4


def trained(
    model: nn.Module, loss: Callable[[], torch.Tensor], *, updates: int = 1, every: int = 1
) -> list[wire.Record]:
    """What is told of a few updates of ``model``, in which no tap failed."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(model, optimizer, every=every) as watched:
        for _ in range(updates):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        return watched.end()


def no_hooks(model: nn.Module) -> bool:
    return not any(
        getattr(module, kind)
        for module in model.modules()
        for kind in (
            "_forward_hooks",
            "_forward_hooks_with_kwargs",
            "_forward_hooks_always_called",
            "_forward_pre_hooks",
            "_forward_pre_hooks_with_kwargs",
            "_backward_hooks",
            "_backward_pre_hooks",
        )
    )


@pytest.mark.parametrize("precision", [fp16, bf16, fp32], ids=["fp16", "bf16", "fp32"])
def test_what_is_told_is_what_an_account_of_its_own_finds(
    precision: Callable[[], AbstractContextManager[object]],
) -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"), precision=precision)
    account = Account(course.model)
    truth = {}
    with watching(course.model, course.optimizer, course.scaler, every=3) as watched:
        for step in range(7):
            course.update()
            truth[step] = account.numbers()
        records = watched.end()
    told = tallies(records)
    assert list(told) == [0, 3, 6]
    assert set(told[0]) == {"", "layers.0", "layers.1", "layers.2", "layers.3"}
    assert told == {step: truth[step] for step in told}
    assert set(reasons(records).values()) == {"periodic"}


def test_modules_are_heard_when_gradients_are_sampled_and_densely_after_a_skip() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"), overflows={7})
    with watching(course.model, course.optimizer, course.scaler, every=5) as watched:
        course.run(20)
        records = watched.end()
    # Gradients of the skipped update are measured after the fact; its modules were not heard.
    assert set(samples(records)) - {7} == set(tallies(records)) == {0, 5, *range(8, 16)}
    assert reasons(records) == {step: "periodic" if step % 5 == 0 else "request" for step in tallies(records)}


def test_of_a_window_the_first_micro_batch_is_heard() -> None:
    course = Course(precision=fp32)
    account = Account(course.model)
    with watching(course.model, course.optimizer, every=2) as watched:
        course.optimizer.zero_grad()
        course.backward()
        truth = account.numbers()
        for _ in range(3):
            course.backward()
        course.step()
        told = tallies(watched.end())
    assert told[0] == truth


def test_of_a_dense_window_every_micro_batch_is_heard() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"), overflows={0})
    account = Account(course.model)
    with watching(course.model, course.optimizer, course.scaler, every=100) as watched:
        course.update()
        account.numbers()
        course.optimizer.zero_grad()
        for _ in range(3):
            course.backward()
        truth = account.numbers()
        course.step()
        told = tallies(watched.end())
    assert told[1] == truth
    assert told[1]["layers.0"]["forward_numel"] == 3 * 4 * 8


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


def test_a_recurrent_module_answers_several_tensors() -> None:
    torch.manual_seed(0)
    model = nn.LSTM(WIDTH, 3, num_layers=2)
    account = Account(model, lambda answer: [answer[0], *answer[1]])  # type: ignore[index]

    def loss() -> torch.Tensor:
        output, (hidden, cell) = model(torch.randn(5, 2, WIDTH))
        total: torch.Tensor = output.sum() + hidden.square().sum() + cell.sum()
        return total

    assert tallies(trained(model, loss))[0] == account.numbers()


@dataclass
class Packed:
    scores: torch.Tensor
    note: str
    cache: dict[str, list[torch.Tensor]]


class Packing(nn.Module):
    """Answers a dataclass of tensors of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, batch: torch.Tensor) -> Packed:
        scores = self.inner(batch)
        others = [scores * 3, scores.long(), torch.complex(scores, scores), scores[:0]]
        return Packed(scores, "text", {"cache": others})


def test_only_real_floating_tensors_count_however_they_are_packed() -> None:
    model = Packing()
    batch = torch.ones(2, WIDTH, dtype=torch.float64) * 1e300

    def loss() -> torch.Tensor:
        answer = model(batch)
        total: torch.Tensor = answer.scores.sum() * 1e-300 + answer.cache["cache"][0].sum() * 1e-300
        return total

    told = tallies(trained(model, loss))[0]
    assert told[""]["forward_numel"] == 2 * 2 * WIDTH
    assert told[""]["forward_amax"] == 3 * told["inner"]["forward_amax"] > 1e299
    assert told[""]["forward_nonfinite"] == 0
    assert told["inner"]["grad_output_amax"] == 4e-300


class Answers(nn.Module):
    """Answers whatever it is told to, beside a loss that trains."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.answer = answer

    def forward(self) -> object:
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [None, 3.0, "text", [], torch.arange(3), torch.zeros(2, dtype=torch.complex64), object(), {"a": None}],
    ids=["none", "number", "text", "nothing", "integers", "complex", "object", "mapping"],
)
def test_an_answer_without_floating_tensors_has_no_row(answer: object) -> None:
    model = Answers(answer)

    def loss() -> torch.Tensor:
        model()
        return model.weight.sum()

    assert tallies(trained(model, loss)) == {}


@pytest.mark.parametrize(
    ("answer", "amax", "nonfinite", "numel"),
    [
        (torch.zeros(0, 3), 0.0, 0, 0),
        (torch.tensor(-2.5), 2.5, 0, 1),
        (torch.tensor([torch.nan, -7.0, torch.inf, 3.0]), 7.0, 2, 4),
        (torch.tensor([torch.nan, -torch.inf]), 0.0, 2, 2),
        (torch.tensor([65504.0, torch.inf], dtype=torch.float16), 65504.0, 1, 2),
        (torch.tensor([1.0, -448.0]).to(torch.float8_e4m3fn), 448.0, 0, 2),
        (
            torch.sparse_coo_tensor(
                torch.tensor([[0, 0, 5]]), torch.tensor([2.0, 2.0, torch.inf]), (9,), check_invariants=True
            ),
            4.0,
            1,
            2,
        ),
        (torch.ones(2, 1).expand(2, 7), 1.0, 0, 14),
        (torch.empty(3, device="meta"), None, None, None),
    ],
    ids=["empty", "scalar", "both", "none finite", "half", "fp8", "sparse", "expanded", "meta"],
)
def test_the_largest_finite_magnitude_and_the_rest_are_exact(
    answer: torch.Tensor, amax: float | None, nonfinite: int, numel: int
) -> None:
    model = Answers(answer)

    def loss() -> torch.Tensor:
        model()
        return model.weight.sum()

    expected = {"forward_amax": amax, "forward_nonfinite": nonfinite, "forward_numel": numel}
    assert tallies(trained(model, loss)) == ({} if amax is None else {0: {"": expected}})


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


def test_selective_checkpointing_keeps_its_list_of_operations() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    # All that we compute with is kept and taken back in turn: ours among them would shift the others.
    kept = [
        torch.ops.aten.aminmax.default,
        torch.ops.aten.abs.default,
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
    ]
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
    assert set(told) == {"", "0", "1", "2"}
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_evaluation_is_no_part_of_training() -> None:
    course = Course(precision=fp32)
    account = Account(course.model)
    with watching(course.model, course.optimizer, every=1) as watched:
        with torch.no_grad():
            course.model(torch.full((9, 8), 1e6))
        with torch.inference_mode():
            course.model(torch.full((9, 8), 1e6))
        account.numbers()
        course.update()
        truth = account.numbers()
        assert tallies(watched.end())[0] == truth


def test_what_a_model_runs_without_gradients_inside_its_own_forward_counts() -> None:
    class Teaching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher, self.student = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                target = self.teacher(batch)
            answer: torch.Tensor = (self.student(batch) - target).square()
            return answer

    model = Teaching()
    account = Account(model)
    assert tallies(trained(model, lambda: model(torch.randn(2, WIDTH)).mean()))[0] == account.numbers()


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


def test_a_gradient_penalty_s_double_backward_is_heard_as_it_happens() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    account = Account(model)

    def loss() -> torch.Tensor:
        batch = torch.randn(3, WIDTH, requires_grad=True)
        score = model(batch).sum()
        (slope,) = torch.autograd.grad(score, batch, create_graph=True)
        total: torch.Tensor = score + (slope.norm() - 1).square()
        return total

    assert tallies(trained(model, loss))[0] == account.numbers()


def test_a_model_whose_forward_is_never_called_is_heard_by_its_parts() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    account = Account(model)
    records = trained(model, lambda: model[1](model[0](torch.ones(1, 2))).sum())
    assert tallies(records)[0] == account.numbers()
    assert [module.name for module in layouts(records)[0].modules] == ["0", "1"]


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


def test_two_watched_models_carry_their_names_and_share_no_row() -> None:
    one, other = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)
    with watching([one, other], optimizer, every=1) as watched:
        other(one(torch.ones(1, 2))).sum().backward()
        optimizer.step()
        records = watched.end()
    assert set(tallies(records)[0]) == {"Linear", "Sequential", "Sequential.0"}
    assert [module.name for module in layouts(records)[0].modules] == ["Linear", "Sequential", "Sequential.0"]


def test_two_trainings_hear_their_own_modules() -> None:
    one, other = Course(precision=fp32), Course(precision=bf16)
    with (
        watching(one.model, one.optimizer, every=1) as first,
        watching(other.model, other.optimizer, every=1) as second,
    ):
        one.update()
        other.update()
        for watched in (first, second):
            assert tallies(watched.end())[0][""]["forward_numel"] == 32


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


def test_values_are_as_they_stood_scaled() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10), precision=fp32)
    with watching(course.model, course.optimizer, course.scaler, every=1) as watched:
        course.update()
        (tally,) = [r for r in watched.end() if isinstance(r, wire.Tally) and r.subject == "module"]
    assert tally.scale == 2.0**10


def test_a_forward_that_is_repeated_for_ever_keeps_a_bounded_account() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer, every=1) as watched:
        for _ in range(9_000):
            model(torch.ones(1, 1))
        assert len(watched.tap._modules_tap._entries) <= 16_384
        watched.end()


def test_losses_weights_and_random_draws_are_those_of_an_unwatched_training() -> None:
    courses = [Course(scaler=torch.amp.GradScaler("cpu", init_scale=2.0**24), overflows={9}) for _ in range(2)]
    draws = []
    for course, watched in zip(courses, (False, True), strict=True):
        torch.manual_seed(1)
        course.model.layers.insert(2, nn.Dropout(0.5))
        with watching(course.model, course.optimizer, course.scaler, every=1) if watched else nullcontext():
            course.run(30)
        draws.append(torch.rand(3))
    assert courses[0].losses == courses[1].losses
    assert torch.equal(*draws)
    for one, other in zip(courses[0].weights(), courses[1].weights(), strict=True):
        assert torch.equal(one, other)
