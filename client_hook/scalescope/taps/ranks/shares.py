"""What this rank reports of each watched parameter, by its index."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from scalescope.taps.facts import world
from scalescope.taps.ranks.sharded import is_distributed, part_of
from scalescope.taps.ranks.summed import summed_over_ranks
from scalescope.taps.ranks.wrappers import Held, held_by_wrappers
from scalescope.wire import Part

# How often wrappers are looked for while a plain parameter has none: at the start, and, since a model may be wrapped
# after it is watched, when gradients are measured at first. Each time takes a look at every object there is.
_LOOKS = 3

logger = logging.getLogger("scalescope")


class Shares:
    """The ``parts`` of a scope, one for each parameter; none where it is the only rank.

    ``changed``: since the last layout. ``flattened``: some are slices of a flat parameter, which has the hooks, and
    nothing is heard of those. ``told`` is what a library says of its own, by the parameters' ``id``.
    """

    def __init__(self, models: Sequence[nn.Module], told: Mapping[int, Held]) -> None:
        self.parts: list[Part] = []
        self.changed = self.flattened = False
        self._alone = False
        self._among_ranks = world()[1] > 1
        self._told_late = False
        self._looks = _LOOKS
        self._told = told
        self._held: dict[int, Held] = {}
        self._summed: dict[int, torch.dtype | None] = {}
        self._heeded: set[int] = set()
        self._find_wrappers(models)

    def enter(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """Take the next parameter. The answer is its shape, over all ranks."""
        held = self._held_of(tensor)
        self.flattened = self.flattened or held.sliced
        if self._among_ranks:
            self.parts.append(held.part)
        return held.shape

    def stand_alone(self) -> None:
        """No other rank is recorded with this one: it reports what they would have. From any thread."""
        self._alone = True

    def settle(self, tensors: Sequence[torch.Tensor], models: Sequence[nn.Module]) -> None:
        """Gradients are about to be measured. ``tensors``: all that were entered."""
        if not self._among_ranks:
            self._tell_if_late()
        elif self._looks and (unwrapped := self._unwrapped(tensors)):
            self._find_wrappers(models)
            for index in unwrapped:
                self._put(index, self._held_of(tensors[index]).part)
        if self._alone:
            for index, part in enumerate(self.parts):
                if part.placement == "replicated":
                    self._put(index, Part("replicated", tensors[index].numel(), leads=True))

    def heed(self, index: int, gradient: torch.Tensor) -> None:
        """A gradient is about to be measured, which may be laid out otherwise than its parameter, but always alike."""
        if self._among_ranks and index not in self._heeded and is_distributed(gradient):
            self._heeded.add(index)
            self._put(index, part_of(gradient))

    def reports(self, index: int) -> bool:
        """Whether this rank reports anything of a parameter. One that leads does so of an empty shard too."""
        if not self._among_ranks:
            return True
        part = self.parts[index]
        return part.elements > 0 or part.leads

    def computed_in(self, tensor: torch.Tensor) -> torch.dtype | None:
        """What a wrapper has a parameter computed in; None where none says so."""
        return self._summed.get(id(tensor))

    def is_summed(self, tensor: torch.Tensor) -> bool:
        """Whether the gradients of a parameter are sums over ranks when they are heard of."""
        return id(tensor) in self._summed

    def _put(self, index: int, part: Part) -> None:
        if self.parts[index] != part:
            self.parts[index] = part
            self.changed = True

    def _unwrapped(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        parts = enumerate(self.parts)
        return [place for place, part in parts if part.placement == "local" and not is_distributed(tensors[place])]

    def _held_of(self, tensor: torch.Tensor) -> Held:
        told = self._told.get(id(tensor))
        if told is not None:
            return told
        shape = tuple(tensor.shape)
        if is_distributed(tensor):
            return Held(shape, part_of(tensor))
        return self._held.get(id(tensor), Held(shape, Part("local", math.prod(shape), leads=True)))

    def _find_wrappers(self, models: Sequence[nn.Module]) -> None:
        if self._among_ranks:
            self._looks -= 1
            self._held = held_by_wrappers(models)
            self._summed = summed_over_ranks(models)

    def _tell_if_late(self) -> None:
        if not self._told_late and world()[1] > 1:
            self._told_late = True
            logger.warning(
                "scalescope: torch.distributed was initialized after watch(): each rank is recorded as a run of its "
                "own; call watch() after init_process_group()"
            )
