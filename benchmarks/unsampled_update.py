"""What an update costs whose gradients are not measured, by the number of parameters: it should not depend on it.

Four figures: how many instructions of Python the hook executes in an update, which no cache and no neighbour changes;
what it clocks of itself; the difference between the same loop watched and unwatched, interleaved in one run; and a
yardstick, one read of a number in the middle of a backward of the unwatched loop. The read is the same at any size:
what it grows by is the cache that a larger model leaves cold. No server listens, which is the dearer case.

    python -m benchmarks.unsampled_update [--updates 400]
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from os import environ
from pathlib import Path
from types import FrameType
from typing import Any

import scalescope
import torch
from torch import nn

NEVER = 10**9
PACKAGE = str(Path(scalescope.__file__).parent)
CLOSED_PORT = "http://127.0.0.1:9"


class Loop:
    """A loop over ``parameters`` tensors, all steps of a usual one, on as little arithmetic as possible."""

    def __init__(self, parameters: int, *, scaled: bool) -> None:
        torch.manual_seed(0)
        self.model = nn.ModuleList(nn.Linear(2, 2) for _ in range(parameters // 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        # One that is disabled does nothing but step: as a loop in bf16.
        self.scaler = torch.amp.GradScaler("cpu", enabled=scaled)

    def update(self) -> float:
        """One update; the answer is what its unscaling, step and bookkeeping took, in microseconds."""
        self.optimizer.zero_grad()
        x = torch.ones(1, 2)
        loss = torch.stack([layer(x).sum() for layer in self.model]).sum()
        self.scaler.scale(loss).backward()
        start = time.perf_counter_ns()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return (time.perf_counter_ns() - start) / 1e3


def yardstick(loop: Loop, updates: int) -> float:
    """Microseconds (median) that one read of a number takes at the parameter in the middle of a backward."""
    number, taken = torch.ones(()), []

    def read(_: torch.Tensor) -> None:
        start = time.perf_counter_ns()
        number.item()
        taken.append((time.perf_counter_ns() - start) / 1e3)

    parameters = list(loop.model.parameters())
    parameters[len(parameters) // 2].register_post_accumulate_grad_hook(read)
    for _ in range(updates):
        loop.update()
    return statistics.median(taken)


def instructions(loop: Loop) -> int:
    """How many of Python the hook executes in one update, in the thread of the training."""
    executed = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        nonlocal executed
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        executed += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        loop.update()
    finally:
        sys.settrace(None)
    return executed


@contextmanager
def watched(loop: Loop) -> Iterator[scalescope.Scope]:
    scope = scalescope.watch(loop.model, loop.optimizer, loop.scaler, url=CLOSED_PORT, every=NEVER)
    try:
        yield scope
    finally:
        scope.close()


def measure(parameters: int, updates: int, *, scaled: bool) -> str:
    plain, heard = Loop(parameters, scaled=scaled), Loop(parameters, scaled=scaled)
    differences = []
    with watched(heard) as scope:
        for _ in range(20):
            plain.update(), heard.update()
        for number in range(updates):
            first, second = (plain, heard) if number % 2 else (heard, plain)
            taken = {first: first.update()}
            taken[second] = second.update()
            differences.append(taken[heard] - taken[plain])
        own, executed = scope.stats.unsampled.median_us, instructions(heard)
    more = statistics.median(differences)
    kind = "with a scaler" if scaled else "without"
    return (
        f"{parameters:5} parameters, {kind}: {executed} instructions, {own:6.1f} us by the hook's own clock, "
        f"{more:6.1f} us more than the same loop unwatched (median of {updates}); "
        f"yardstick {yardstick(plain, 50):5.1f} us"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=400)
    updates = parser.parse_args().updates
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as spool:
        environ["SCALESCOPE_SPOOL"] = spool
        for scaled, parameters in product((True, False), (150, 1500)):
            print(measure(parameters, updates, scaled=scaled))


if __name__ == "__main__":
    main()
