"""What the taps know a library's optimizer by, where that is none of torch's.

Such an optimizer steps copies of the weights and keeps gradients where it likes, while the taps go by the model's
parameters and a learning rate. The stand-in holds these, and steps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from scalescope.taps.ranks.wrappers import Held
from scalescope.wire import ScalerSettings

if TYPE_CHECKING:
    from scalescope.taps.library.tap import LibraryTap

# A parameter of the model, and its gradient, or the part of it that this rank keeps.
Gradient = tuple[torch.Tensor, torch.Tensor]
Source = Callable[[], Iterable[Gradient]]


# What a run tells of an optimizer. Other things in a group of it are between it and its library.
_SETTINGS = (bool, int, float, tuple)


class Library(Protocol):
    """An adapter: where one library keeps what, and when. It calls the tap through the tap's edge."""

    def attach(self, tap: LibraryTap) -> None:
        """Listen, and tell ``tap``."""

    def remove(self) -> None:
        """Put everything back. Again: nothing."""

    def shares(self) -> Mapping[int, Held]:
        """What this rank keeps of the parameters' gradients, by their ``id``; of the others it keeps all."""

    def scaler_settings(self) -> ScalerSettings | None:
        """Those of its loss scaler; None where it scales nothing."""


def nothing() -> Iterable[Gradient]:
    """The source of an optimizer whose gradients are not at hand."""
    return ()


class LibraryOptimizer(torch.optim.Optimizer):
    """A stand-in. ``library`` is the adapter that listens on its behalf; ``source`` tells the gradients at hand.

    ``moves_gradients``: whether they leave the parameters after each backward pass.
    """

    def __init__(self, library: Library, parameters: Sequence[torch.Tensor], settings: Mapping[str, Any]) -> None:
        super().__init__([{**settings, "params": list(parameters)}], {})
        self.library = library
        self.source: Source = nothing
        self.moves_gradients = True


def stand_in(
    name: str, library: Library, parameters: Sequence[torch.Tensor], settings: Mapping[str, Any]
) -> LibraryOptimizer:
    """The stand-in of an optimizer called ``name``: by its class is how a run tells an optimizer."""
    kind: type[LibraryOptimizer] = type(name, (LibraryOptimizer,), {})
    plain = {key: value for key, value in settings.items() if isinstance(value, _SETTINGS)}
    return kind(library, list(dict.fromkeys(parameters)), plain)


def told_by_libraries(optimizers: Iterable[torch.optim.Optimizer]) -> dict[int, Held]:
    """What this rank keeps of the parameters of those that are stand-ins, by the parameters' ``id``."""
    found: dict[int, Held] = {}
    for optimizer in optimizers:
        if isinstance(optimizer, LibraryOptimizer):
            found.update(optimizer.library.shares())
    return found
