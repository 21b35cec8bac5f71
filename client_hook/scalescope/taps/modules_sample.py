"""What was heard of the modules in one update, as records."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from scalescope.readback import number
from scalescope.taps.modules_heard import Entry, Heard, Numbers
from scalescope.updates import Update, reason_of
from scalescope.wire import Event, Record, SampleReason, Tally

# An entry in memory: its numbers and what holds them.
_ENTRY_BYTES = 256
_COLUMNS = {"forward": "forward", "backward": "grad_output"}

# The event of an update in which something was not finite, if it is worth one.
Telling = Callable[[Update, Sequence[Entry], Numbers], list[Event]]


class ModuleSample:
    """An extra of an update. ``dense``: it was listened to because of trouble before it, not by the clock."""

    def __init__(self, heard: Heard, telling: Telling, *, dense: bool) -> None:
        self._heard = heard
        self._telling = telling
        self._dense = dense

    @property
    def nbytes(self) -> int:
        return _ENTRY_BYTES * len(self._heard.entries)

    def ready(self) -> bool:
        return self._heard.ready()

    def records(self, update: Update) -> list[Record]:
        numbers = self._heard.numbers()
        events = self._telling(update, self._heard.entries, numbers)
        return [*self._tally(update, numbers), *events]

    def _tally(self, update: Update, numbers: Numbers) -> list[Record]:
        indexes, columns = tallied_modules(self._heard.entries, numbers)
        if not indexes.size:
            return []
        return [
            Tally(
                sequence=0,
                step=update.step,
                at=update.at,
                subject="module",
                reason=self._reason(update),
                scale=None if update.scale is None else number(update.scale),
                indexes=indexes.astype("<i4").tobytes(),
                columns={name: values.astype("<f8").tobytes() for name, values in columns.items()},
            )
        ]

    def _reason(self, update: Update) -> SampleReason:
        """By the clock even where the optimizer rested whose turn was expected."""
        reason = reason_of(update)
        return reason if self._dense or reason != "request" else "periodic"


def tallied_modules(
    entries: Sequence[Entry], numbers: Numbers
) -> tuple[NDArray[np.int64], dict[str, NDArray[np.float64]]]:
    """(the modules that were heard, int64 [rows]; the columns of their tally, float64 [rows], NaN: not heard)."""
    modules = np.array([entry.module for entry in entries if entry.where != "input"], np.int64)
    indexes = np.unique(modules)
    columns: dict[str, NDArray[np.float64]] = {}
    for where, prefix in _COLUMNS.items():
        places = np.array([place for place, entry in enumerate(entries) if entry.where == where], np.intp)
        rows = np.searchsorted(indexes, [entries[place].module for place in places])
        numel = np.array([entries[place].numel for place in places], np.float64)
        heard = np.bincount(rows, minlength=len(indexes)) > 0
        amax = np.zeros(len(indexes))
        np.maximum.at(amax, rows, numbers.amax[places])
        sums = [np.bincount(rows, values, len(indexes)) for values in (numbers.nonfinite[places], numel)]
        for name, values in zip(("amax", "nonfinite", "numel"), (amax, *sums), strict=True):
            columns[f"{prefix}_{name}"] = np.where(heard, values, np.nan)
    return indexes, columns
