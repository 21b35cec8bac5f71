"""Where the time of an update goes, by the host's clock and less what the hook itself took.

Only for a training on the CPU: elsewhere the host runs ahead of the device, and its clock says nothing. A
backward begins where the loss was scaled, or where a forward ended that somebody told of; where neither is heard
it is not timed. It ends when autograd says so. The optimizers' time is that of their steps, with a scaler of its
``step``: unscaling inside it included.

One update in four is timed: to hear of the end of a backward takes as long as much of what the hook does else.
"""

from __future__ import annotations

from time import perf_counter_ns

from torch.autograd import Variable

from scalescope.readback import Value
from scalescope.taps.edge import Edge

_EVERY = 4


class Stopwatch:
    """Adds up the parts of one update. Methods are named after the moment they are called at.

    Where it is not ``running``, nothing need be called.
    """

    def __init__(self, edge: Edge) -> None:
        self.enabled = self.running = False
        self._updates = 0
        # Whether a backward is about to run whose end is to be heard.
        self.awaits = False
        self._edge = edge
        # What was spent on each part; when the one that is running began, less what the hook had taken by then.
        self._forward = self._backward = self._step = 0
        self._forward_from = self._backward_from = self._step_from = 0

    def forward_began(self) -> None:
        self._forward_from = perf_counter_ns() - self._edge.spent_ns

    def forward_ended(self) -> None:
        self._forward += perf_counter_ns() - self._edge.spent_ns - self._forward_from
        self.loss_scaled()

    def loss_scaled(self) -> None:
        self.awaits = True
        self._backward_from = perf_counter_ns() - self._edge.spent_ns

    def await_end(self) -> None:
        """Inside a backward: hear of its end, once."""
        self.awaits = False
        # What torch's own parallel wrappers are told by.
        Variable._execution_engine.queue_callback(self._backward_ended)  # noqa: SLF001

    def step_began(self) -> None:
        self._step_from = perf_counter_ns() - self._edge.spent_ns

    def step_ended(self) -> None:
        self._step += perf_counter_ns() - self._edge.spent_ns - self._step_from

    def close(self, values: dict[str, Value]) -> None:
        """Enter what was timed into the columns of an update, and begin the next."""
        if self.running:
            self._enter(values)
        self._updates += 1
        self.running = self.enabled and not self._updates % _EVERY

    def _enter(self, values: dict[str, Value]) -> None:
        if self._forward:
            values["forward_ms"] = self._forward / 1e6
        if self._backward:
            values["backward_ms"] = self._backward / 1e6
        if self._step:
            values["optimizer_ms"] = self._step / 1e6
        self._forward = self._backward = self._step = 0
        self.awaits = False

    def _backward_ended(self) -> None:
        self._backward += perf_counter_ns() - self._edge.spent_ns - self._backward_from
