"""Which parameters are frozen, tied, or never get a gradient."""

from __future__ import annotations

from scalescope.taps.loop import Loop
from scalescope.taps.naming import plain, prefixes, unwrapped
from scalescope.taps.parameters import Parameters

# Updates that must have closed before a parameter is said to get no gradient: alternating optimizers take turns.
_PATIENCE = 16


class WithoutGradient:
    """The parameters that require a gradient and have got none since they are watched."""

    def __init__(self, parameters: Parameters, loop: Loop) -> None:
        self._parameters = parameters
        self._loop = loop
        self._waiting: list[int] = []
        self._known = 0

    def __call__(self) -> list[str] | None:
        """Their names; None for nobody, or too early to tell."""
        count = len(self._parameters)
        candidates = [*self._waiting, *range(self._known, count)]
        self._known = count
        self._waiting = [index for index in candidates if not self._has(index)]
        if self._loop.step < _PATIENCE:
            return None
        tensors = self._parameters.tensors
        return [self._parameters.name(index) for index in self._waiting if tensors[index].requires_grad] or None

    def _has(self, index: int) -> bool:
        return self._loop.ever_heard(index) or self._parameters.tensors[index].grad is not None


def tied(parameters: Parameters) -> list[list[str]] | None:
    """The names of each parameter that has several, in a model or across models; None where none has."""
    names: dict[int, list[str]] = {}
    models = parameters.models()
    for model, prefix in zip(models, prefixes(models), strict=True):
        for name, tensor in unwrapped(model).named_parameters(remove_duplicate=False):
            names.setdefault(id(tensor), []).append(prefix + plain(name))
    return [found for found in names.values() if len(found) > 1] or None


def requires_no_grad(parameters: Parameters) -> int:
    """How many parameters of the models are frozen."""
    return sum(not tensor.requires_grad for model in parameters.models() for tensor in model.parameters())
