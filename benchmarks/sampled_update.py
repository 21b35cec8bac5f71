"""What one sampled update costs: every statistic of 148 tensors, 28 million gradients, one thread.

Both ways side by side: the kernel that numba compiles, where it is installed, and torch alone. What the update did to
the weights comes on top: it looks at a part of them.

Ratios are to ``torch._foreach_norm`` over the same gradients in the same round, one read of all values. The
usual hooks are measured beside ours where they are installed:

    pip install tensorboard trackio wandb    # optional
    python -m benchmarks.sampled_update [--rounds 9]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from scalescope.numerics import measure_cpu
from scalescope.numerics.measure import measure, path_of
from scalescope.packing import pack
from scalescope.taps.parameters import Parameters
from scalescope.taps.weights.changed import Copied, GradientAt
from scalescope.taps.weights.rows import batches_of
from torch import nn

from benchmarks.gradients import gradients, round_robin

# The kernel is compiled at the lowest priority.
_PATIENCE_S = 120.0


def naive(grads: dict[str, torch.Tensor]) -> list[float]:
    """Five statistics of each tensor as people write them: a read of the whole tensor and an item() for each."""
    found: list[float] = []
    for grad in grads.values():
        statistics = (grad.norm(), grad.abs().max(), grad.mean(), (grad == 0).sum(), torch.isfinite(grad).all())
        found += [float(value.item()) for value in statistics]
    return found


def weights(grads: dict[str, torch.Tensor], dtype: torch.dtype) -> Callable[[], object]:
    """What an update did to weights of ``dtype``: the copies before the step and the counts after it."""
    tensors = [nn.Parameter(torch.full_like(grad, 0.02, dtype=dtype)) for grad in grads.values()]
    for tensor, grad in zip(tensors, grads.values(), strict=True):
        tensor.grad = grad.to(dtype)
    optimizer = torch.optim.AdamW(tensors, fused=True)
    optimizer.step()
    parameters = Parameters([], [optimizer])

    def look() -> None:
        for batch in batches_of(optimizer, parameters, (), closure=False):
            Copied(batch, GradientAt.BEFORE, None).count().columns()

    return torch.no_grad()(look)


def tensorboard(grads: dict[str, torch.Tensor], folder: Path) -> Callable[[], object]:
    writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(folder))

    def record() -> None:
        for name, grad in grads.items():
            writer.add_histogram(name, grad, 0)

    return record


def trackio(grads: dict[str, torch.Tensor], _: Path) -> Callable[[], object]:
    histogram = importlib.import_module("trackio").Histogram

    def record() -> None:
        for grad in grads.values():
            histogram(grad.numpy())

    return record


def wandb(grads: dict[str, torch.Tensor], folder: Path) -> Callable[[], object]:
    os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_DIR=str(folder))
    importlib.import_module("wandb").init(project="benchmark")
    history = importlib.import_module("wandb.integration.torch.wandb_torch").TorchHistory()

    def record() -> None:
        for name, grad in grads.items():
            history.log_tensor_stats(grad, f"gradients/{name}")

    return record


PEERS = {"tensorboard add_histogram": tensorboard, "trackio Histogram": trackio, "wandb.watch statistics": wandb}


def measuring(grads: dict[str, torch.Tensor]) -> dict[str, Callable[[], object]]:
    """Both ways; the faster one once it is there, and with what a sample needs besides."""
    tensors = list(grads.values())
    flat = [tensor.reshape(-1) for tensor in tensors]
    by_torch = {"scalescope: all statistics, torch": lambda: measure_cpu.measure(flat, 1.0)}
    measure(tensors)
    deadline = time.monotonic() + _PATIENCE_S
    while path_of(torch.device("cpu")).reason.endswith("on its way") and time.monotonic() < deadline:
        time.sleep(0.1)
    path = path_of(torch.device("cpu"))
    if path.reason:
        print(path)
        return {**by_torch}
    return {
        "scalescope: all statistics, numba": lambda: measure(tensors).result(),
        "scalescope: the same, packed to be sent": lambda: pack(measure(tensors).result()),
        **by_torch,
    }


def candidates(grads: dict[str, torch.Tensor], folder: Path) -> dict[str, Callable[[], object]]:
    tensors = list(grads.values())
    found: dict[str, Callable[[], object]] = {
        "torch._foreach_norm": lambda: torch._foreach_norm(tensors),
        **measuring(grads),
        "scalescope: what the update did, fp32": weights(grads, torch.float32),
        "scalescope: what the update did, bf16": weights(grads, torch.bfloat16),
        "five statistics with .item()": lambda: naive(grads),
    }
    for name, peer in PEERS.items():
        if importlib.util.find_spec(name.split(".")[0].split()[0]):
            found[name] = peer(grads, folder)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    grads = gradients()
    with tempfile.TemporaryDirectory() as folder:
        timings = round_robin(candidates(grads, Path(folder)), rounds=rounds)
    elements = sum(grad.numel() for grad in grads.values())
    print(f"{len(grads)} tensors, {elements / 1e6:.2f} M gradients, one thread, median of {rounds} rounds")
    print("median of the round, of each value, and of the ratio to the first in the same round")
    for name, timing in timings.items():
        each = timing.seconds / elements * 1e9
        print(f"{name:45} {timing.seconds * 1e3:9.2f} ms {each:7.2f} ns each {timing.ratio:7.1f}x")


if __name__ == "__main__":
    main()
