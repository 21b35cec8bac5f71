"""The greeting of a new segment: who calls, what is trained, and how the run is found again."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.errors import SettingError
from scalescope.settings import Settings
from scalescope.taps import facts
from scalescope.taps.library.optimizer import LibraryOptimizer
from scalescope.taps.training import Training
from scalescope.wire import PROTOCOL, Hello, ScalerSettings

# Lower case without look-alikes: an id is read aloud and typed. 12 of 32 signs: 60 bits.
_SIGNS = "23456789abcdefghijkmnpqrstuvwxyz"
_ID_LENGTH = 12
# Bounds of the wire.
_MAX_LISTED = 64
_NAME = f"a text of 1 to {facts.MAX_NAME} characters"


@dataclass(frozen=True, slots=True)
class Labels:
    """How a run is found again; ``config`` is JSON."""

    project: str
    name: str | None
    tags: list[str]
    config: str


def labels_of(project: object, name: object, tags: Sequence[object], config: object) -> Labels:
    """The labels that a user gave. Raises :class:`SettingError`, naming the argument, for what cannot be one."""
    if not facts.is_name(project):
        raise SettingError("project", expected=_NAME, got=project)
    if not (name is None or facts.is_name(name)):
        raise SettingError("name", expected=f"None or {_NAME}", got=name)
    if isinstance(tags, str) or len(tags) > _MAX_LISTED or not all(map(facts.is_name, tags)):
        raise SettingError("tags", expected=f"at most {_MAX_LISTED} tags, each {_NAME}", got=tags)
    return Labels(
        str(project), None if name is None else str(name), [str(tag) for tag in tags], facts.config_text(config)
    )


def hello_of(training: Training, settings: Settings, labels: Labels, scheduler: object) -> Hello:
    """The greeting of a segment that begins now; the run is that of ``settings``, or a new one."""
    rank, world_size = facts.world()
    environment = facts.environment(facts.devices_of(training.optimizers))
    if scheduler is not None:
        environment["scheduler"] = type(scheduler).__name__
    return Hello(
        protocol=PROTOCOL,
        run=settings.run or new_id(),
        segment=new_id(),
        rank=rank,
        world_size=world_size,
        started_at=time.time(),
        project=labels.project,
        name=labels.name,
        tags=labels.tags,
        config=labels.config,
        environment=environment,
        scaler=_scaler_settings(training),
        optimizers=[facts.optimizer_settings(optimizer) for optimizer in training.optimizers[:_MAX_LISTED]],
        every=settings.every,
        resumed=settings.run is not None,
    )


def new_id() -> str:
    """A new random id of a run or a segment, fit for a URL."""
    return "".join(secrets.choice(_SIGNS) for _ in range(_ID_LENGTH))


def _scaler_settings(training: Training) -> ScalerSettings | None:
    if training.scaler is not None:
        return facts.scaler_settings(training.scaler)
    libraries = [each.library for each in training.optimizers if isinstance(each, LibraryOptimizer)]
    return libraries[0].scaler_settings() if libraries else None
