"""Clipping, heard before it changes a gradient.

Everything in ``torch.nn.utils.clip_grad`` (by norm and by value, imported by whatever name) first groups the
gradients with one private function of that module. It is replaced while a training is watched. Who called it,
with which limit and after which norm, stand in the caller's local variables: the functions around it are also
called by names that others imported, where a replacement would not be heard. A torch that has no such function
is not heard, and one whose variables are called otherwise tells the gradients alone.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch.nn.utils import clip_grad

from scalescope.taps.edge import Edge

_NAME = "_group_tensors_by_device_and_dtype"

Grouping = Callable[..., Any]


class ClipCall(NamedTuple):
    """One call of a function of torch's.

    Attributes:
        kind: what limits the gradients; None where they are only looked at, for their norm.
        limit: the largest norm, or value, that is let through; None where not known.
        norm: the norm over all gradients, as torch took it; None by value, and where not known.
        raises: a norm that is not finite is an error.
    """

    kind: Literal["norm", "value"] | None
    limit: float | None = None
    norm: torch.Tensor | None = None
    raises: bool = False


class Ear(Protocol):
    """Who is told: the loop of a watched training."""

    edge: Edge

    def clipping(self, gradients: Sequence[torch.Tensor], call: ClipCall) -> None: ...


class _Replacement:
    """Torch's function and the one in its place, while somebody listens."""

    def __init__(self) -> None:
        # Weak, since a training that is forgotten without an end must not be kept by a table of ours.
        self.ears: list[weakref.ref[Ear]] = []
        self._theirs: Grouping | None = None
        self._ours: Grouping | None = None

    def install(self) -> None:
        current = getattr(clip_grad, _NAME, None)
        if callable(current) and (self._ours is None or current is not self._ours):
            self._theirs, self._ours = current, _heard(current)
            setattr(clip_grad, _NAME, self._ours)

    def restore(self) -> None:
        """A replacement that somebody put over ours stays: ours then only passes on."""
        if self._ours is not None and getattr(clip_grad, _NAME, None) is self._ours:
            setattr(clip_grad, _NAME, self._theirs)
        self._theirs = self._ours = None


_REPLACEMENT = _Replacement()


def listen(ear: Ear) -> None:
    """Tell ``ear`` of every clipping in this process until :func:`ignore`, or until it is gone."""
    _REPLACEMENT.ears.append(weakref.ref(ear))
    _REPLACEMENT.install()


def ignore(ear: Ear) -> None:
    """Tell it no more; with the last one torch's own function is back."""
    _REPLACEMENT.ears[:] = [reference for reference in _REPLACEMENT.ears if reference() not in (ear, None)]
    if not _REPLACEMENT.ears:
        _REPLACEMENT.restore()


def coefficient(limit: float, norm: float) -> float:
    """What ``clip_grad_norm_`` multiplies gradients of this norm by: min(1, limit / (norm + 1e-6)), NaN for NaN."""
    # In this order: a comparison with NaN leaves the first of the two.
    return min(limit / (norm + 1e-6), 1.0)


def _heard(original: Grouping) -> Grouping:
    def grouping(tensors: Sequence[Sequence[torch.Tensor]], *args: object, **kwargs: object) -> object:
        # A graph that is being traced has no gradients yet.
        if not torch.compiler.is_compiling() and tensors and tensors[0]:
            caller = sys._getframe(1)  # noqa: SLF001 - see the module; called so by the library's own users as well
            named = caller.f_locals
            if caller.f_code.co_name != "_get_total_norm" or named.get("error_if_nonfinite") is True:
                for reference in list(_REPLACEMENT.ears):
                    ear = reference()
                    if ear is not None:
                        ear.edge.call(_tell, ear, tensors[0], caller.f_code.co_name, named)
        return original(tensors, *args, **kwargs)

    return grouping


def _tell(ear: Ear, gradients: Sequence[torch.Tensor], caller: str, named: Mapping[str, object]) -> None:
    ear.clipping(gradients, _call_of(caller, named))


def _call_of(caller: str, named: Mapping[str, object]) -> ClipCall:
    if caller == "_get_total_norm":
        return ClipCall(None, raises=named.get("error_if_nonfinite") is True)
    if caller == "clip_grad_value_":
        return ClipCall("value", _number(named.get("clip_value")))
    norm = named.get("total_norm")
    # A sharded one would have to be gathered from all ranks to be read.
    plain = norm if isinstance(norm, torch.Tensor) and type(norm) is torch.Tensor else None
    return ClipCall("norm", _number(named.get("max_norm")), plain, named.get("error_if_nonfinite") is True)


def _number(found: object) -> float | None:
    return float(found) if isinstance(found, int | float) else None
