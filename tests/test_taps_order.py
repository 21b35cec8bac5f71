"""What a backward pass tells: order and formats, learnt at first, after which an update costs the same at any size."""

from __future__ import annotations

import torch
from scalescope.wire import Layout, Sample, indexes
from torch import nn

from tests.small_training import Chain, Course, Watched, bf16, fp16, fp32, layouts, watching


def hooks(model: nn.Module) -> int:
    """How many parameters still have a hook."""
    return sum(bool(parameter._post_accumulate_grad_hooks) for parameter in model.parameters())


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


def test_after_the_first_update_one_parameter_keeps_its_hook() -> None:
    course = Course()
    with watching(course.model, course.optimizer) as watched:
        assert hooks(course.model) == 8
        course.run(1)
        assert hooks(course.model) == 1
        course.run(5)
        assert hooks(course.model) == 1
        watched.end()
    assert hooks(course.model) == 0


def test_every_optimizer_keeps_one_hook_though_it_steps_late() -> None:
    one, other = Chain(), Chain()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (one, other)]
    with watching([one, other], optimizers) as watched:
        for _ in range(2):
            one(torch.ones(2, 8)).sum().backward()
            optimizers[0].step()
        assert (hooks(one), hooks(other)) == (1, 8)
        other(torch.ones(2, 8)).sum().backward()
        optimizers[1].step()
        assert (hooks(one), hooks(other)) == (1, 1)
        last = layouts(watched.end())[-1]
    assert sorted(last.backward) == list(range(16))
    assert all(index >= 8 for index in last.backward[8:])


def test_a_parameter_that_never_gets_a_gradient_does_not_delay_the_others() -> None:
    course = Course()
    course.model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    course.optimizer.add_param_group({"params": [course.model.get_parameter("unused")]})
    with watching(course.model, course.optimizer) as watched:
        course.run(3)
        assert hooks(course.model) == 2
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


def test_accumulation_does_not_hide_the_format() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    with watching(course.model, course.optimizer, course.scaler) as watched:
        course.optimizer.zero_grad()
        for _ in range(4):
            course.backward()
        course.step()
        assert formats(watched) == ["fp16"] * 8


def test_a_gradient_that_tells_nothing_is_asked_again_at_the_next_update() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"), overflows={0, 1}, overflow_at=1)
    with watching(course.model, course.optimizer, course.scaler) as watched:
        course.run(1)
        assert hooks(course.model) == 4  # of the two overflowing layers, the one that counts among them
        course.run(2)
        assert hooks(course.model) == 1
        assert formats(watched) == ["fp16"] * 8


def test_a_gradient_that_never_tells_is_given_up() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer) as watched:
        for _ in range(20):
            optimizer.zero_grad()
            (model(torch.ones(1, 4)).sum() * 0).backward()
            optimizer.step()
        assert hooks(model) == 1
        assert formats(watched) == [None, None]


def test_a_compiled_model_has_the_reverse_of_the_forward_order() -> None:
    course = Course()
    course.model.compile(backend="aot_eager")
    with watching(course.model, course.optimizer) as watched:
        course.run(2)
        assert hooks(course.model) == 1
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
