"""What listening to 200 modules costs an update, forward to step, sampled and not.

The same loop runs unwatched, with idle hooks that stay on every module (what hooks cost that only look whether
they are wanted), and watched; the loops take turns within one run. Small layers show the cost of a call, large
ones that of reading the values.

    python -m benchmarks.module_taps [--updates 60]
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from os import environ

import scalescope
import torch
from torch import nn

NEVER = 10**9
CLOSED_PORT = "http://127.0.0.1:9"
LAYERS = 100


class Loop:
    """A loop over a model of 200 modules: layers and activations in a row."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        layers = [part for _ in range(LAYERS) for part in (nn.Linear(width, width), nn.ReLU())]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.batch = torch.randn(max(width // 4, 1), width)

    def update(self) -> float:
        """One update; the answer is what it took, in microseconds."""
        start = time.perf_counter_ns()
        self.optimizer.zero_grad()
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()
        return (time.perf_counter_ns() - start) / 1e3


def unwatched(_: Loop) -> None:
    """Nothing."""


def idle_hooks(loop: Loop) -> None:
    for module in loop.model:
        module.register_forward_hook(lambda *_: None)


def watched(*, every: int, modules: bool) -> Callable[[Loop], scalescope.Scope]:
    def watch(loop: Loop) -> scalescope.Scope:
        return scalescope.watch(loop.model, loop.optimizer, url=CLOSED_PORT, every=every, modules=modules)

    return watch


WAYS: dict[str, Callable[[Loop], object]] = {
    "unwatched": unwatched,
    "idle hooks on every module": idle_hooks,
    "watched, not sampled, no modules": watched(every=NEVER, modules=False),
    "watched, not sampled": watched(every=NEVER, modules=True),
    "watched, sampled, no modules": watched(every=1, modules=False),
    "watched, sampled": watched(every=1, modules=True),
}


def measure(width: int, updates: int) -> None:
    loops = {name: Loop(width) for name in WAYS}
    kept = [way(loops[name]) for name, way in WAYS.items()]
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    for number in range(updates + 12):
        for name, loop in loops.items():
            spent = loop.update()
            # The first ones compile, allocate and learn the order of the gradients.
            if number >= 12:
                taken[name].append(spent)
    for scope in kept:
        if isinstance(scope, scalescope.Scope):
            scope.close()
    plain = statistics.median(taken["unwatched"])
    print(f"{2 * LAYERS} modules of width {width}, median of {updates} updates")
    for name, spent_each in taken.items():
        median = statistics.median(spent_each)
        print(f"  {name:34} {median:10.0f} us {median - plain:+9.0f} us {median / plain:6.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=60)
    updates = parser.parse_args().updates
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as spool:
        environ["SCALESCOPE_SPOOL"] = spool
        for width in (2, 256):
            measure(width, updates)


if __name__ == "__main__":
    main()
