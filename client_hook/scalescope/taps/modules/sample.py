"""What was heard of the modules in one update, as records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scalescope.readback import number
from scalescope.taps.modules.heard import Entry, Numbers
from scalescope.taps.modules.origin import Looked, Origins
from scalescope.updates import Update, reason_of
from scalescope.wire import Record, SampleReason, Tally

# An entry in memory: its numbers and what holds them.
_ENTRY_BYTES = 256
_COLUMNS = {"forward": "forward", "backward": "grad_output"}


class ModuleSample:
    """An extra of an update. ``dense``: it was listened to because of trouble before it, not by the clock."""

    def __init__(self, looked: Looked, origins: Origins, *, dense: bool) -> None:
        self._looked = looked
        self._origins = origins
        self._dense = dense

    @property
    def nbytes(self) -> int:
        return _ENTRY_BYTES * len(self._looked.heard.entries)

    def ready(self) -> bool:
        return self._looked.ready()

    def records(self, update: Update) -> list[Record]:
        return [*self._tally(update), *self._origins.events(update, self._looked)]

    def _tally(self, update: Update) -> list[Record]:
        heard = self._looked.heard
        indexes, columns = tallied_modules(heard.entries, heard.numbers())
        if not indexes.size:
            return []
        return [
            Tally(
                sequence=0,
                step=update.step,
                at=update.at,
                subject="module",
                reason=heard_because(update, dense=self._dense),
                scale=None if update.scale is None else number(update.scale),
                indexes=indexes.astype("<i4").tobytes(),
                columns={name: values.astype("<f8").tobytes() for name, values in columns.items()},
            )
        ]


def heard_because(update: Update, *, dense: bool) -> SampleReason:
    """Why the modules of ``update`` were heard; by the clock even where the optimizer rested whose turn it was.

    ``dense``: they were heard because of trouble before it.
    """
    reason = reason_of(update)
    return reason if dense or reason != "request" else "periodic"


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
