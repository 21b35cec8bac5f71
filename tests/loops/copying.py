"""Loops whose model, optimizer or scaler is copied, pickled, averaged or closed while it is watched."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import scalescope
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.loops.catalogue import Family
from tests.loops.pieces import BAD, UPDATES, loss_of, plain_updates, scaled_updates, scaler_at, watched_chain
from tests.loops.restoring import Traces, in_torch, left_over, on_objects
from tests.loops.running import Run, Watch
from tests.small_server import Shelf, serving
from tests.small_training import WIDTH, Chain, bf16, columns

COPYING = Family("Copies and ends")

# What goes on training with a pickle where this package cannot be imported; it prints the classes.
_ELSEWHERE = """
import io, sys, torch
sys.modules["scalescope"] = None
model, optimizer, scaler = torch.load(io.BytesIO(sys.stdin.buffer.read()), weights_only=False)
for _ in range(2):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(2, 8)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(type(model).__name__, type(optimizer).__name__, type(scaler).__module__)
"""


def _clean(*things: Any) -> bool:
    """Whether copies are of their own classes and nothing of this package hangs on them."""
    models = [thing for thing in things if isinstance(thing, nn.Module)]
    optimizers = [thing for thing in things if isinstance(thing, torch.optim.Optimizer)]
    scalers = [thing for thing in things if isinstance(thing, GradScaler)]
    held = [found for found in on_objects(models, optimizers, scalers).values() if isinstance(found, list)]
    ours = any(type(hook).__module__.startswith("scalescope") for hooks in held for hook in hooks)
    return not ours and all(type(scaler) is GradScaler for scaler in scalers)


def _layers(run: Run) -> tuple[Watch, nn.Module, torch.optim.Optimizer, GradScaler]:
    """Plain layers, which load where the tests are not."""
    model, scaler = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)), scaler_at()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return run.watch(model, optimizer, scaler), model, optimizer, scaler


@COPYING.loop("An EMA by copy.deepcopy")
def _ema(run: Run) -> None:
    """The average is a deep copy of the watched model, moved after every update, and evaluated"""
    watch, model, optimizer, scaler = watched_chain(run)
    average = copy.deepcopy(model).requires_grad_(False)
    run.keep(average)
    for step in range(UPDATES):
        scaled_updates(watch, model, optimizer, scaler, 1, first=step)
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)
            run.losses.append(loss_of(average))
    run.check("the average reports nothing", lambda: _clean(average))


@COPYING.loop("An EMA by AveragedModel")
def _averaged(run: Run) -> None:
    """torch.optim.swa_utils copies the model and averages it"""
    watch, model, optimizer, scaler = watched_chain(run)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    run.keep(average)
    for step in range(UPDATES):
        scaled_updates(watch, model, optimizer, scaler, 1, first=step)
        average.update_parameters(model)
        with torch.no_grad():
            run.losses.append(loss_of(average))
    run.check("the average reports nothing", lambda: _clean(average))


def _copied(run: Run, copied: Callable[[Any], Any]) -> None:
    watch, model, optimizer, scaler = watched_chain(run)
    scaled_updates(watch, model, optimizer, scaler, 5)
    twin, twins, other = copied((model, optimizer, scaler))
    run.keep(twin, twins, other)
    # The copies train on, unheard; then the originals do.
    scaled_updates(Watch(), twin, twins, other, 5)
    run.check("the copies report nothing", lambda: _clean(twin, twins, other))
    scaled_updates(watch, model, optimizer, scaler, 5)


@COPYING.loop("copy.deepcopy of model, optimizer and scaler")
def _deepcopied(run: Run) -> None:
    """Copied together while watched; the copies train on beside the originals"""
    _copied(run, copy.deepcopy)


@COPYING.loop("Pickling model, optimizer and scaler")
def _pickled(run: Run) -> None:
    """Through pickle while watched; what is loaded trains on beside the originals"""
    _copied(run, lambda things: pickle.loads(pickle.dumps(things)))


@COPYING.loop("Pickling before the first backward")
def _pickled_early(run: Run) -> None:
    """Every hook is still in place; through torch.save and torch.load"""
    watch, model, optimizer, scaler = _layers(run)
    buffer = io.BytesIO()
    torch.save((model, optimizer, scaler), buffer)
    buffer.seek(0)
    run.check("what is loaded reports nothing", lambda: _clean(*torch.load(buffer, weights_only=False)))
    scaled_updates(watch, model, optimizer, scaler)


@COPYING.loop("Loading a pickle where scalescope is absent")
def _elsewhere(run: Run) -> None:
    """Saved while watched, in mid-run; another process, in which the import is refused, trains on with it"""
    watch, model, optimizer, scaler = _layers(run)
    scaled_updates(watch, model, optimizer, scaler, 5)
    buffer = io.BytesIO()
    torch.save((model, optimizer, scaler), buffer)
    run.check("it loads and trains there", lambda: _trains_elsewhere(buffer.getvalue()))
    scaled_updates(watch, model, optimizer, scaler, 5, first=5)


def _trains_elsewhere(pickled: bytes) -> bool:
    command = [sys.executable, "-c", _ELSEWHERE]
    done = subprocess.run(command, input=pickled, capture_output=True, check=True)
    return done.stdout.decode().split() == ["Sequential", "AdamW", "torch.amp.grad_scaler"]


@COPYING.loop("A checkpoint of state dicts")
def _checkpoint(run: Run) -> None:
    """state_dict of all three, saved and loaded into new ones, which are watched in a scope of their own"""
    watch, model, optimizer, scaler = watched_chain(run)
    scaled_updates(watch, model, optimizer, scaler, 5)
    watch.close()
    buffer = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict(), scaler.state_dict()), buffer)
    buffer.seek(0)
    fresh, other = Chain(), scaler_at()
    again = torch.optim.AdamW(fresh.parameters(), lr=0.01)
    states = torch.load(buffer)
    fresh.load_state_dict(states[0])
    again.load_state_dict(states[1])
    other.load_state_dict(states[2])
    scaled_updates(run.watch(fresh, again, other), fresh, again, other, 5)


@COPYING.loop("close() in mid-run")
def _closed(run: Run) -> None:
    """Everything is put back at close(), and training goes on unheard"""
    watch, model, optimizer, scaler = watched_chain(run)
    scaled_updates(watch, model, optimizer, scaler, 5)
    watch.close()
    run.check("nothing of the hook is left", lambda: _clean(model, optimizer, scaler))
    scaled_updates(Watch(), model, optimizer, scaler, 5)


@COPYING.loop("A model moved by to() while watched")
def _moved(run: Run) -> None:
    """model.to(bfloat16) in mid-run swaps what is behind every parameter"""
    model = Chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = run.watch(model, optimizer)
    plain_updates(watch, model, optimizer, bf16, 5)
    optimizer.zero_grad()
    model.bfloat16()
    plain_updates(watch, model, optimizer, bf16, 5)


@COPYING.judged("scope.close()")
def _scope() -> list[str]:
    """scalescope.watch() itself, with its link to a server; close() delivers all and puts everything back"""
    shelf, model, scaler = Shelf(), Chain(), scaler_at()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    looks: list[Callable[[], Traces]] = [in_torch, partial(on_objects, [model], [optimizer], [scaler])]
    before = [look() for look in looks]
    with serving(shelf) as server:
        scope = scalescope.watch(model, optimizer, scaler, url=server.url)
        scaled_updates(Watch(), model, optimizer, scaler)
        scope.close()
    assert [left_over(then, look()) for look, then in zip(looks, before, strict=True)] == [[], []]
    skipped = columns(shelf.records)["skipped"]
    assert skipped == {step: float(step in BAD) for step in range(UPDATES)}
    return [f"{len(skipped)} updates, {len(BAD)} of them skipped, were delivered; nothing of the hook is left"]
