"""Steps that the watched scaler does not know of: ``optimizer.step()`` called directly, or by another scaler.

Where the scaler closes an update before the optimizer's next backward, they belong to that. Where it does not,
each of them is an update of its own, which is recorded, and told about in one log line.
"""

from __future__ import annotations

from scalescope.readback import Value
from scalescope.taps.backward.hooks import NO_TASK
from scalescope.taps.loop import Loop

# So many steps between two updates of the scaler are no odd one out.
_PATIENCE = 16


class OutsideSteps:
    """Counts them from one update of the scaler to the next. Optimizers go by their number."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        # Who stepped in the update under way; and the scale that the scaler had then.
        self._waiting: set[int] = set()
        self._scale: Value | None = None
        self.unclosed = 0

    def hear_backward(self, task: int = NO_TASK, number: int | None = None) -> None:
        """A backward pass reaches an optimizer: if that has stepped, it is of the next update."""
        if self._waiting and number in self._waiting:
            self.finish()
        self._loop.hear_backward(task)

    def step(self, number: int, scale: Value | None) -> None:
        """An optimizer stepped without the scaler, whose scale is ``scale``."""
        optimizer = self._loop.optimizers[number]
        # Only from the first one on, since most loops have none.
        self._loop.pass_through(self.hear_backward)
        self._scale = scale
        self._waiting.add(number)
        self._loop.windows.outside[self._loop.name(optimizer)] = None
        self._loop.consume(optimizer)
        self._loop.windows.seal(number)
        self.unclosed += 1
        if self.unclosed == _PATIENCE:
            self._loop.advise(
                "%s has stepped %d times without the scaler that is watched: pass watch() the scaler "
                "that the loop steps with, or none where it uses none",
                self._loop.name(optimizer),
                _PATIENCE,
            )

    def closed(self) -> None:
        """The scaler closed an update."""
        self._waiting.clear()
        self.unclosed = 0

    def finish(self) -> None:
        """Close an update that the scaler did not close."""
        if self._waiting:
            self._waiting.clear()
            self._loop.close(scale=self._scale, next_scale=self._scale)
