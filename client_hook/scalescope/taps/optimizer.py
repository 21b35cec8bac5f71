"""The optimizers, heard through their step hooks.

Where no enabled scaler says when an update is over, the steps do. With one optimizer an update is one step.
With several it is what steps between two backward passes: it closes when all of them have stepped, when one
of them is about to step again, or at the first backward after a step. So a discriminator and a generator
that take turns make updates of their own, and an optimizer that rests holds up nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

from scalescope.taps.backward.hooks import NO_TASK, graph_task
from scalescope.taps.edge import eager
from scalescope.taps.loop import Loop
from scalescope.taps.routine.steps import StepNotes

P = ParamSpec("P")
T = TypeVar("T")

# What a step is called with, as torch hands it to a hook: positional (the optimizer first) and named.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class OptimizerTap:
    """One scope's ears on its optimizers, which close its updates."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._stepped: set[int] = set()
        self._stepped_in = NO_TASK
        self._handles: list[RemovableHandle] = []
        self.routine = StepNotes(loop)

    def attach(self) -> None:
        self._loop.pass_through(self.hear_backward)
        for optimizer in self._loop.optimizers:
            self._handles.append(optimizer.register_step_pre_hook(_Before(self)))
            self._handles.append(optimizer.register_step_post_hook(_After(self)))

    def hear_backward(self, task: int, _number: int | None) -> None:
        """The first backward after a step is of the next update, unless the step ran inside it."""
        if self._stepped and (task == NO_TASK or task != self._stepped_in):
            self._close()
        self._loop.hear_backward()

    def stepping(self, optimizer: torch.optim.Optimizer, arguments: Arguments) -> Arguments | None:
        """Before a step. The answer takes the place of its arguments: a closure that tells us when it ran."""
        closure = _closure_of(arguments)
        if self.routine.stepping(optimizer, closure=closure is not None):
            return None
        self._loop.catch_up()
        if id(optimizer) in self._stepped:
            self._close()
        if self._loop.stopwatch.running:
            self._loop.stopwatch.step_began()
        number = self._loop.numbers[id(optimizer)]
        if closure is None:
            self._loop.hear_backward()
            if self._loop.sampling.due(number):
                self._loop.sampling.take(number)
            return None
        # The forward and the backward are inside of it, and heard there.
        return _with_closure(arguments, self._listening(number, closure)) if self._loop.sampling.due(number) else None

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        if self.routine.stepped(optimizer):
            return
        self._stepped.add(id(optimizer))
        self._stepped_in = graph_task()
        if self._loop.stopwatch.running:
            self._loop.stopwatch.step_ended()
        self._loop.consume(optimizer)
        if len(self._stepped) == len(self._loop.optimizers):
            self._close()

    def remove(self) -> None:
        """Close a round that is still open, and take the hooks off."""
        self.routine.leave(odd=False)
        if self._stepped:
            self._close()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def call(self, hear: Callable[P, T], *told: P.args, **named: P.kwargs) -> T | None:
        """What ``hear`` answers, one of the two above; None where it failed."""
        return self._loop.edge.call(hear, *told, **named)

    def _listening(self, number: int, closure: Callable[..., object]) -> Callable[..., object]:
        """``closure``, whose gradients are measured when it has run first: where the update begins.

        What it takes is no time of the optimizer's.
        """
        ran = False
        stopwatch = self._loop.stopwatch

        @functools.wraps(closure)
        def run(*args: object, **kwargs: object) -> object:
            nonlocal ran
            stopwatch.step_ended()
            result = closure(*args, **kwargs)
            stopwatch.step_began()
            if not ran:
                ran = True
                self._loop.edge.call(self._loop.sampling.take, number)
            return result

        return run

    def _close(self) -> None:
        self._stepped.clear()
        self.routine.consider(self._loop.close())


class StepTap:
    """Ears on steps alone, where the scaler closes the updates: a step may be taken without it."""

    def __init__(self, loop: Loop, stepped: Callable[[torch.optim.Optimizer], None]) -> None:
        self._loop = loop
        self._stepped = stepped
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        for optimizer in self._loop.optimizers:
            if has_hooks(optimizer):
                self._handles.append(optimizer.register_step_post_hook(_Stepped(self._stepped)))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class _Before:
    """Hangs on an optimizer's step; torch passes the step's own arguments too."""

    __slots__ = ("_routine", "_tap")

    def __init__(self, tap: OptimizerTap) -> None:
        self._tap, self._routine = tap, tap.routine

    @eager
    def __call__(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        lane = self._routine.lane
        if lane is not None:
            bare = (len(args) == 1 and not kwargs) or _closure_of((args, kwargs)) is None
            if bare and lane.edge.call(lane.steps, optimizer):
                return None
            lane.edge.guard(lane.leave)
        return self._tap.call(self._tap.stepping, optimizer, (args, kwargs))


class _After:
    __slots__ = ("_routine", "_tap")

    def __init__(self, tap: OptimizerTap) -> None:
        self._tap, self._routine = tap, tap.routine

    @eager
    def __call__(self, optimizer: torch.optim.Optimizer, *_step: object) -> None:
        lane = self._routine.lane
        if lane is not None:
            if lane.edge.call(lane.stepped, optimizer):
                return
            lane.edge.guard(lane.leave)
        self._tap.call(self._tap.stepped, optimizer)


class _Stepped:
    """As :class:`_After` for what is quicker than an edge, and cannot fail."""

    __slots__ = ("_stepped",)

    def __init__(self, stepped: Callable[[torch.optim.Optimizer], None]) -> None:
        self._stepped = stepped

    @eager
    def __call__(self, optimizer: torch.optim.Optimizer, *_step: object) -> None:
        self._stepped(optimizer)


def has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its steps can be heard. A wrapper that only looks like an optimizer may have no hooks."""
    return hasattr(optimizer, "_optimizer_step_post_hooks")


def _closure_of(arguments: Arguments) -> Callable[..., object] | None:
    """What a step was given to run, if it was."""
    args, kwargs = arguments
    given = kwargs["closure"] if "closure" in kwargs else args[1] if len(args) > 1 else None
    return given if callable(given) else None


def _with_closure(arguments: Arguments, closure: Callable[..., object]) -> Arguments:
    """The arguments of a step that was given one, with another in its place."""
    args, kwargs = arguments
    if "closure" in kwargs:
        return args, {**kwargs, "closure": closure}
    return (args[0], closure, *args[2:]), kwargs
