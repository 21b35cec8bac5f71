"""Some rules of a run that are evaluated together: fed with the same, and restored from as far back.

Rules on layers see again the updates that they reach back to and no more, whatever others ask for; and where one rule
changes, the windows of the others stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from scalescope_server.rules.alert import Alert, State, Transition
from scalescope_server.rules.dependence import silences
from scalescope_server.rules.expression import Duration, Seconds
from scalescope_server.rules.stretch import Stretch
from scalescope_server.rules.ticks import Pulse
from scalescope_server.rules.watch import Watch
from scalescope_server.watching.book import Entry
from scalescope_server.watching.stretches import together

# Told of each transition: the rule, its alert before and after it, and the transition. Answered is the alert that it
# goes on with.
Hear = Callable[[Entry, Alert, Alert, Transition], Alert]


class Post:
    """``entries``: not empty, with the ``alerts`` that they begin with. One that is left says nothing any more."""

    def __init__(self, entries: Sequence[Entry], alerts: Sequence[Alert]) -> None:
        self.entries = tuple(entries)
        self.needs = together([entry.compiled.needs for entry in entries])
        self._watch = Watch([entry.compiled for entry in entries], alerts)
        self._places = {entry.row.id: place for place, entry in enumerate(entries)}
        # Of how many layers or modules it may hold windows.
        self.layers = 0

    @property
    def here(self) -> tuple[Entry, ...]:
        """Those that have not been left."""
        return tuple(self.entries[place] for place in self._places.values())

    def leave(self, rules: Collection[int]) -> None:
        """Hear no more of these rules."""
        self._places = {rule: place for rule, place in self._places.items() if rule not in rules}

    def alerts(self) -> dict[int, Alert]:
        """By rule."""
        return {rule: self._watch.alerts[place] for rule, place in self._places.items()}

    def remember(self, alerts: Mapping[int, Alert]) -> None:
        """What was told of alerts that have not moved."""
        for rule, alert in alerts.items():
            if rule in self._places:
                self._watch.put(self._places[rule], alert)

    def replay(self, past: Stretch) -> None:
        """See updates again that were judged before."""
        self._watch.replay(past)
        self.layers = max(self.layers, _layers_of(past))

    def see(self, stretch: Stretch, hear: Hear) -> None:
        """Judge updates."""
        self._watch.stretch(stretch, partial(self._hear, hear))
        if self.needs.measures:
            self.layers = max(self.layers, _layers_of(stretch))

    def pass_time(self, pulse: Pulse, hear: Hear) -> None:
        """Judge that time has passed and no update come."""
        self._watch.pulse(pulse, partial(self._hear, hear))

    def credible_after_s(self, state: str, silent_after_s: float) -> float:
        """For how long nothing must have come, and could have been stored, before what it says of that is true."""
        asked = [entry.silence_s for entry in self.here]
        if state == "silent" and any(entry.asks_state for entry in self.here):
            asked.append(silent_after_s)
        return max(asked, default=0.0)

    def waits(self, silent_s: float, at: float) -> Iterable[float]:
        """In how many seconds any may say something new if no update comes. ``at``: now, by the clock of updates."""
        for rule, place in self._places.items():
            entry, alert = self.entries[place], self._watch.alerts[self._places[rule]]
            if entry.compiled.condition is None:
                continue
            yield from (asked - silent_s for asked in silences(entry.compiled.condition) if asked > silent_s)
            yield from _rest(alert, State.PENDING, alert.held_at, entry.compiled.terms.hold, at)
            yield from _rest(alert, State.RECOVERING, alert.since_at, entry.compiled.terms.keep_firing, at)

    def _hear(self, hear: Hear, index: int, alert: Alert, transition: Transition) -> Alert:
        entry = self.entries[index]
        if entry.row.id not in self._places:
            return alert
        return hear(entry, self._watch.alerts[index], alert, transition)


def _layers_of(stretch: Stretch) -> int:
    return max((len(sampled.names) for sampled in stretch.layers.values()), default=0)


def _rest(alert: Alert, state: State, since: float | None, lasts: Duration | None, at: float) -> Iterable[float]:
    """How long it still stays in ``state`` by time alone."""
    if alert.state is state and since is not None and isinstance(lasts, Seconds):
        yield max(since + lasts.seconds - at, 0.0)


def grouped(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Those that belong together."""
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for entry in entries:
        needs = entry.compiled.needs
        kind = (bool(needs.measures or needs.ranks), needs.findings, needs.pulses, entry.silence_s, entry.asks_state)
        groups.setdefault(kind, []).append(entry)
    return list(groups.values())
