"""The demo's training loop, written as anyone would write it; one call watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

import scalescope
from scalescope.demo.model import CharacterGPT
from scalescope.demo.scenarios import Scenario
from scalescope.demo.text import Corpus

BATCH = 32
LEARNING_RATE = 3e-3
SEED = 1


@dataclass(frozen=True, slots=True)
class Moment:
    """Where the training is after an update; ``scope`` knows the run."""

    scope: scalescope.Scope
    attempted: int
    skipped: int
    loss: float
    scale: float


def train(
    scenario: Scenario, *, steps: int, url: str, report: Callable[[Moment], None], seed: int = SEED
) -> scalescope.Scope:
    """Train for ``steps`` updates, watched by the server at ``url``; the scope is closed when this returns.

    ``report`` is called before the first update and after each.
    """
    torch.manual_seed(seed)
    corpus = Corpus()
    batches = torch.Generator().manual_seed(seed)
    model = CharacterGPT(corpus.characters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    scaler = torch.amp.GradScaler("cpu", init_scale=scenario.init_scale, growth_interval=scenario.growth_interval)
    watched = scalescope.watch(model, optimizer, scaler, project="demo", name=scenario.name, url=url)
    with watched as scope:
        skipped = 0
        report(Moment(scope, 0, 0, float("nan"), scenario.init_scale))
        for step in range(steps):
            inputs, targets = corpus.batch(BATCH, batches)
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(inputs)
                loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scope.log(loss=loss, tokens=inputs.numel())

            skipped += scaler.get_scale() < before
            report(Moment(scope, step + 1, skipped, loss.item(), scaler.get_scale()))
    return scope
