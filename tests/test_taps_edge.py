"""The edge: whatever fails in a tap stays there, and what a tap costs is known."""

from __future__ import annotations

import time

import pytest
import torch
from scalescope.taps.edge import Edge, eager
from torch._dynamo.testing import CompileCounter


def test_a_result_passes() -> None:
    assert Edge().call(divmod, 7, 2) == (3, 1)


def test_a_failure_is_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    edge = Edge()
    assert edge.call(int, "seven") is None
    assert edge.call(int, "eight") is None
    assert edge.errors == 2
    assert len(caplog.records) == 1
    assert "seven" in caplog.text


def test_what_is_silent_does_nothing() -> None:
    edge = Edge()
    edge.silent = True
    assert edge.call(divmod, 7, 2) is None
    assert edge.call(int, "seven") is None
    assert edge.errors == 0


def test_what_stops_a_process_passes() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Edge().call(stop)


def test_costs_are_kept_apart_for_sampled_updates_and_others() -> None:
    edge = Edge()
    assert edge.cost(sampled=True).median_us is None
    for _ in range(3):
        edge.call(sum, range(1000))
        edge.charge(sampled=False)
    edge.call(sum, range(100_000))
    edge.charge(sampled=True)
    plain, sampled = edge.cost(sampled=False), edge.cost(sampled=True)
    assert (plain.updates, sampled.updates) == (3, 1)
    assert plain.median_us is not None
    assert sampled.last_us is not None
    assert 0 < plain.median_us < sampled.last_us


def test_what_is_guarded_within_a_call_costs_once_and_fails_alone() -> None:
    edge = Edge()

    def work() -> str:
        assert edge.guard(int, "seven") is None
        return "done"

    start = time.perf_counter_ns()
    assert edge.call(work) == "done"
    took_us = (time.perf_counter_ns() - start) / 1e3
    edge.charge(sampled=False)
    assert edge.errors == 1
    assert 0 < (edge.cost(sampled=False).last_us or 0) <= took_us


def test_failures_cost_too() -> None:
    edge = Edge()
    edge.call(int, "seven")
    edge.charge(sampled=False)
    assert (edge.cost(sampled=False).last_us or 0) > 0


class Seen:
    """Torch's own word, at each call, on whether it was traced."""

    def __init__(self) -> None:
        self.traced: list[bool] = []

    @eager
    def __call__(self, tensor: torch.Tensor) -> None:
        self._note(tensor)

    def _note(self, tensor: torch.Tensor) -> None:
        self.traced.append(torch.compiler.is_compiling())
        tensor.detach().sin().sum()


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore::UserWarning:torch")
def test_what_is_eager_is_never_traced_by_a_compiled_caller_nor_from_within_one() -> None:
    seen, graphs = Seen(), CompileCounter()
    weight = torch.ones(3, requires_grad=True)
    weight.register_post_accumulate_grad_hook(seen)

    @torch.compile(backend=graphs)
    def step(batch: torch.Tensor) -> torch.Tensor:
        batch = batch.cos()
        seen(batch)
        (batch * weight).sum().backward()
        return batch + 1

    for _ in range(3):
        step(torch.ones(3))
    assert seen.traced == [False] * 6
    # The caller's own arithmetic and nothing of ours: cos, then mul and sum, then add.
    assert graphs.op_count == 4
    torch.compiler.reset()
