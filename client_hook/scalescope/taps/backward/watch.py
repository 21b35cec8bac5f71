"""What only a backward pass tells: the order of the gradients, their formats, and that it ran.

Every parameter gets a hook, which goes once its gradient was seen and its format is known. After the first
updates one parameter of each optimizer keeps its own, the first to get a gradient, and counts the backward
passes, so that an ordinary update costs the same whatever the number of parameters. It is checked against the
last one: where passes take different ways through a model both are listened to. When they fall silent (their
layers were frozen) all are listened to again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch

from scalescope.taps.backward.ends import Ends
from scalescope.taps.backward.formats import Formats
from scalescope.taps.backward.freshness import Freshness, Stamp, stamp_of
from scalescope.taps.backward.gradients import local
from scalescope.taps.backward.hooks import NO_TASK, Hooks, graph_task
from scalescope.taps.backward.order import BackwardOrder, is_eager
from scalescope.taps.backward.passes import Passes
from scalescope.taps.edge import Edge
from scalescope.taps.library.optimizer import LibraryOptimizer
from scalescope.taps.parameters import Parameters
from scalescope.wire import Layout, Order

# How often all parameters are listened to again to give late ones a place: each time costs as the first update.
_RELISTENINGS = 32


class BackwardWatch:
    """Listens to the parameters' gradients.

    At the first gradient of each optimizer in a backward, ``heard`` is called with the backward's number and the
    optimizer's before the gradient is looked at, and ``counted`` afterwards: with the optimizer's number, and how
    many passes are in its gradients now (None where not known).
    """

    def __init__(
        self,
        parameters: Parameters,
        optimizers: Sequence[torch.optim.Optimizer],
        edge: Edge,
        heard: Callable[[int, int | None], None],
        counted: Callable[[int | None, int | None], None],
    ) -> None:
        self._parameters = parameters
        self._optimizers = optimizers
        self.heard = heard
        self._counted = counted
        self._hooks = Hooks(edge, self)
        self._owners: dict[int, int] = {}
        # For each optimizer the first and the last to get a gradient; and what counts at both, as long as they agree.
        self._sentinels: dict[int, tuple[int, ...]] = {}
        self._ends: dict[int, Ends] = {}
        # Which keep their hooks.
        self._kept: set[int] = set()
        # Whether gradients were seen to be used up within a backward: maybe by hooks that are called before ours.
        self._steps_inside = False
        self._gradients: dict[int | None, int] = {}
        self._passes = Passes()
        self._freshness = Freshness()
        self._order = BackwardOrder()
        self._formats = Formats(parameters)
        self._armed = 0
        # What has its place and its format, from which there is nothing more to learn but that it is heard.
        self._learnt: set[int] = set()
        # Whether every parameter has its hook, so that what is heard is the whole order.
        self._whole = True
        self._relistenings = _RELISTENINGS
        self._closed_in = NO_TASK
        self._latest: tuple[int, int | None] = (NO_TASK, None)
        self._windows = 0
        self.has_news = self._grown = False
        # While hooks rest: whether a backward pass ran since the last update closed; whom to tell of a parameter that
        # gets its first gradient, and which did.
        self._began: Callable[[], bool] | None = None
        self._surprised: Callable[[], object] = bool
        self._late: set[int] = set()

    def arm(self) -> None:
        """Hook the parameters that were entered since the last call."""
        for index in range(self._armed, len(self._parameters)):
            self._hook(index)
            self._freshness.leave(index, stamp_of(self._gradient(index)))
        self._owners = self._parameters.owners(self._optimizers)
        # The layout that is sent at the start has the first ones already.
        grown = 0 < self._armed < len(self._parameters)
        self._grown = self._grown or grown or self._parameters.shares.changed
        self.has_news = self.has_news or self._grown
        self._armed = len(self._parameters)

    def passes(self, number: int) -> int | None:
        """How many backward passes are in the gradients of an optimizer; None where not known."""
        if self._moves_away(number):
            return None
        ends = self._ends.get(number)
        if ends is not None and ends.agree():
            heard = self._passes.heard.get(self._sentinels[number][0])
            return None if heard is None else heard[0]
        if ends is not None and graph_task() == NO_TASK:
            self._listen_to_both(number)
            # An end without a gradient took no part; else the passes went different ways.
            if self._parameters.tensors[self._sentinels[number][-1]].grad is not None:
                return None
        of = self._sentinels.get(number)
        return self._passes.count(of if of is not None else self._owned(number, self._passes.heard))

    def fresh(self, number: int) -> bool | None:
        """Whether the gradients of an optimizer began this window at zero; None where not known."""
        if self._moves_away(number):
            return None
        sentinels = self._sentinels.get(number)
        if sentinels is not None and sentinels[0] in self._freshness.begun:
            return self._freshness.begun[sentinels[0]]
        return self._freshness.seen(self._owned(number, self._passes.heard))

    def untouched(self, number: int) -> bool:
        """Whether the gradients of an optimizer are as its last window left them."""
        first = next(iter(self._sentinels.get(number, ())), None)
        return first is not None and self._freshness.untouched(first, self._gradient(first))

    @property
    def is_wary(self) -> bool:
        """Whether there is something to look at in :meth:`look_ahead`."""
        return bool(self._freshness.suspects)

    def look_ahead(self) -> None:
        """A backward pass is about to begin: look at gradients that may have been set to zero where they are."""
        if self._freshness.suspects:
            for index in self._freshness.suspects - self._freshness.begun.keys():
                self._freshness.look(index, self._gradient(index))

    def ever_heard(self, index: int) -> bool:
        """Whether a parameter has got a gradient since it is watched: until then it keeps its hook."""
        return index in self._order or index in self._late

    def gradients(self, number: int) -> int:
        """How many gradients of an optimizer were heard so far: it grows with every backward pass."""
        return self._gradients.get(number, 0)

    def ends(self) -> Mapping[int, Ends] | None:
        """The ends of all optimizers by their number, where they tell all that there is to hear; else None."""
        unsettled = self._whole or self._passes.heard or self._freshness.suspects
        if unsettled or len(self._ends) < len(self._optimizers) or self._closed_in != NO_TASK:
            return None
        return self._ends

    def rest(self, began: Callable[[], bool], surprised: Callable[[], object]) -> None:
        """Listen no more until :meth:`resume`. ``began``: whether a backward pass ran since the last update closed.

        ``surprised`` is called where a parameter gets its first gradient ever.
        """
        self._began, self._surprised = began, surprised
        for index in self._listened():
            self._unhook(index)

    def resume(self, left: Mapping[int, Stamp]) -> None:
        """Listen again. The last window left these gradients, by the optimizer's number."""
        self._began = None
        for index in self._listened():
            self._hook(index)
        for number, stamp in left.items():
            self._freshness.leave(self._sentinels[number][0], stamp)

    def pass_on(self) -> None:
        """Hear of the gradients that came: within a backward, what steps there may throw them away next."""
        self._hooks.pass_on()

    def overheard(self) -> bool:
        """Whether a backward pass ran that :attr:`heard` was not told of."""
        if self._began is not None:
            return self._began()
        return any(ends.overheard() for ends in self._ends.values())

    def close_window(self, consumed: Collection[int]) -> None:
        """An update closed, in which the gradients of the optimizers ``consumed`` were used up."""
        self._hooks.pass_on()
        self._windows += 1
        self._closed_in = graph_task()
        self._steps_inside = self._steps_inside or self._closed_in != NO_TASK
        heard = list(self._passes.heard)
        for number in consumed:
            sentinels = self._sentinels.get(number)
            if sentinels is not None and sentinels[0] not in heard and sentinels[-1] not in heard:
                self._miss(number)
        # Once only those are left that keep their hooks there is nothing to settle.
        settling = self._formats.sought or len(self._hooks) > len(self._kept)
        if settling:
            self._choose(heard)
        for index in heard:
            owner = self._owners.get(index)
            if owner is None or owner in consumed:
                del self._passes.heard[index]
                self._freshness.leave(index, stamp_of(self._gradient(index)))
        if settling:
            self._settle(heard)

    def news(self) -> Layout | None:
        """The layout if more is known than the last one said.

        New parameters are told at once, since a sample may refer to them; a trickle of formats at 1, 2, 4, 8
        and 16 windows.
        """
        if not self._grown and self._formats.sought and self._windows & (self._windows - 1):
            return None
        self._grown = self.has_news = False
        return self.layout()

    def layout(self) -> Layout:
        """What is known now.

        A compiled graph or a sharded group delivers gradients in an order of its own, so there the reverse of
        the forward order stands in for the order that was seen.
        """
        backward = self._order.indexes
        order: Order = "observed" if backward else "unknown"
        suspect = self._parameters.sharded or anything_compiled()
        delivered = suspect and not is_eager([self._parameters.module(index) for index in backward])
        if self._parameters.compiled or delivered:
            order, backward = "forward", list(reversed(range(len(self._parameters))))
        return self._parameters.layout(order, backward)

    def remove(self) -> None:
        for ends in self._ends.values():
            ends.remove()
        self._ends.clear()
        self._hooks.remove()

    def coming(self, index: int, tensor: torch.Tensor, gradient: torch.Tensor) -> None:
        """A gradient is about to be accumulated: of one that comes first in its window the format may be told."""
        # What steps inside a backward has begun the next window there.
        in_last = graph_task() == self._closed_in != NO_TASK
        if self._began is None and not in_last and index not in self._passes.heard:
            self._look(index, tensor, gradient)

    def gone(self, index: int) -> None:
        """What was looked at is no gradient of a training."""
        self._formats.forget(index)

    def note(self, index: int, tensor: torch.Tensor, task: int, *, graph: bool) -> None:
        """A gradient was accumulated."""
        if self._began is not None:
            self._hear_late(index)
            return
        # An optimizer that steps inside the backward closes the update there: what follows is no new one.
        if task == self._closed_in != NO_TASK:
            return
        owner = self._owners.get(index)
        # The second sentinel of a backward has no more to say than its count.
        first = task == NO_TASK or (task, owner) != self._latest
        if first:
            self._latest = (task, owner)
            self.heard(task, owner)
            self._closed_in = NO_TASK
            self._gradients[owner] = self._gradients.get(owner, 0) + 1
        count = self._add(index, stamp_of(self._gradient(index)), graph=graph)
        if first:
            self._counted(owner, count)
        if self._whole or index not in self._learnt:
            self._learn(index, tensor, task, alone=count == 1)

    def find(self, number: int, stamp: Stamp, *, graph: bool, added: int = 1) -> None:
        """So many backward passes of an optimizer, which no hook heard, were found in its first gradient."""
        self.heard(NO_TASK, number)
        self._gradients[number] = self._gradients.get(number, 0) + added
        count = self._add(self._sentinels[number][0], stamp, graph=graph, added=added)
        self._counted(number, count)

    def _add(self, index: int, stamp: Stamp, *, graph: bool, added: int = 1) -> int | None:
        identity, version = stamp or (0, -1)
        count = self._passes.hear(index, identity, version, graph=graph, added=added)
        self._freshness.hear(index, count, identity, version, graph=graph, added=added)
        return count

    def _learn(self, index: int, tensor: torch.Tensor, task: int, *, alone: bool) -> None:
        """``alone``: it is the gradient of a single micro-batch."""
        gradient = self._gradient(index)
        if alone and gradient is not None and self._hooks.hears_after(index):
            self._look(index, tensor, gradient)
        self._order.hear(index, task, whole=self._whole)

    def _look(self, index: int, tensor: torch.Tensor, gradient: torch.Tensor) -> None:
        if index not in self._order:
            self.has_news = True
            self._formats.seek(index, tensor)
        self._formats.look(index, local(gradient))

    def _choose(self, heard: Sequence[int]) -> None:
        """Choose sentinels for the optimizers that were heard and have none."""
        for number in {self._owners[index] for index in heard if index in self._owners} - self._sentinels.keys():
            owned = self._owned(number, heard)
            first, last = owned[0], owned[-1]
            self._sentinels[number] = tuple(dict.fromkeys((first, last)))
            self._kept.update(self._sentinels[number])
            # In the middle of a backward one end may be through and the other not.
            if self._closed_in == NO_TASK and self._passes.count(owned) is not None:
                if first != last:
                    self._kept.discard(last)
                self._ends[number] = Ends(self._parameters.tensors[first], self._parameters.tensors[last])

            for index in self._kept.intersection((first, last)):
                self._hook(index)

    def _settle(self, heard: Sequence[int]) -> None:
        news = [self._formats.settle(), self._order.close_window()]
        self.has_news = self.has_news or any(news)
        self._learnt.update(index for index in heard if index not in self._formats.sought)
        if self._order.unplaced and self._relistenings and not self._order.contradicted:
            self._listen_to_all()
            return
        for index in heard:
            if index not in self._kept and index not in self._formats.sought:
                self._unhook(index)
                # What it heard of a window that goes on without it says nothing of that window's end.
                self._passes.heard.pop(index, None)

    def _listen_to_all(self) -> None:
        """For one more window: a parameter was heard when others had no hook any more."""
        self._relistenings -= 1
        for index in range(self._armed):
            self._hook(index)
        self._whole = True

    def _miss(self, number: int) -> None:
        """Nothing was heard of an optimizer whose gradients were used up."""
        ends = self._ends.get(number)
        if ends is not None and ends.overheard():
            self._listen_to_both(number)
        else:
            self._listen_again(number)

    def _listen_to_both(self, number: int) -> None:
        self._ends.pop(number).remove()
        last = self._sentinels[number][-1]
        self._kept.add(last)
        self._hook(last)

    def _listen_again(self, number: int) -> None:
        if number in self._ends:
            self._ends.pop(number).remove()
        self._kept.difference_update(self._sentinels.pop(number))
        for index in self._owned(number, range(self._armed)):
            self._hook(index)

    def _gradient(self, index: int) -> torch.Tensor | None:
        """The local shard of a parameter's gradient: the same tensor as the hooks are shown."""
        gradient = self._parameters.tensors[index].grad
        # The usual one first: to enter no_grad takes longer than all the rest.
        if gradient is None or type(gradient) is torch.Tensor:
            return gradient
        with torch.no_grad():
            return local(gradient)

    def _hear_late(self, index: int) -> None:
        if not self.ever_heard(index):
            self._late.add(index)
            self._surprised()

    def _listened(self) -> set[int]:
        """What has hooks once all has settled: some gradients never tell in which format they are computed."""
        return {self._sentinels[number][0] for number in self._ends} | self._formats.sought.keys()

    def _moves_away(self, number: int) -> bool:
        """Whether gradients leave their parameters in between, and so tell nothing of the pass before."""
        optimizer = self._optimizers[number]
        return isinstance(optimizer, LibraryOptimizer) and optimizer.moves_gradients

    def _owned(self, number: int, indexes: Iterable[int]) -> list[int]:
        return [index for index in indexes if self._owners.get(index) == number]

    def _hook(self, index: int) -> None:
        after = index in self._kept and not self._steps_inside
        self._hooks.hang(index, self._parameters.tensors[index], after=after)

    def _unhook(self, index: int) -> None:
        if self._hooks.take_off(index):
            self._whole = False


def anything_compiled() -> bool:
    """Whether this process has compiled a function: it may be one around a watched model, which does not tell."""
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    return bool(getattr(dynamo, "FRAME_COUNTER", 0))
