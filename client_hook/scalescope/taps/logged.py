"""What the user logs: numbers of any kind, taken as they come; anything else is counted, never raised."""

from __future__ import annotations

import logging
import numbers
from collections.abc import Mapping

import numpy as np
import torch

from scalescope.readback import Value, read_later
from scalescope.taps.facts import is_name

# The hook and the server make these series themselves.
RESERVED = frozenset(
    {
        "scale",
        "skipped",
        "applied",
        "attempted",
        "growth_tracker",
        "step_ms",
        "amax",
        "zero_share",
        "subnormal_share",
        "flush_share",
        "update_ratio",
    }
)
# The wire carries 1,024 columns, the hook's own included.
MAX_NAMES = 1000

logger = logging.getLogger("scalescope")


class Intake:
    """Turns what ``log`` was given into values. ``refused`` counts what could not be one."""

    def __init__(self) -> None:
        self.refused = 0
        self._names: set[str] = set()
        self._told = False

    def take(self, given: Mapping[str, object]) -> dict[str, Value]:
        """The values among ``given``. The first refusal is told in a log line, the others are counted."""
        taken = {}
        for name, thing in given.items():
            value = as_value(thing)
            if value is None or not self._fits(name):
                self._refuse(name, thing)
            else:
                taken[name] = value
        return taken

    def _fits(self, name: str) -> bool:
        if name in self._names:
            return True
        fits = is_name(name) and name not in RESERVED and len(self._names) < MAX_NAMES
        if fits:
            self._names.add(name)
        return fits

    def _refuse(self, name: str, thing: object) -> None:
        self.refused += 1
        if not self._told:
            self._told = True
            logger.warning(
                "scalescope: log(%.64s=...): expected a number or a tensor of one element under a name that is not "
                "the hook's own, got %s; it was left out, and later ones are only counted",
                # A lone surrogate would make the log's own stream fail.
                name.encode("utf-8", "backslashreplace").decode(),
                type(thing).__name__,
            )


def as_value(thing: object) -> Value | None:
    """A real number, or a reading of a tensor that holds one; None for anything else."""
    # The usual ones first: this runs in the training loop.
    if isinstance(thing, float | int):
        return _as_float(thing)
    if type(thing) is torch.Tensor and thing.is_cpu:
        # Few questions: each takes a microsecond when torch has to be found in memory again.
        number = thing.item() if thing.numel() == 1 else None
        return _as_float(number) if isinstance(number, float | int) else None
    if isinstance(thing, torch.Tensor):
        # A sharded tensor's number would take a collective to know.
        plain = thing.numel() == 1 and not thing.is_complex() and not thing.is_meta and not hasattr(thing, "to_local")
        return read_later(thing) if plain else None
    if isinstance(thing, np.ndarray | np.generic):
        return float(thing.item()) if thing.size == 1 and thing.dtype.kind in "biuf" else None
    return _as_float(thing) if isinstance(thing, numbers.Real) else None


def _as_float(thing: numbers.Real | float) -> float | None:
    try:
        return float(thing)
    except OverflowError:
        return None
