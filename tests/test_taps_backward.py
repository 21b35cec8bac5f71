"""What a backward pass tells: order and formats, learnt at first, after which an update costs the same at any size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scalescope.rows import indexes
from scalescope.taps.backward.grid import GridCheck, check_grid
from scalescope.wire import Layout, Sample
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils.checkpoint import checkpoint

from tests.small_training import Chain, Course, Watched, bf16, columns, fp16, fp32, layouts, samples, watching, windows


def hooks(model: nn.Module) -> int:
    """How many parameters still have a hook."""
    return sum(bool(hooks_of(parameter)) for parameter in model.parameters())


def hooks_of(parameter: nn.Parameter) -> list[object]:
    before, after = parameter._backward_hooks, parameter._post_accumulate_grad_hooks
    return [*(before or {}).values(), *(after or {}).values()]


def python_hooks(model: nn.Module) -> int:
    """How many parameters run a line of Python when their gradient comes."""
    return sum(
        any(type(hook).__module__.startswith("scalescope") for hook in hooks_of(parameter))
        for parameter in model.parameters()
    )


def formats(watched: Watched) -> list[str | None]:
    return [parameter.compute_format for parameter in layouts(watched.end())[-1].parameters]


def test_the_order_is_that_of_the_gradients() -> None:
    course = Course()
    seen: list[torch.Tensor] = []
    for parameter in course.model.parameters():
        parameter.register_post_accumulate_grad_hook(seen.append)
    with watching(course.model, course.optimizer) as watched:
        course.run(1)
        first, last = layouts(watched.end())
    assert (first.order, first.backward) == ("unknown", [])
    assert last.order == "observed"
    place = {id(parameter): index for index, parameter in enumerate(course.model.parameters())}
    assert last.backward == [place[id(parameter)] for parameter in seen]
    assert [entry.name for entry in first.parameters] == [entry.name for entry in last.parameters]


def test_after_the_first_update_one_parameter_keeps_its_hook_and_two_are_counted() -> None:
    course = Course()
    with watching(course.model, course.optimizer) as watched:
        assert (hooks(course.model), python_hooks(course.model)) == (8, 8)
        course.run(1)
        assert (hooks(course.model), python_hooks(course.model)) == (2, 1)
        course.run(5)
        # By now an update is like the one before, and the counts tell of it.
        assert (hooks(course.model), python_hooks(course.model)) == (2, 0)
        watched.end()
    assert hooks(course.model) == 0


def test_what_was_listened_to_once_costs_a_backward_nothing_any_more() -> None:
    # torch goes on calling what once came after a gradient, though its hooks be gone; and what comes before, unless
    # it is told that there is nothing.
    course = Course()
    with watching(course.model, course.optimizer) as watched:
        course.run(3)
        traces = [bool(hooks_of(each)) or each._backward_hooks is not None for each in course.model.parameters()]
        called = [each._post_accumulate_grad_hooks is not None for each in course.model.parameters()]
        watched.end()
    assert sum(traces) == sum(called) == 2


def test_gradients_that_tell_no_format_cost_an_ordinary_update_nothing() -> None:
    # That of a bias that is added last is one, in any format.
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Linear(2, 2) for _ in range(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    left: list[int] = []
    with watching(model, optimizer, every=10) as watched:
        for _ in range(12):
            optimizer.zero_grad()
            torch.stack([layer(torch.randn(1, 2)).sum() for layer in model]).sum().backward()
            optimizer.step()
            left.append(python_hooks(model))
        watched.end()
    assert left[8] == 0
    # They are looked at again where an update is heard in full.
    assert left[9] == left[1] > 1


def test_every_optimizer_keeps_two_hooks_though_it_steps_late() -> None:
    one, other = Chain(), Chain()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (one, other)]
    with watching([one, other], optimizers) as watched:
        for _ in range(2):
            one(torch.ones(2, 8)).sum().backward()
            optimizers[0].step()
        assert (hooks(one), hooks(other)) == (2, 8)
        for _ in range(3):  # a late parameter has all of them listened to until it was heard among them
            for model, optimizer in zip((other, one), reversed(optimizers), strict=True):
                model(torch.ones(2, 8)).sum().backward()
                optimizer.step()
        assert (hooks(one), hooks(other)) == (2, 2)
        last = layouts(watched.end())[-1]
    assert sorted(last.backward) == list(range(16))
    assert all(index >= 8 for index in last.backward[8:])


def test_a_parameter_that_never_gets_a_gradient_does_not_delay_the_others() -> None:
    course = Course()
    course.model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    course.optimizer.add_param_group({"params": [course.model.get_parameter("unused")]})
    with watching(course.model, course.optimizer) as watched:
        course.run(3)
        assert hooks(course.model) == 3
        last = layouts(watched.end())[-1]
    assert len(last.backward) == 8
    assert last.order == "observed"


def test_each_parameter_tells_the_format_its_gradient_was_computed_in() -> None:
    for precision, expected in ((fp16, "fp16"), (bf16, "bf16"), (fp32, "fp32")):
        scaler = torch.amp.GradScaler("cpu") if precision is fp16 else None
        course = Course(precision=precision, scaler=scaler)
        with watching(course.model, course.optimizer, scaler) as watched:
            course.run(16)  # small gradients may take more than one look
            assert formats(watched) == [expected] * 8


def test_the_format_is_told_per_parameter() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lower, self.upper = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            with fp16():
                middle = self.lower(batch)
            output: torch.Tensor = self.upper(torch.tanh(middle.float()))
            return output

    torch.manual_seed(0)
    model = Mixed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer) as watched:
        (model(torch.randn(4, 8)) ** 2).mean().backward()
        optimizer.step()
        assert formats(watched) == ["fp16", "fp32"]


def test_gradients_that_stay_zero_are_looked_at_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[torch.Tensor] = []

    def look(gradient: torch.Tensor) -> GridCheck:
        looked.append(gradient)
        return check_grid(gradient)

    monkeypatch.setattr("scalescope.taps.backward.formats.check_grid", look)
    model = nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer):
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.zeros(1, 3)).sum().backward()
            optimizer.step()
    assert len(looked) == 5


def test_accumulation_does_not_hide_the_format() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    with watching(course.model, course.optimizer, course.scaler) as watched:
        course.optimizer.zero_grad()
        for _ in range(4):
            course.backward()
        course.step()
        assert formats(watched) == ["fp16"] * 8


def test_a_gradient_that_tells_nothing_is_asked_again_at_later_updates() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"), overflows={0, 1}, overflow_at=1)
    with watching(course.model, course.optimizer, course.scaler) as watched:
        course.run(1)
        assert hooks(course.model) == 5  # of the two overflowing layers, and the first of all
        course.run(3)
        assert hooks(course.model) == 2
        assert formats(watched) == ["fp16"] * 8


def test_a_gradient_that_never_tells_is_given_up() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer) as watched:
        for _ in range(20):
            optimizer.zero_grad()
            (model(torch.ones(1, 4)).sum() * 0).backward()
            optimizer.step()
        assert hooks(model) == 2
        assert formats(watched) == [None, None]


def test_a_compiled_model_has_the_reverse_of_the_forward_order() -> None:
    course = Course()
    course.model.compile(backend="aot_eager")
    with watching(course.model, course.optimizer) as watched:
        course.run(2)
        assert hooks(course.model) == 2
        last = layouts(watched.end())[-1]
    assert (last.order, last.backward) == ("forward", [7, 6, 5, 4, 3, 2, 1, 0])


def test_parameters_that_join_later_are_in_the_layout_before_the_sample_that_holds_them() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"), overflows=range(20), overflow_at=0)
    joined = nn.Linear(8, 8)
    with watching(course.model, course.optimizer, course.scaler, every=1) as watched:
        course.run(2)
        course.optimizer.add_param_group({"params": list(joined.parameters())})
        for _ in range(3):
            course.optimizer.zero_grad()
            course.backward()
            joined(torch.ones(1, 8)).sum().backward()
            course.step()
        known, seen = 0, 0
        for record in watched.end():
            if isinstance(record, Layout):
                known = len(record.parameters)
            if isinstance(record, Sample):
                seen = max(seen, *indexes(record).tolist())
                assert seen < known
    assert (known, seen) == (10, 9)


class Heads(nn.Module):
    """A trunk under two heads; a bad backward makes the gradient below the head non-finite."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.middle, self.a, self.b = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, batch: torch.Tensor, head: str) -> torch.Tensor:
        lower = torch.tanh(self.middle(torch.tanh(self.trunk(batch))))
        found: torch.Tensor = getattr(self, head)(lower)
        return found


