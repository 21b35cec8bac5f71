"""Loops by what they do with the loss scaler, and around it: unscaling, clipping, setting, loading, replacing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from tests.loops.catalogue import Family
from tests.loops.pieces import UPDATES, loss_of, plain_updates, scaled_updates, scaler_at, watched_chain
from tests.loops.running import Run
from tests.loops.windowing import Facts, clipped, clipped_while_scaled
from tests.small_training import Chain, bf16

SCALING = Family("Loss scaling and clipping")

# An update that is sampled: there it is looked whether what unscale_ had found finite still is.
_SPOILT = 8

Clip = Callable[[nn.Module], object]


@SCALING.loop("Implicit unscale, no clipping")
def _implicit(run: Run) -> None:
    """scaler.step() unscales by itself"""
    watch, model, optimizer, scaler = watched_chain(run)
    scaled_updates(watch, model, optimizer, scaler)


@SCALING.loop("Explicit unscale_, no clipping")
def _explicit(run: Run) -> None:
    """scaler.unscale_() before scaler.step()"""
    _clipped(run, lambda _: None, {})


def _clipped(run: Run, clip: Clip, facts: Facts) -> None:
    watch, model, optimizer, scaler = watched_chain(run)
    for step in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            watch.fact(unscale="explicit", **facts)
            scaler.unscale_(optimizer)
            clip(model)
            scaler.step(optimizer)
            scaler.update()


def _by_norm_of_the_module(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def _by_norm_by_name(model: nn.Module) -> None:
    clip_grad_norm_(model.parameters(), 0.1)


def _by_value_of_the_module(model: nn.Module) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 0.01)


def _by_value_by_name(model: nn.Module) -> None:
    clip_grad_value_(model.parameters(), 0.01)


def _by_hand(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.clamp_(-0.01, 0.01)


_NORM: Facts = {"clip": clipped("norm", 0.1)}
_VALUE: Facts = {"clip": clipped("value", 0.01)}
_CLIPS: dict[str, tuple[Clip, Facts]] = {
    "norm, torch.nn.utils.clip_grad_norm_": (_by_norm_of_the_module, _NORM),
    "norm, imported by name": (_by_norm_by_name, _NORM),
    "value, torch.nn.utils.clip_grad_value_": (_by_value_of_the_module, _VALUE),
    "value, imported by name": (_by_value_by_name, _VALUE),
    "value, by hand": (_by_hand, {}),
}


def _clipped_plain(run: Run, clip: Clip, facts: Facts) -> None:
    model = Chain()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = run.watch(model, optimizer)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model, precision=bf16)
        loss.backward()
        with watch.update(optimizer, loss=loss):
            watch.fact(**facts)
            clip(model)
            optimizer.step()


for _name, (_clip, _facts) in _CLIPS.items():
    SCALING.add(f"Clipped by {_name}", "after an explicit unscale_", partial(_clipped, clip=_clip, facts=_facts))
for _name, (_clip, _facts) in _CLIPS.items():
    # By hand it is not heard: there the gradients are measured as they are stepped with.
    if _facts:
        _loop = partial(_clipped_plain, clip=_clip, facts=_facts)
        SCALING.add(f"Clipped by {_name}, no scaler", "bf16 autocast", _loop)


@SCALING.loop("Clipped by hand, no scaler")
def _clipped_by_hand(run: Run) -> None:
    """No call of torch is made that could be heard, so gradients are recorded as the optimizer gets them"""
    model = Chain()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = run.watch(model, optimizer)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model, precision=bf16)
        loss.backward()
        _by_hand(model)
        with watch.update(optimizer, loss=loss):
            optimizer.step()


@SCALING.loop("Clipped while scaled")
def _clipped_while_scaled(run: Run) -> None:
    """The mistake: the norm is limited before the gradients are unscaled"""
    watch, model, optimizer, scaler = watched_chain(run)
    watch.expect(unnamed="clipped before")
    for step in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            told = clipped_while_scaled(0.1, _norm(model), scaler.get_scale())
            watch.fact(clip=clipped("norm", 0.1, when="scaled"), clip_while_scaled=told)
            clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()


def _norm(model: nn.Module) -> float:
    gradients = [parameter.grad.double().flatten() for parameter in model.parameters() if parameter.grad is not None]
    return float(torch.linalg.vector_norm(torch.cat(gradients)))


@SCALING.loop("A scale that starts too high")
def _calibration(run: Run) -> None:
    """The first updates are skipped while the scale halves from 2^60"""
    model, scaler = Chain(), scaler_at(2.0**60, backoff_factor=2.0**-9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaled_updates(run.watch(model, optimizer, scaler), model, optimizer, scaler)


@SCALING.loop("The step left out after unscale_")
def _not_stepped(run: Run) -> None:
    """A loop that looks at the norm and leaves out its own step when it is too large"""
    watch, model, optimizer, scaler = watched_chain(run)
    for step in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model)
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            watch.fact(unscale="explicit")
            scaler.unscale_(optimizer)
            if step % 5 == 2:
                watch.idle(optimizer)
            else:
                scaler.step(optimizer)
            scaler.update()


@SCALING.loop("scaler.update(new_scale)")
def _new_scale(run: Run) -> None:
    """The trainer sets the scale at the end of some updates, and between two others"""
    watch, model, optimizer, scaler = watched_chain(run)
    for step in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        scaler.scale(loss).backward()
        watch.complete(optimizer)
        scaler.step(optimizer)
        own = 64.0 if step == 4 else None
        scaler.update(own)
        watch.done(loss, was_set=own is not None)
        if step == 8:
            watch.scale_set(scaler.get_scale(), 4096.0)
            scaler.update(4096.0)


@SCALING.loop("load_state_dict in mid-run")
def _load(run: Run) -> None:
    """model, optimizer and scaler go back to a checkpoint of theirs"""
    watch, model, optimizer, scaler = watched_chain(run)
    scaled_updates(watch, model, optimizer, scaler, 5)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict(), scaler.state_dict()))
    scaled_updates(watch, model, optimizer, scaler, 5)
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    scaler.load_state_dict(kept[2])
    scaled_updates(watch, model, optimizer, scaler, 5)


@SCALING.loop("enabled=False")
def _disabled(run: Run) -> None:
    """The same code for bf16: a disabled scaler, which passes everything on"""
    model, scaler = Chain(), GradScaler("cpu", enabled=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = run.watch(model, optimizer, scaler)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model, precision=bf16)
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            watch.fact(clip=clipped("norm", 0.1))
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()


@SCALING.loop("A scaler made anew, watched anew")
def _anew_watched(run: Run) -> None:
    """Each phase makes a scaler of its own and watches again, which closes the first scope"""
    model = Chain()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for scale in (1024.0, 4096.0):
        scaler = scaler_at(scale)
        watch = run.watch(model, optimizer, scaler)
        scaled_updates(watch, model, optimizer, scaler, 5)
        watch.close()


@SCALING.loop("A scaler made anew in mid-run")
def _anew(run: Run) -> None:
    """Another scaler takes over, at its initial scale, and nobody says so"""
    watch, model, optimizer, scaler = watched_chain(run)
    scaled_updates(watch, model, optimizer, scaler, 4)
    other = scaler_at(1024.0)
    watch.replaced(other)
    scaled_updates(watch, model, optimizer, other, 6, first=4)


@SCALING.loop("A scaler made anew in every update")
def _anew_each_time(run: Run) -> None:
    """The mistake: the scaler is built inside the loop, so that no skip is ever remembered"""
    watch, model, optimizer, scaler = watched_chain(run)
    for step in range(UPDATES):
        scaled_updates(watch, model, optimizer, scaler, 1, first=step)
        scaler = scaler_at()
        watch.replaced(scaler)


@SCALING.loop("A scaler under bf16")
def _useless(run: Run) -> None:
    """Torch accepts it; it protects from nothing"""
    watch, model, optimizer, scaler = watched_chain(run)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model, precision=bf16)
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            scaler.step(optimizer)
            scaler.update()


@SCALING.loop("A step without the scaler")
def _bypassed(run: Run) -> None:
    """The mistake: the loss is scaled and the optimizer stepped by itself, in every other update"""
    watch, model, optimizer, scaler = watched_chain(run)
    for step in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model)
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            if step % 2:
                watch.fact(unscale="explicit", stepped_outside=["AdamW"])
                scaler.unscale_(optimizer)
                optimizer.step()
            else:
                scaler.step(optimizer)
            scaler.update()


@SCALING.loop("The loss not scaled")
def _unscaled_loss(run: Run) -> None:
    """The mistake: scaler.scale() is left out in every other update, and the scaler divides all the same"""
    watch, model, optimizer, scaler = watched_chain(run)
    for step in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model)
        (loss if step % 2 else scaler.scale(loss)).backward()
        with watch.update(optimizer, loss=loss):
            if step % 2:
                scale = scaler.get_scale()
                watch.fact(loss_scaled=False, scales=[1.0], unscaled_by=scale, factors=[1 / scale])
            scaler.step(optimizer)
            scaler.update()


@SCALING.loop("A NaN after unscale_, applied")
def _late_nan(run: Run) -> None:
    """A gradient is spoilt after the scaler has looked; it is applied, and every update from then on is skipped"""
    watch, model, optimizer, scaler = watched_chain(run)
    for step in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model)
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            scaler.unscale_(optimizer)
            watch.fact(unscale="explicit")
            bias = model.layers[1].bias
            assert isinstance(bias, nn.Parameter)
            if step == _SPOILT:
                assert bias.grad is not None
                bias.grad[0] = torch.nan
                watch.fact(nonfinite_after_unscale={"where": "step", "parameters": 1})
            if step > _SPOILT:
                found = {"where": "found later", "parameters": 1, "last_finite": _SPOILT}
                watch.fact(nonfinite_after_unscale=found)
            scaler.step(optimizer)
            scaler.update()


@SCALING.loop("error_if_nonfinite=True")
def _raising(run: Run) -> None:
    """Where the scaler would have skipped, clipping raises, and the loop gives the update up"""
    watch, model, optimizer, scaler = watched_chain(run)
    for step in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        scaler.scale(loss).backward()
        with watch.update(optimizer, loss=loss):
            watch.fact(unscale="explicit", error_if_nonfinite=True)
            scaler.unscale_(optimizer)
            try:
                clip_grad_norm_(model.parameters(), 0.1, error_if_nonfinite=True)
                watch.fact(clip=clipped("norm", 0.1))
                scaler.step(optimizer)
            except RuntimeError:
                run.losses.append(loss)
            scaler.update()


class Patient(GradScaler):
    """A user's own scaler: a floor under the scale."""

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        super().update(new_scale)
        if self.get_scale() < 512.0:
            super().update(512.0)


@SCALING.loop("An own subclass of GradScaler")
def _own(run: Run) -> None:
    """A scaler with a floor, which calls update twice"""
    model, scaler = Chain(), Patient("cpu", init_scale=1024.0, growth_interval=100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaled_updates(run.watch(model, optimizer, scaler), model, optimizer, scaler)


@SCALING.loop("A scaler that never doubles, SGD without one after it")
def _handed_over(run: Run) -> None:
    """fp16 with a fixed scale, then the same model in bf16 without a scaler, watched again"""
    model = Chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = scaler_at(256.0, growth_interval=10_000)
    first = run.watch(model, optimizer, scaler)
    scaled_updates(first, model, optimizer, scaler, 5)
    first.close()
    plain_updates(run.watch(model, optimizer), model, optimizer, bf16, 5)
