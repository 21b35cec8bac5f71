"""Where the time of an update goes: the parts of a real loop on the CPU, beside the whole of it."""

from __future__ import annotations

import torch

from tests.small_training import Course, bf16, columns, watching


def test_what_backward_and_step_take_is_timed_on_the_cpu_at_sampled_updates() -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
    with watching(course.model, course.optimizer, course.scaler, every=4) as watched:
        course.run(10)
        found = columns(watched.end())
    assert found["backward_ms"].keys() == found["optimizer_ms"].keys() == {0, 4, 8}
    for step in (4, 8):
        assert 0 < found["backward_ms"][step] + found["optimizer_ms"][step] < found["step_ms"][step]


def test_a_forward_is_timed_where_modules_are_heard_and_with_it_a_backward_without_a_scaler() -> None:
    course = Course(precision=bf16)
    with watching(course.model, course.optimizer, every=2) as watched:
        for step in range(9):
            course.optimizer.zero_grad()
            for _ in range(2 if step == 4 else 1):
                course.backward()
            course.step()
        found = columns(watched.end())
    # Of a second micro-batch neither was heard: a part would be taken for the whole.
    assert found["forward_ms"].keys() == found["backward_ms"].keys() == {0, 2, 6, 8}
    assert 0 < found["forward_ms"][8] + found["backward_ms"][8] + found["optimizer_ms"][8] < found["step_ms"][8]