def test_a_parameter_that_gets_its_first_gradient_late_finds_its_place_in_the_order() -> None:
    model = Heads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(model, optimizer) as watched:
        for step in range(6):
            optimizer.zero_grad()
            model(torch.randn(4, 8), "ab"[step % 2]).square().mean().backward()
            optimizer.step()
        last = layouts(watched.end())[-1]
    names = [last.parameters[index].name.split(".")[0] for index in last.backward]
    assert (last.order, list(dict.fromkeys(names))) == ("observed", ["a", "b", "middle", "trunk"])


def test_a_function_compiled_from_outside_is_not_told_as_observed() -> None:
    model = Chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compiled = torch.compile(lambda batch: model(batch).square().mean(), backend="aot_eager")
    with watching(model, optimizer) as watched:
        for _ in range(2):
            optimizer.zero_grad()
            with fp16():
                loss = compiled(torch.randn(4, 8))
            loss.backward()
            optimizer.step()
        assert layouts(watched.end())[-1].order == "forward"
    torch.compiler.reset()


def test_a_layer_that_is_frozen_later_moves_no_value_to_another_update() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(model, optimizer, every=2) as watched:
        for step in range(8):
            model[0].requires_grad_(step < 4)
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            watched.log(loss=step)
            optimizer.step()
        records = watched.end()
    assert columns(records)["loss"] == {step: float(step) for step in range(8)}
    assert [sample.micro_batches for sample in samples(records).values()] == [1] * 4


