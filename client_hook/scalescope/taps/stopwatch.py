"""Where the time of an update goes, by the host's clock and less what the hook itself took.

Only for a training on the CPU: elsewhere the host runs ahead of the device, and its clock says nothing. A
backward begins where the loss was scaled, or where a forward ended that somebody told of; where neither is heard
it is not timed. It ends when autograd says so. The optimizers' time is that of their steps, with a scaler of its
``step``: unscaling inside it included.
"""

from __future__ import annotations

from time import perf_counter_ns

from torch.autograd import Variable

from scalescope.readback import Value
from scalescope.taps.edge import Edge

# When something began, and what the hook had taken by then.
Moment = tuple[int, int]


class Stopwatch:
    """Adds up the parts of one update. Methods are named after the moment they are called at."""

    def __init__(self, edge: Edge) -> None:
        self.enabled = False
        self._edge = edge
        self._spent: dict[str, int] = {}
        self._forward: Moment | None = None
        self._backward: Moment | None = None
        self._step: Moment | None = None

    def forward_began(self) -> None:
        self._forward = self._now()

    def forward_ended(self) -> None:
        self._enter("forward_ms", self._forward)
        self._forward, self._backward = None, self._now()

    def loss_scaled(self) -> None:
        self._backward = self._now()

    def await_end(self) -> None:
        """Inside a backward: hear of its end, once."""
        if self._backward is not None:
            began, self._backward = self._backward, None
            # What torch's own parallel wrappers are told by.
            Variable._execution_engine.queue_callback(_End(self, began))  # noqa: SLF001

    def backward_ended(self, began: Moment) -> None:
        self._edge.call(self._enter, "backward_ms", began)

    def step_began(self) -> None:
        self._step = self._now()

    def step_ended(self) -> None:
        self._enter("optimizer_ms", self._step)
        self._step = None

    def close(self, values: dict[str, Value]) -> None:
        """Enter what was timed into the columns of an update, and begin the next."""
        for part, spent in self._spent.items():
            values[part] = spent / 1e6
        self._spent.clear()

    def _now(self) -> Moment | None:
        return (perf_counter_ns(), self._edge.spent_ns) if self.enabled else None

    def _enter(self, part: str, began: Moment | None) -> None:
        if began is not None:
            own = max(self._edge.spent_ns - began[1], 0)
            self._spent[part] = self._spent.get(part, 0) + max(perf_counter_ns() - began[0] - own, 0)


class _End:
    """What autograd calls when a backward is through."""

    __slots__ = ("_began", "_stopwatch")

    def __init__(self, stopwatch: Stopwatch, began: Moment) -> None:
        self._stopwatch = stopwatch
        self._began = began

    def __call__(self) -> None:
        self._stopwatch.backward_ended(self._began)
