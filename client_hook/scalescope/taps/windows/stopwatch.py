"""Where the time of an update goes, by the host's clock and less what the hook itself took.

Only for a training on the CPU: elsewhere the host runs ahead of the device, and its clock says nothing. A forward
is timed where modules are heard. A backward begins where the loss was scaled, else where a forward ended, and ends
when autograd says so. The optimizers' time is that of their steps, with a scaler of its ``step``: unscaling inside
it included. What was not timed of every backward pass of an update is not told.

Updates that are sampled are timed, and no others: to hear of the end of a backward takes as long as much of what the
hook does else.
"""

from __future__ import annotations

from time import perf_counter_ns

from torch.autograd import Variable

from scalescope.readback import Value
from scalescope.taps.edge import Edge


class Stopwatch:
    """Adds up the parts of one update. Methods are named after the moment they are called at.

    Where it is not ``running``, nothing need be called.
    """

    def __init__(self, edge: Edge) -> None:
        self.enabled = self.running = False
        self._edge = edge
        self._task: int | None = None
        self._begin()

    def forward_began(self) -> None:
        self._from = self._now()

    def forward_ended(self) -> None:
        self._forward += self._now() - self._from
        self._forwards += 1
        self.loss_scaled()

    def loss_scaled(self) -> None:
        """A backward is about to begin."""
        self._awaits, self._backward_from = True, self._now()

    def hear_backward(self, task: int) -> None:
        """Inside the backward of this number."""
        if task != self._task:
            self._task = task
            self._passes += 1
        if self._awaits:
            self._awaits = False
            # What torch's own parallel wrappers are told by.
            Variable._execution_engine.queue_callback(self._backward_ended)  # noqa: SLF001

    def step_began(self) -> None:
        self._step_from = self._now()

    def step_ended(self) -> None:
        self._step += self._now() - self._step_from

    def close(self, values: dict[str, Value], *, goes_on: bool) -> None:
        """Enter what was timed into the columns of an update, and begin the next, which is timed if it ``goes_on``."""
        if self.running:
            self._enter(values)
            self._begin()
        self.running = self.enabled and goes_on

    def _begin(self) -> None:
        self._forward = self._backward = self._step = 0
        self._forwards = self._backwards = self._passes = 0
        # When each of them began, less what the hook had taken by then.
        self._from = self._backward_from = self._step_from = 0
        self._awaits = False

    def _enter(self, values: dict[str, Value]) -> None:
        if self._forward and self._forwards == self._passes:
            values["forward_ms"] = self._forward / 1e6
        if self._backward and self._backwards == self._passes:
            values["backward_ms"] = self._backward / 1e6
        if self._step:
            values["optimizer_ms"] = self._step / 1e6

    def _backward_ended(self) -> None:
        self._backward += self._now() - self._backward_from
        self._backwards += 1

    def _now(self) -> int:
        return perf_counter_ns() - self._edge.spent_ns
