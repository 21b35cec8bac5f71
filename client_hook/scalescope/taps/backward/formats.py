"""In which format gradients are computed, found parameter by parameter in the first backward passes."""

from __future__ import annotations

import torch

from scalescope.taps.backward.grid import GridCheck, check_grid
from scalescope.taps.parameters import Parameters

# Gradients that are all zero or not finite tell no format; a scale that is still settling skips about this long.
# Of these the 1st, 2nd, 4th, 8th and 16th are looked at: many stay zero for long (an adapter's, a resting expert's).
_ATTEMPTS = 16


class Formats:
    """Looks at gradients until each told its format, or had its chances."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        # Index -> how many gradients it has got, of those whose format is still sought.
        self.sought: dict[int, int] = {}
        self._checks: dict[int, GridCheck] = {}

    def seek(self, index: int, tensor: torch.Tensor) -> None:
        """The first gradient of a parameter came. Only in fp32 does the dtype not tell the format.

        A sum over ranks leaves the grid of what each of them has computed.
        """
        if tensor.dtype == torch.float32 and not self._parameters.shares.is_summed(tensor):
            self.sought[index] = 0

    def look(self, index: int, gradient: torch.Tensor) -> None:
        """A gradient (its local shard) of a single micro-batch: of two, the sum leaves the grid of either."""
        if index in self.sought and index not in self._checks:
            self.sought[index] = came = self.sought[index] + 1
            if not came & (came - 1):
                self._checks[index] = check_grid(gradient)

    def forget(self, index: int) -> None:
        """What was looked at in this window came to nothing."""
        self._checks.pop(index, None)

    def settle(self) -> bool:
        """Enter what was found; whether anything was."""
        news = False
        for index in [index for index, check in self._checks.items() if check.ready()]:
            verdict = self._checks.pop(index).verdict()
            if verdict is not None:
                self._parameters.set_format(index, verdict)
                news = True
            if verdict is not None or self.sought[index] >= _ATTEMPTS:
                del self.sought[index]
        return news
