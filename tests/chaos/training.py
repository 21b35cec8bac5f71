"""A real small training in a process of its own, which writes down itself what it does.

Its record is a file of JSON lines to which only this loop appends, each before the update that it tells of: so whatever
a hook could have seen of the update is in it, at whatever point the process is killed. It knows nothing of the hook.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scalescope
import torch
from scalescope import courier
from scalescope.outbox import DISK_BYTES, MEMORY_BYTES, Outbox
from torch import nn

EVERY = 10
# 2 ** -126: what is smaller counts as zero.
SMALLEST = float(np.finfo(np.float32).smallest_normal)


@dataclass(frozen=True, slots=True)
class Plan:
    """One start of a training: where it sends and writes, and how long it lasts. Bounds of 0 are the usual ones."""

    url: str
    run: str
    record: Path
    spool: Path
    seed: int
    updates: int
    pause_s: float = 0.005
    memory_bytes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Update:
    """What the training says of one update: the scale it was made at, and its gradients as they stood.

    ``gradients``: parameter name -> exponent of a power of two, or "zero", "inf", "nan" -> how many elements.
    """

    step: int
    scale: float
    skipped: bool
    loss: float
    own: float
    gradients: dict[str, dict[str, int]]


def read_record(path: Path) -> list[Update]:
    """The updates written so far, in order; a last line cut off by the death of its writer is none."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [Update(**json.loads(line)) for line in lines]


def train(plan: Plan) -> None:
    """The process itself."""
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    os.environ["SCALESCOPE_SPOOL"] = str(plan.spool)
    _bound(plan)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # It grows so often that the scale meets its upper wall again and again.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=7)
    scope = scalescope.watch(model, optimizer, scaler, project="chaos", run=plan.run, url=plan.url, every=EVERY)
    written = os.open(plan.record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for step in range(plan.updates):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(16, 8)).float().square().mean() * 64
        scaler.scale(loss).backward()
        update = _seen(step, scaler.get_scale(), float(loss.detach()), model)
        os.write(written, json.dumps(asdict(update)).encode() + b"\n")
        scaler.step(optimizer)
        scaler.update()
        scope.log(loss=loss, own=update.own)
        time.sleep(plan.pause_s)
    scope.close()


def _bound(plan: Plan) -> None:
    # Nobody can set them: the real ones would take half an hour to fill.
    vars(courier)["Outbox"] = partial(
        Outbox, memory_bytes=plan.memory_bytes or MEMORY_BYTES, disk_bytes=plan.disk_bytes or DISK_BYTES
    )


def _seen(step: int, scale: float, loss: float, model: nn.Module) -> Update:
    gradients = {
        name: _counted(parameter.grad.numpy())
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    skipped = any(counts.keys() & {"inf", "nan"} for counts in gradients.values())
    return Update(step, scale, skipped, loss, math.sin(step), gradients)


def _counted(gradient: np.ndarray[Any, Any]) -> dict[str, int]:
    counts = {"zero": 0, "inf": 0, "nan": 0}
    counts["nan"] = int(np.isnan(gradient).sum())
    counts["inf"] = int(np.isinf(gradient).sum())
    finite = np.abs(gradient[np.isfinite(gradient)]).astype(np.float64)
    counts["zero"] = int((finite < SMALLEST).sum())
    exponents, of_each = np.unique(np.frexp(finite[finite >= SMALLEST])[1] - 1, return_counts=True)
    counts |= {str(int(exponent)): int(count) for exponent, count in zip(exponents, of_each, strict=True)}
    return {name: count for name, count in counts.items() if count}
