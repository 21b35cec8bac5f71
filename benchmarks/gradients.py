"""The gradients that costs are measured on, and the way they are timed.

A GPT of 12 layers and width 384 with a tied head over 16,384 tokens: 148 tensors, 27.98 million fp32
gradients, magnitudes log-uniform over 2^-42 to 2^-2, 5 % zeros, 60 % of the embedding's rows untouched.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

LAYERS, WIDTH, TOKENS, CONTEXT = 12, 384, 16384, 1024


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"wte.weight": (TOKENS, WIDTH), "wpe.weight": (CONTEXT, WIDTH)}
    for layer in range(LAYERS):
        for name, rows in (("attn.qkv", (3 * WIDTH, WIDTH)), ("attn.proj", (WIDTH, WIDTH))):
            found |= {f"h.{layer}.{name}.weight": rows, f"h.{layer}.{name}.bias": rows[:1]}
        for name, rows in (("mlp.fc", (4 * WIDTH, WIDTH)), ("mlp.proj", (WIDTH, 4 * WIDTH))):
            found |= {f"h.{layer}.{name}.weight": rows, f"h.{layer}.{name}.bias": rows[:1]}
        for name in ("ln_1", "ln_2"):
            found |= {f"h.{layer}.{name}.weight": (WIDTH,), f"h.{layer}.{name}.bias": (WIDTH,)}
    return found | {"ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,)}


def gradients(seed: int = 0) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes().items():
        values = (np.exp2(rng.uniform(-42, -2, shape)) * rng.choice([-1.0, 1.0], shape)).astype(np.float32)
        values[rng.random(shape) < 0.05] = 0.0
        if name == "wte.weight":
            values[rng.random(shape[0]) < 0.6] = 0.0
        found[name] = torch.from_numpy(values)
    return found


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds, and the median over rounds of the ratio to the first candidate of the same round."""

    seconds: float
    ratio: float


def round_robin(candidates: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, Timing]:
    """Every candidate once a round, so that noise on the machine hits all of them alike."""
    for candidate in candidates.values():
        candidate()
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            gc.disable()
            start = time.perf_counter()
            candidate()
            taken[name].append(time.perf_counter() - start)
            gc.enable()
    base = next(iter(taken.values()))
    return {
        name: Timing(statistics.median(times), statistics.median(t / b for t, b in zip(times, base, strict=True)))
        for name, times in taken.items()
    }
