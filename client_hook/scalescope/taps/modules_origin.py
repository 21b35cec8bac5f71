"""The first non-finite value of an update: which module answered it, or got it back, before all others."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from scalescope.taps.modules_heard import Entry, Numbers, Where
from scalescope.taps.modules_named import Modules
from scalescope.updates import Update
from scalescope.wire import Event

# The order of diagnosis: what comes first brings about what follows.
_ORDER: tuple[Where, ...] = ("input", "forward", "backward")

Found = dict[str, object]


class Origins:
    """Tells the events of one scope. Only the link's thread calls it."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._last: list[list[object]] = []

    def events(self, update: Update, entries: Sequence[Entry], numbers: Numbers) -> list[Event]:
        """The event of ``update``, if something was not finite.

        What stays as it was is told once while nothing comes of it: a mask that a module answers holds -inf at
        every update of a healthy training.
        """
        found = first_nonfinite(entries, numbers, [entry.name for entry in self._modules.entries])
        places = [[one["where"], one["name"]] for one in found]
        if not found or (places == self._last and not update.skipped):
            self._last = places
            return []
        self._last = places
        data = {**found[0], "also": found[1:]}
        return [Event(sequence=0, step=update.step, at=update.at, kind="nonfinite", data=json.dumps(data))]


def first_nonfinite(entries: Sequence[Entry], numbers: Numbers, names: Sequence[str]) -> list[Found]:
    """Of each place that values pass, the first module, as executed, with a non-finite one; in the order of diagnosis.

    ``count`` is how many were not finite in that one tensor.
    """
    bad = np.flatnonzero(numbers.nonfinite)
    first: dict[Where, int] = {}
    for place in bad.tolist():
        first.setdefault(entries[place].where, place)
    return [
        {"where": where, "name": names[entries[first[where]].module], "count": int(numbers.nonfinite[first[where]])}
        for where in _ORDER
        if where in first
    ]
