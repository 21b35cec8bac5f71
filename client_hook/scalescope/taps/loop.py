"""The update that is under way: what the taps hear is gathered here and closed into an :class:`Update`.

Which update a logged value belongs to follows the backward passes: after a backward it is the one under way,
before it the one that closed last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter_ns, time
from typing import Protocol

import torch

from scalescope.readback import Derived, Value, read_later
from scalescope.taps.backward.ends import Ends
from scalescope.taps.backward.freshness import Stamp
from scalescope.taps.backward.gradients import has_gradient
from scalescope.taps.backward.hooks import NO_TASK, graph_task
from scalescope.taps.backward.watch import BackwardWatch
from scalescope.taps.budget import Budget
from scalescope.taps.edge import Edge, logger
from scalescope.taps.logged import Intake
from scalescope.taps.parameters import Parameters
from scalescope.taps.sampling import Sampling
from scalescope.taps.windows import clip
from scalescope.taps.windows import scheduler as schedulers
from scalescope.taps.windows.clip import ClipCall
from scalescope.taps.windows.schedule import Schedules
from scalescope.taps.windows.stopwatch import Stopwatch
from scalescope.taps.windows.windows import UpdateFacts, Windows
from scalescope.updates import Known, OptimizerVerdict, ScaleSet, Update


class Recording(Protocol):
    """What takes the closed updates: the recorder."""

    # Says which update is the last that nothing is added to any more, where nobody finishes it. From any thread.
    overtaken: Callable[[], int] | None
    # CPU time of the thread that takes them on, in nanoseconds.
    thread_ns: int

    def put_known(self, record: Known) -> None: ...
    def put_scale_set(self, change: ScaleSet) -> None: ...
    def put(self, update: Update) -> None: ...
    def put_plain(self, update: Update) -> None: ...
    def finish(self, step: int) -> None: ...


class Shorthand(Protocol):
    """Who notes the update under way down, and mostly leaves nothing else to do."""

    def clipped(self, gradients: Sequence[torch.Tensor], call: ClipCall) -> bool:
        """Gradients are clipped. Whether that is all there is to it."""


class Watcher(Protocol):
    """Who else listens to a training, and adds what it found to the updates that are measured."""

    def closing(self, update: Update) -> None:
        """``update`` closes: its verdicts, scales and measured gradients are in it. The next one may be measured."""

    def remove(self) -> None:
        """Listen no more."""


class Loop:
    """Gathers one update after the other. Every method runs in the training thread, behind an edge."""

    def __init__(
        self,
        recording: Recording,
        parameters: Parameters,
        optimizers: Sequence[torch.optim.Optimizer],
        edge: Edge,
        budget: Budget,
        *,
        clock: Callable[[], float] = time,
        scheduler: object = None,
    ) -> None:
        self.optimizers = list(optimizers)
        self.edge = edge
        self.intake = Intake()
        self.numbers = {id(optimizer): number for number, optimizer in enumerate(self.optimizers)}
        self._recording = recording
        self._parameters = parameters
        self._clock = clock
        self._names = _names(self.optimizers)
        self._backward = BackwardWatch(parameters, self.optimizers, edge, self.hear_backward, self._count_backward)
        self.sampling = Sampling(self.optimizers, parameters, self._backward, budget)
        self.windows = Windows(self.optimizers, list(self._names.values()), self._backward)
        self.stopwatch = Stopwatch(edge)
        self._schedules = Schedules(scheduler)
        self._scheduler = scheduler
        self._step = 0
        self._consumed: set[int] = set()
        # Whether a backward pass of the update under way was heard.
        self.backward_ran = False
        self._open = Update.begun(0)
        self._last: Update | None = None
        self._closed_ns: int | None = None
        # The rate in force, once it was noted.
        self._rate: Value | None = None
        self._advised = False
        self.watchers: list[Watcher] = []
        self._attended = True
        self.shorthand: Shorthand | None = None

    @property
    def step(self) -> int:
        """The number of the update under way."""
        return self._step

    def tell_layout(self) -> None:
        """More is known than the last layout said, and what follows rests on it."""
        self._recording.put_known(self._backward.layout())

    def start(self) -> None:
        """Say what is known of the parameters, and listen to their gradients."""
        self._recording.put_known(self._backward.layout())
        self._backward.arm()
        self.stopwatch.enabled = self.stopwatch.running = all(tensor.is_cpu for tensor in self._parameters.tensors)
        clip.listen(self)
        schedulers.listen(self, self._scheduler)

    def pass_through(self, heard: Callable[[int, int | None], None]) -> None:
        """Tell each backward pass to ``heard`` first, which hands it on to :meth:`hear_backward`."""
        self._backward.heard = heard

    def name(self, optimizer: torch.optim.Optimizer) -> str:
        """Its class, numbered where several watched optimizers share one; no watched one's where it is not watched."""
        own = type(optimizer).__name__
        return self._names.get(id(optimizer)) or (f"{own} (not watched)" if own in self._names.values() else own)

    def ever_heard(self, index: int) -> bool:
        """Whether a parameter has got a gradient since it is watched."""
        return self._backward.ever_heard(index)

    def watches(self, optimizer: torch.optim.Optimizer) -> bool:
        return id(optimizer) in self.numbers

    def advise(self, advice: str, *details: object) -> None:
        """Say in one log line what to do about a loop that is not recorded as it is: the first such advice alone."""
        if not self._advised:
            self._advised = True
            logger.warning("scalescope: " + advice, *details)

    def hear_backward(self, _task: int = NO_TASK, _number: int | None = None) -> None:
        """A backward pass of the update under way has begun: nothing is added to the one before."""
        if not self.backward_ran:
            self.backward_ran = True
            self._recording.finish(self._step - 1)

    def clipping(self, gradients: Sequence[torch.Tensor], call: ClipCall) -> None:
        """Gradients of whomever are about to be clipped, or looked at for their norm."""
        if self.shorthand is not None and self.shorthand.clipped(gradients, call):
            return
        numbers = self.owners(gradients)
        if not numbers:
            return
        self.windows.raises = self.windows.raises or call.raises
        if call.kind is None:
            return
        self.sampling.clipping(gradients)
        norm = self.windows.clipped(numbers, call)
        if norm is not None and call.limit is not None:
            _limit(self._open.values, call.limit, norm)

    def scheduled(self, scheduler: object) -> None:
        """A scheduler of whomever has stepped: it belongs to the update whose backward ran last."""
        self.catch_up()
        optimizer = self._names.get(id(getattr(scheduler, "optimizer", None)))
        self._schedules.hear(scheduler, optimizer, self._current())

    def consume(self, optimizer: torch.optim.Optimizer) -> int | None:
        """What ``optimizer`` has of gradients is used up with this update, applied or not.

        The rate in force is the one it has now, before a scheduler moves on. The answer is its number.
        """
        number = self.numbers.get(id(optimizer))
        if number is not None:
            self._consumed.add(number)
        if number == 0:
            self.note_rate()
        return number

    def note_rate(self) -> None:
        """Note the rate in force, the first time that this is asked for in an update."""
        if self._rate is None:
            rate = self.optimizers[0].param_groups[0].get("lr")
            if rate is not None:
                self._rate = read_later(rate) if isinstance(rate, torch.Tensor) else float(rate)

    def limited(self, call: ClipCall) -> bool:
        """Enter what a clipping takes of the gradients; False where its norm is not here, or not finite."""
        if call.norm is None:
            return True
        norm = float(call.norm.item()) if call.norm.is_cpu else math.nan
        if math.isfinite(norm) and call.limit is not None:
            _limit(self._open.values, call.limit, norm)
        return math.isfinite(norm)

    def ends(self) -> Mapping[int, Ends] | None:
        """The ends of all optimizers' backward passes, by number, where they tell all there is to hear; else None."""
        return self._backward.ends()

    def rest(self, began: Callable[[], bool]) -> None:
        """Hear no backward pass until :meth:`resume`. ``began``: whether one ran since the last update closed."""
        self._backward.rest(began, self._be_heard)

    def resume(self, left: Mapping[int, Stamp], calls: int) -> None:
        """Hear in full again: the last update left these gradients, by optimizer, after so many losses in all."""
        self.backward_ran = False
        self.sampling.pass_by(self._step)
        self._backward.resume(left)
        self.windows.resume(calls, self._step - 1)

    def find(self, number: int, stamp: Stamp, graph: bool, added: int) -> None:
        """So many backward passes of an optimizer, which no hook heard, were found in its first gradient."""
        self._backward.find(number, stamp, graph=graph, added=added)

    def catch_up(self) -> None:
        """Hear of all gradients that came, and of a backward that left out what is listened to, before what follows."""
        self._backward.pass_on()
        if not self.backward_ran and self._backward.overheard():
            self._backward.heard(NO_TASK, None)

    def log(self, given: Mapping[str, object]) -> None:
        self.catch_up()
        values = self.intake.take(given)
        target = self._current()
        tokens = values.pop("tokens", None)
        if tokens is not None:
            target.tokens = target.tokens or []
            _add(target.tokens, tokens)
        target.values.update(values)

    def set_scale(self, scale: Value | None, next_scale: Value | None) -> None:
        """The trainer set the scale between two updates."""
        self._recording.put_scale_set(ScaleSet(max(self._step - 1, 0), self._clock(), scale, next_scale))

    def close(
        self,
        *,
        verdicts: Sequence[OptimizerVerdict] = (),
        scale: Value | None = None,
        growth_tracker: Value | None = None,
        next_scale: Value | None = None,
        scale_was_set: bool = False,
    ) -> Update:
        """The update under way is over: hand it on and begin the next, whatever fails in between. The one closed."""
        spent_ns = self.edge.charge(sampled=bool(self.sampling.parts))
        if not self.backward_ran:
            self.hear_backward()
        update = self._open
        update.at = self._clock()
        update.scale, update.next_scale, update.scale_was_set = scale, next_scale, scale_was_set
        update.verdicts = verdicts
        self.sampling.close(update)
        if update.measured:
            total_ns = self.edge.total_ns + self._recording.thread_ns
            self.sampling.pay(update, perf_counter_ns(), total_ns, spent_ns)
        update.facts = self.edge.guard(self.windows.close, self._step, self._consumed, verdicts)
        try:
            if self._attended or update.measured or not self.sampling.quiet:
                self._let_watch(update)
            self._backward.close_window(self._consumed)
            if self._backward.has_news and (layout := self._backward.news()) is not None:
                self._recording.put_known(layout)
        finally:
            if self.stopwatch.running or not self.sampling.quiet:
                self.stopwatch.close(update.values, goes_on=not self.sampling.quiet)
            self._consumed.clear()
            self._pass(update, spent_ns, growth_tracker)
            self._recording.put(update)
        return update

    def close_routine(self, facts: UpdateFacts, scale: Value | None, growth_tracker: Value | None) -> int:
        """The update under way is over, and was like others before it: as :meth:`close`, for what is left to do.

        The answer is its number.
        """
        spent_ns = self.edge.charge(sampled=False)
        update = self._open
        update.at = self._clock()
        update.scale = update.next_scale = scale
        update.verdicts, update.facts = facts.verdicts, facts
        if self._step + 1 >= self.sampling.next_turn:
            self.sampling.pass_by(self._step + 1)
            self._let_watch(update)
        if not self.sampling.quiet:
            self.stopwatch.close(update.values, goes_on=True)
        self._pass(update, spent_ns, growth_tracker)
        self._recording.put_plain(update)
        return update.step

    def finish(self) -> None:
        """Listen no more; the last update is complete."""
        clip.ignore(self)
        schedulers.ignore(self)
        for watcher in self.watchers:
            self.edge.guard(watcher.remove)
        self.watchers.clear()
        self._backward.remove()
        self._parameters.release()
        self._recording.finish(self._step - 1)

    def _be_heard(self) -> None:
        """The next update is to be heard in full."""
        self.sampling.quiet = False

    def _current(self) -> Update:
        """The update whose backward ran last; before the first backward the first one."""
        return self._open if self.backward_ran or self._last is None else self._last

    def _let_watch(self, update: Update) -> None:
        """Tell the watchers of an update that was, or was likely to be, measured, or before one that is."""
        for watcher in self.watchers:
            self.edge.guard(watcher.closing, update)
        self._attended = self.sampling.expects()

    def _count_backward(self, number: int | None, passes: int | None) -> None:
        if self.stopwatch.running:
            self.stopwatch.hear_backward(graph_task())
        self.windows.counted(number, passes)

    def owners(self, gradients: Sequence[torch.Tensor]) -> list[int]:
        """The optimizers that hold some of these gradients: of one, the first or the last will do."""
        if len(self.optimizers) == 1:
            # Nearly always the first one is that of its first parameter.
            held = self.optimizers[0].param_groups[0]["params"]
            if held and held[0].grad is gradients[0]:
                return [0]
        some = gradients if len(self.optimizers) > 1 else (gradients[0], gradients[-1])
        identities = {id(gradient) for gradient in some}
        return [number for number, each in enumerate(self.optimizers) if has_gradient(each, identities)]

    def _pass(self, update: Update, spent_ns: int, growth_tracker: Value | None) -> None:
        """Enter what is known of ``update`` by its end, and begin the next."""
        self.note_rate()
        now = perf_counter_ns()
        update.closing = spent_ns, now, self._closed_ns, growth_tracker, self._rate
        self._closed_ns, self._rate = now, None
        if self._schedules.heard:
            update.schedules = self._schedules
        self._last = update
        self._step += 1
        self._open = Update.begun(self._step)
        self.backward_ran = False


def _add(tokens: list[Value], more: Value) -> None:
    """Add up at once what is on the host: a loop whose updates never close logs for ever."""
    last = tokens[-1] if tokens else None
    if isinstance(last, float) and isinstance(more, float):
        tokens[-1] = last + more
    else:
        tokens.append(more)


def _limit(values: dict[str, Value], limit: float, norm: Value) -> None:
    """Enter what a clipping multiplies the gradients by; of several, the smallest where that is known at once."""
    if not isinstance(norm, float):
        values["clip_coefficient"] = Derived(norm, partial(clip.coefficient, limit))
        return
    taken, before = clip.coefficient(limit, norm), values.get("clip_coefficient", 1.0)
    values["clip_coefficient"] = taken if not isinstance(before, float) or not taken > before else before


def _names(optimizers: Sequence[torch.optim.Optimizer]) -> dict[int, str]:
    classes = [type(optimizer).__name__ for optimizer in optimizers]
    return {
        id(optimizer): name if classes.count(name) == 1 else f"{name}#{classes[:place].count(name)}"
        for place, (optimizer, name) in enumerate(zip(optimizers, classes, strict=True))
    }
