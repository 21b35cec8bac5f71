"""What a framework's callback is given, and what the framework itself knows of a training."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import nn

from scalescope.greeting import labels_of
from scalescope.scope import Scope
from scalescope.settings import read_settings
from scalescope.taps.training import histogram_kinds
from scalescope.watching import watch


class Options(TypedDict, total=False):
    """What :func:`scalescope.watch` takes besides the training itself. Each wins over what the framework knows."""

    project: str
    name: str | None
    tags: Sequence[str]
    config: object
    run: str | None
    url: str | None
    token: str | None
    every: int | None
    modules: bool
    histograms: Sequence[str]
    mirror: object
    allow_requests: bool


@dataclass(frozen=True, slots=True)
class Known:
    """What a framework knows of a training that is about to begin.

    ``run`` is the one that a checkpoint says it belongs to: None for a new one.
    """

    model: nn.Module | Sequence[nn.Module]
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
    scaler: torch.amp.GradScaler | None = None
    scheduler: object = None
    name: str | None = None
    config: Mapping[str, object] | None = None
    run: str | None = None


def check(options: Options) -> None:
    """Raise now what watching with ``options`` would raise when a training begins.

    But for a mirror, since a framework may open the run that is meant only then.

    Raises:
        TypeError: for a name that is none of them.
        SettingError: for a value that cannot be used.
    """
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"expected some of {', '.join(Options.__annotations__)}, got {', '.join(sorted(unknown))}")
    given = {name: options.get(name) for name in ("url", "token", "run", "every")}
    read_settings({}, **given)  # type: ignore[arg-type]  # of any type: that is what is checked
    labels_of(options.get("project", "default"), options.get("name"), options.get("tags", ()), options.get("config"))
    histogram_kinds(options.get("histograms", ()), modules=bool(options.get("modules", True)))


def watch_known(known: Known, options: Options) -> Scope:
    """The scope of a training of which ``known`` is known, with ``options``.

    A run that the environment names is the operator's word: it wins over the checkpoint's.

    Raises:
        SettingError: as :func:`scalescope.watch`.
    """
    defaults: Options = {}
    if known.name:
        defaults["name"] = known.name
    if known.config is not None:
        defaults["config"] = known.config
    if known.run and not os.environ.get("SCALESCOPE_RUN"):
        defaults["run"] = known.run
    chosen: Options = {**defaults, **options}
    return watch(known.model, known.optimizer, known.scaler, scheduler=known.scheduler, **chosen)
