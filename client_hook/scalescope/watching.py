"""``watch``: the one call that joins taps, recorder and link."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Sequence

import torch
from torch import nn
from torch.amp import GradScaler

from scalescope.agreement import Agreement
from scalescope.greeting import Labels, hello_of, labels_of
from scalescope.lifetime import living
from scalescope.mirrors.chosen import mirrors_of
from scalescope.mirrors.mirror import Mirror
from scalescope.scope import LiveScope, Scope
from scalescope.settings import Settings, read_settings
from scalescope.taps.edge import Edge
from scalescope.taps.process import FINISHED
from scalescope.taps.ranks.store import MEETING
from scalescope.taps.training import Training, training_of

logger = logging.getLogger("scalescope")

# Which watch() this is among ranks, in this process.
_NUMBERS = itertools.count(1)


def watch(
    model: nn.Module | Sequence[nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    scaler: GradScaler | None = None,
    *,
    scheduler: object = None,
    project: str = "default",
    name: str | None = None,
    tags: Sequence[str] = (),
    config: object = None,
    run: str | None = None,
    url: str | None = None,
    token: str | None = None,
    every: int | None = None,
    modules: bool = True,
    histograms: Sequence[str] = (),
    mirror: object = None,
    allow_requests: bool = False,  # noqa: ARG001 - promised: see Args
) -> Scope:
    """Watch a training from here on.

    An update closes at ``scaler.update()``; without an enabled scaler when the optimizers have stepped. Every
    update's facts are recorded, and the exponent histograms of all gradients every ``every`` updates (where it is
    not given, every 10 or as far apart as a budget asks for) and at every skipped one. Loss and weights stay bit
    for bit what they would be without. An optimizer is watched by one scope: the one that watched it before is
    closed.

    Args:
        model: the model, or several; their parameters are named as they name them.
        optimizer: the optimizer, or several.
        scaler: the loss scaler, if one is used; a disabled one counts as none.
        scheduler: the learning-rate scheduler whose steps are counted, of any class with a ``step``; those of
            ``torch.optim.lr_scheduler`` are found without it.
        project, name, tags, config: how the run is found again. ``config`` is a mapping, dataclass or namespace.
        run: id of a run to go on with, as a new segment of it.
        url, token, every: win over ``SCALESCOPE_URL``, ``SCALESCOPE_TOKEN`` and ``SCALESCOPE_EVERY``.
        modules: whether the modules' outputs, and the gradients of these, are looked at in sampled updates.
        histograms: of what besides gradients exponent histograms are recorded: some of ``"weight"``,
            ``"forward"`` (the modules' outputs) and ``"grad_output"`` (their gradients).
        mirror: a run of another tracker that core series and findings are echoed to: of W&B, TensorBoard or MLflow,
            an own :class:`~scalescope.mirrors.mirror.Mirror`, or a list of them.
        allow_requests: reserved for samples asked for by the server; changes nothing in this version.

    Returns:
        The scope; one that does nothing when ``SCALESCOPE_OFF=1``, or when watching this training fails, which
        is told in a log line.

    Raises:
        SettingError: (a ValueError) for an argument that cannot be used. Nothing is raised later.
    """
    settings = read_settings(os.environ, url=url, token=token, run=run, every=every)
    training = training_of(model, optimizer, scaler, scheduler, modules=modules, histograms=histograms)
    labels = labels_of(project, name, tags, config)
    mirrors = mirrors_of(mirror)
    if settings.off:
        return Scope()
    return Edge().call(_begin, training, settings, labels, scheduler, mirrors) or Scope()


def _begin(
    training: Training, settings: Settings, labels: Labels, scheduler: object, mirrors: Sequence[Mirror]
) -> Scope:
    for earlier in living():
        if earlier.records(training.optimizers):
            logger.warning("scalescope: run %s is closed: its optimizer is being watched anew", earlier.run_id)
            earlier.end(FINISHED)
    hello = hello_of(training, settings, labels, scheduler)
    agreement = Agreement(next(_NUMBERS), MEETING) if hello.world_size > 1 else None
    return LiveScope(training, hello, settings, agreement, mirrors)
