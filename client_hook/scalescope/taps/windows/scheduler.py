"""Learning-rate schedulers, heard by the ``step`` of their classes.

Every class of ``torch.optim.lr_scheduler`` that defines a ``step``, and every one made of them by others, has it
replaced while a training is watched, and so has the class of a scheduler of any kind that the user names. A step
inside another one, as those that hold several make it, is not told again, nor is the one that makes a scheduler.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol

from torch.optim.lr_scheduler import LRScheduler

from scalescope.taps.edge import Edge
from scalescope.taps.methods import Method, Methods


class Ear(Protocol):
    """Who is told: the loop of a watched training."""

    edge: Edge

    def scheduled(self, scheduler: object) -> None: ...


class _Depth(threading.local):
    """Whether this thread is inside a scheduler's step."""

    inside = False


_DEPTH = _Depth()
# Weak, since a training that is forgotten without an end must not be kept by a table of ours.
_EARS: weakref.WeakSet[Ear] = weakref.WeakSet()
_METHODS = Methods()
# What torch makes a scheduler's first step with, which sets the rate to begin with.
_FIRST = "_initial_step"


def listen(ear: Ear, scheduler: object = None) -> None:
    """Tell ``ear`` of the steps of all schedulers until :func:`ignore`, or until it is gone.

    Args:
        scheduler: one that may be of any class with a ``step``.
    """
    _EARS.add(ear)
    _METHODS.replace(LRScheduler, _FIRST, _unheard)
    for kind in (*_family(LRScheduler), *type(scheduler).__mro__):
        _METHODS.replace(kind, "step", _heard)


def ignore(ear: Ear) -> None:
    """Tell it no more; with the last one every class has its own step again."""
    _EARS.discard(ear)
    if _EARS:
        return
    _METHODS.restore()


def _family(kind: type) -> Iterator[type]:
    yield kind
    children: list[type] = kind.__subclasses__()
    for child in children:
        yield from _family(child)


def _unheard(own: Method) -> Method:
    @functools.wraps(own)
    def first(self: object, *args: object, **kwargs: object) -> object:
        return own(self, *args, **kwargs) if _DEPTH.inside else _inside(own, self, *args, **kwargs)

    return first


def _inside(own: Method, *args: object, **kwargs: object) -> object:
    """What ``own`` answers, during which no step is told."""
    _DEPTH.inside = True
    try:
        return own(*args, **kwargs)
    finally:
        _DEPTH.inside = False


def _heard(own: Method) -> Method:
    @functools.wraps(own)
    def step(self: object, *args: object, **kwargs: object) -> object:
        if _DEPTH.inside:
            return own(self, *args, **kwargs)
        result = _inside(own, self, *args, **kwargs)
        for ear in list(_EARS):
            ear.edge.call(ear.scheduled, self)
        return result

    return step