def test_a_last_layer_that_is_frozen_later_moves_no_value_to_another_update() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(model, optimizer, every=2) as watched:
        for step in range(8):
            model[1].requires_grad_(step < 3)
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            watched.log(loss=step)
            optimizer.step()
        assert python_hooks(model) == 2
        records = watched.end()
    assert columns(records)["loss"] == {step: float(step) for step in range(8)}
    assert [sample.micro_batches for sample in samples(records).values()] == [1] * 4


def test_a_generator_whose_last_layer_is_frozen_still_closes_the_update_of_the_discriminator() -> None:
    one, other = Chain(), Chain()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (one, other)]
    with watching([one, other], optimizers) as watched:
        for step in range(6):
            other.layers[-1].requires_grad_(step < 3)
            for model, optimizer in zip((one, other), optimizers, strict=True):
                optimizer.zero_grad()
                model(torch.ones(2, 8)).sum().backward()
                optimizer.step()
                watched.log(loss=step)
        records = watched.end()
    assert list(columns(records)["loss"].values()) == [step for step in range(6) for _ in range(2)]


def test_passes_that_begin_to_take_different_ways_leave_the_count_unknown() -> None:
    model = Heads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(model, optimizer, every=1) as watched:
        for step in range(6):
            optimizer.zero_grad()
            for head in "ab" if step > 2 else "a":
                model(torch.randn(4, 8), head).square().mean().backward()
            optimizer.step()
        assert [sample.micro_batches for sample in samples(watched.end()).values()] == [1, 1, 1, None, None, None]


def test_a_backward_that_zero_grad_threw_away_does_not_count() -> None:
    course = Course()
    with watching(course.model, course.optimizer, every=1) as watched:
        for _ in range(3):
            for _ in range(3):
                course.optimizer.zero_grad()
                course.backward()
            course.backward()
            course.step()
        assert [sample.micro_batches for sample in samples(watched.end()).values()] == [2, 2, 2]


def test_a_block_that_runs_several_times_in_one_pass_leaves_the_count_unknown() -> None:
    block, head = nn.Linear(8, 8), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*block.parameters(), *head.parameters()], lr=0.01)
    with watching([block, head], optimizer, every=1) as watched:
        for _ in range(3):
            optimizer.zero_grad()
            batch = torch.randn(4, 8, requires_grad=True)
            for _ in range(3):
                batch = checkpoint(lambda given: torch.tanh(block(given)), batch, use_reentrant=True)
            head(batch).square().mean().backward()
            optimizer.step()
        assert [sample.micro_batches for sample in samples(watched.end()).values()] == [None] * 3


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")
def test_sharded_gradients_are_looked_at_where_they_are(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with watching(model, optimizer, every=1) as watched:
            for _ in range(5):
                optimizer.zero_grad()
                with CommDebugMode() as calls:
                    model(torch.randn(4, 8, requires_grad=True)).square().mean().backward()
                    optimizer.step()
                # What looking at a sharded tensor as a whole would call; sharding itself calls another.
                assert not any("all_gather_into_tensor" in str(name) for name in calls.get_comm_counts())
            records = watched.end()
    finally:
        dist.destroy_process_group()
    assert [sample.micro_batches for sample in samples(records).values()] == [1] * 5


def test_gradients_that_are_asked_for_and_added_to_nothing_are_none_of_the_training() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
    with watching(course.model, course.optimizer, course.scaler) as watched:
        for _ in range(3):
            course.optimizer.zero_grad()
            # In fp32, which is not what the training computes in.
            loss = course.model(course.batches[0]).square().mean()
            torch.autograd.grad(loss, list(course.model.parameters()))
            course.backward()
            course.step()
        records = watched.end()
    assert {told["micro_batches"] for told in windows(records).values()} == {1}
    assert {parameter.compute_format for parameter in layouts(records)[-1].parameters} == {"fp16"}
