"""The first non-finite value of an update: where it came up before all others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from scalescope.taps.modules.heard import Heard, Where
from scalescope.taps.modules.named import Modules
from scalescope.taps.modules.state import State
from scalescope.updates import Update
from scalescope.wire import Event

Found = dict[str, object]


@dataclass(frozen=True, slots=True)
class Looked:
    """What was looked at of an update: what was heard, and what the model carried into it and out of it."""

    heard: Heard
    before: State | None = None
    after: State | None = None

    def ready(self) -> bool:
        """Whether all numbers are on the host. Asks, never waits."""
        states = [state.heard for state in (self.before, self.after) if state is not None]
        return all(heard.ready() for heard in (self.heard, *states))


class Origins:
    """Tells the events of one scope. Only the link's thread calls it."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._last: list[tuple[object, object]] = []

    def events(self, update: Update, looked: Looked) -> list[Event]:
        """The event of ``update``, if something was not finite.

        What stays as it was is told once while nothing comes of it: a mask that a module answers holds -inf at
        every update of a healthy training.
        """
        names = [entry.name for entry in self._modules.entries]
        found = list(first_nonfinite(looked, names, skipped=update.skipped))
        places = [(one["where"], one["name"]) for one in found]
        known, self._last = places == self._last, places
        if not found or (known and not update.skipped):
            return []
        data = json.dumps({**found[0], "also": found[1:]})
        return [Event(sequence=0, step=update.step, at=update.at, kind="nonfinite", data=data)]


def first_nonfinite(looked: Looked, names: Sequence[str], *, skipped: bool) -> Iterator[Found]:
    """Of each place that values pass, the first that was not finite, as executed; in the order of diagnosis.

    What the model carried into an update explains what it made of it, what it carried out of one follows from
    that. The parameters that a skipped update leaves are those it began with, unless what it made of them was finite:
    then something else has written them.
    """
    yield from _first(looked.heard, "input", names)
    begun = looked.before or (looked.after if skipped and not _answered(looked.heard, names) else None)
    if looked.before is not None:
        yield from _first(looked.before.heard, "buffer", looked.before.names)
    if begun is not None:
        yield from _first(begun.heard, "parameter", begun.names)
    yield from _first(looked.heard, "forward", names)
    yield from _first(looked.heard, "backward", names)
    if looked.after is not None:
        yield from _first(looked.after.heard, "buffer", looked.after.names)
        if looked.after is not begun:
            yield from _first(looked.after.heard, "parameter", looked.after.names)


def _answered(heard: Heard, names: Sequence[str]) -> bool:
    """Whether modules were heard to answer, and nothing but finite values."""
    spoken = any(entry.where == "forward" for entry in heard.entries)
    return spoken and next(_first(heard, "forward", names), None) is None


def _first(heard: Heard, where: Where, names: Sequence[str]) -> Iterator[Found]:
    """``count``: how many values of that one tensor were not finite."""
    nonfinite = heard.numbers().nonfinite
    for place in np.flatnonzero(nonfinite).tolist():
        if heard.entries[place].where == where:
            name = names[heard.entries[place].module]
            yield {"where": where, "name": name, "count": int(nonfinite[place])}
            return
