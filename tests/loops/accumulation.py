"""Loops by how an update's window is put together from micro-batches."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from tests.launching import launched
from tests.loops.catalogue import Family
from tests.loops.pieces import BAD, loss_of, scaler_at, watched_chain
from tests.loops.running import Run
from tests.loops.windowing import clipped
from tests.programs import programs
from tests.small_training import Chain, bf16

ACCUMULATION = Family("Accumulation")

EQUAL = (4,) * 9
# The last window of each epoch holds what is left over.
UNEQUAL = (4, 4, 3, 4, 4, 3, 4, 4, 1)


def _accumulated(run: Run, windows: Sequence[int], *, set_to_none: bool = True, clip: bool = False) -> None:
    watch, model, optimizer, scaler = watched_chain(run)
    for step, window in enumerate(windows):
        optimizer.zero_grad(set_to_none=set_to_none)
        for place in range(window):
            # In the window's middle: what follows adds to a gradient that is non-finite already.
            loss = loss_of(model, step if place == window // 2 else -1) / window
            scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss, micro_batches=window):
            if not set_to_none and step == 1:
                # When a gradient is zeroed in place for the first time, nobody has looked at it in time.
                watch.fact(zero_grad=None)
            if clip:
                watch.fact(unscale="explicit", clip=clipped("norm", 0.1))
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()


ACCUMULATION.add("Equal windows", "four micro-batches in every update", partial(_accumulated, windows=EQUAL))
ACCUMULATION.add(
    "Unequal windows, clipped",
    "the last window of an epoch is shorter; unscale_ and clip once, at its end",
    partial(_accumulated, windows=UNEQUAL, clip=True),
)
ACCUMULATION.add(
    "zero_grad(set_to_none=False)",
    "gradients are zeroed in place, and added to from the start",
    partial(_accumulated, windows=UNEQUAL, set_to_none=False),
)


@ACCUMULATION.loop("Unequal windows without a scaler")
def _plain(run: Run) -> None:
    """bf16 autocast"""
    model = Chain()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = run.watch(model, optimizer)
    for window in UNEQUAL:
        for _ in range(window):
            loss = loss_of(model, precision=bf16) / window
            loss.backward()
        with watch.update(optimizer, loss=loss, micro_batches=window):
            optimizer.step()
        optimizer.zero_grad()


@ACCUMULATION.loop("Different micro-batch counts in one update")
def _different(run: Run) -> None:
    """A model that is trained on every micro-batch beside one that is trained on every second"""
    models, scaler = [Chain(), Chain()], scaler_at()
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in models]
    watch = run.watch(models, optimizers, scaler, author={"Chain0.": models[0], "Chain1.": models[1]})
    for step in range(9):
        for place in range(4):
            loss = loss_of(models[0])
            if place % 2:
                loss = loss + loss_of(models[1], step)
            scaler.scale(loss).backward()
        watch.complete(optimizers[0], micro_batches=4)
        watch.complete(optimizers[1], micro_batches=2)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        watch.done(loss)
        for optimizer in optimizers:
            optimizer.zero_grad()


@ACCUMULATION.loop("zero_grad missing")
def _never_zeroed(run: Run) -> None:
    """The mistake: gradients of all updates so far add up, unscaled ones and scaled ones"""
    watch, model, optimizer, scaler = watched_chain(run)
    for step in range(9):
        loss = loss_of(model)
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            watch.fact(zero_grad=step == 0)
            scaler.step(optimizer)
            scaler.update()


@ACCUMULATION.loop("zero_grad missing after an overflow")
def _stale(run: Run) -> None:
    """The mistake: what one update overflowed stays in the gradients, and every later one is skipped"""
    watch, model, optimizer, scaler = watched_chain(run)
    for step in range(6):
        stale = sum(p.grad is not None and not bool(p.grad.isfinite().all()) for p in model.parameters())
        if step <= min(BAD):
            optimizer.zero_grad()
        loss = loss_of(model, step)
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            watch.fact(zero_grad=step <= min(BAD), **({"stale_nonfinite": stale} if stale else {}))
            scaler.step(optimizer)
            scaler.update()


@ACCUMULATION.loop("A backward after unscale_")
def _early_unscale(run: Run) -> None:
    """The mistake: the last micro-batch is added, scaled, to gradients that are unscaled already"""
    watch, model, optimizer, scaler = watched_chain(run)
    for _ in range(9):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        watch.complete(optimizer)
        watch.fact(unscale="explicit", micro_batches=2)
        watch.fact(backward_after_unscale={"backwards": 1, "factor": scaler.get_scale()})
        scaler.unscale_(optimizer)
        loss = loss_of(model)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        watch.done(loss)


@ACCUMULATION.loop("Two scales in one window")
def _mixed_scales(run: Run) -> None:
    """The mistake: the scale is set between two micro-batches of a window"""
    watch, model, optimizer, scaler = watched_chain(run)
    for step in range(9):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        before = scaler.get_scale()
        after = 16.0 if before == 8.0 else 8.0
        if step % 3 == 1:
            watch.scale_set(before, after)
            watch.fact(scales=[before, after], unscaled_by=after, factors=[before / after, 1.0])
            scaler.update(after)
        loss = loss_of(model)
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss, micro_batches=2):
            scaler.step(optimizer)
            scaler.update()


def distributed(run: Run) -> None:
    """Three micro-batches, the gradients reduced in the last one. Every rank runs it."""
    model, scaler = Chain(), scaler_at()
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=0.01)
    watch = run.watch(parallel, optimizer, scaler, author={"": model})
    if dist.get_rank():
        watch.expect(unnamed="another rank names", replica=True)
    torch.manual_seed(dist.get_rank())
    for step in range(9):
        optimizer.zero_grad()
        for place in range(3):
            # Only one rank overflows: what all of them get is non-finite for all.
            bad = step if dist.get_rank() == dist.get_world_size() - 1 and place == 2 else -1
            with parallel.no_sync() if place < 2 else nullcontext():
                loss = loss_of(parallel, bad) / 3
                scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss, micro_batches=3):
            watch.fact(no_sync=True)
            scaler.step(optimizer)
            scaler.update()


@ACCUMULATION.loop("DistributedDataParallel with no_sync, one rank")
def _one_rank(run: Run) -> None:
    """Gradients are reduced in the last of three micro-batches; gloo, one process"""
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            distributed(run)
        finally:
            dist.destroy_process_group()


@ACCUMULATION.judged("DistributedDataParallel with no_sync, two ranks")
def _two_ranks() -> list[str]:
    """The same in two processes, of which one overflows: both skip, and the one that reports names the culprit"""
    with tempfile.TemporaryDirectory() as folder, programs() as running:
        told = launched(running, 2, Path(folder), "tests.loops.ranks")
    return [f"on the first rank: {told[0]}; on the other one: {told[1]}"]
