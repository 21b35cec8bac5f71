"""The rules on one run as they stand after the last pass: fed with what came since, asked what became of them.

What it remembers is rebuilt out of the store at any time: alerts as they were committed, windows by seeing again the
updates that they reach back to. Who could not commit what it has said throws it away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from scalescope_server.rules.alert import Alert, Transition
from scalescope_server.rules.compiled import Compiled
from scalescope_server.rules.dependence import Needs
from scalescope_server.rules.stretch import Stretch
from scalescope_server.rules.telling import Hush, tell
from scalescope_server.rules.ticks import Pulse
from scalescope_server.rules.watch import Watch
from scalescope_server.store.alert_records import AlertJudged, DeliveryRow, KeptAlert, TransitionRow, Watched
from scalescope_server.store.judging import Position
from scalescope_server.store.outbox import BROWSER
from scalescope_server.store.vigil import Vigil
from scalescope_server.watching.book import Entry
from scalescope_server.watching.notices import deliveries_of, notice_of
from scalescope_server.watching.stretches import end_of, together


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What decides whom to tell, besides the rules.

    ``now``: by our clock. ``kept``: by rule, with what people asked of its alert. ``silenced_until``: nothing is told
    of the run's project. ``channels``: the names of those that are on.
    """

    now: float
    kept: Mapping[int, KeptAlert] = field(default_factory=dict)
    silenced_until: float | None = None
    channels: tuple[str, ...] = ()

    def hush(self, rule: int, firing: int) -> Hush:
        """What people asked for. Acknowledged is one firing, by its number: times of trainers are by their clocks."""
        kept = self.kept.get(rule)
        if kept is None:
            return Hush(silenced_until=self.silenced_until)
        acknowledged = kept.acknowledged_at is not None and kept.firings == firing
        return Hush(math.inf if acknowledged else None, kept.muted_until, self.silenced_until)


@dataclass(slots=True)
class _Said:
    """What became of one alert since the last commit."""

    transitions: list[TransitionRow] = field(default_factory=list)
    deliveries: list[DeliveryRow] = field(default_factory=list)


class Lookout:
    """``position``: the last update that it has seen; ``at``: when that was, by the trainer's clock.

    ``surroundings``: asked for when there is something to tell, once a pass; :meth:`tell_open` ends one.
    """

    def __init__(
        self,
        vigil: Vigil,
        entries: Sequence[Entry],
        kept: Sequence[KeptAlert],
        position: Position,
        surroundings: Callable[[], Surroundings],
    ) -> None:
        self.vigil = vigil
        self.position = position
        self.at: float | None = None
        self.entries = tuple(entries)
        self.needs = _needs([entry.compiled for entry in entries])
        self._surroundings = surroundings
        self._around: Surroundings | None = None
        alerts = {each.rule: _recalled(each) for each in kept}
        self._watch = Watch([e.compiled for e in entries], [alerts.get(e.row.id, Alert()) for e in entries])
        self._committed = list(self._watch.alerts)
        self._said: dict[int, _Said] = {}
        self._scale: float | None = None
        self._stretch: Stretch | None = None

    @property
    def pulses(self) -> bool:
        """Whether any rule asks for time that passes without an update."""
        return self.needs.pulses

    def is_of(self, vigil: Vigil) -> bool:
        """Whether it knows all that was committed of the run and the rules up to ``vigil``."""
        mine = self.vigil
        return (mine.revision, mine.name, mine.project, mine.tags) == (
            vigil.revision,
            vigil.name,
            vigil.project,
            vigil.tags,
        ) and vigil.position in (None, self.position)

    def replay(self, past: Stretch) -> None:
        """See updates again that led up to where it stands; nothing is judged by them."""
        self._watch.replay(past)
        self._note(past)

    def see(self, stretch: Stretch) -> None:
        """Judge the updates that follow."""
        self._stretch = stretch
        self._watch.stretch(stretch, self._hear)
        self._stretch = None
        self._note(stretch)
        self.position = end_of(stretch)

    def pass_time(self, pulse: Pulse) -> None:
        """Judge that time has passed and no update come."""
        self._watch.pulse(pulse, self._hear)

    def tell_open(self) -> None:
        """Tell of what fires and could not be told of before: muted it was, or too soon after another."""
        for index, alert in enumerate(self._watch.alerts):
            if alert.is_open and alert.told != alert.firing:
                self._watch.alerts[index] = self._told(index, alert, self.position.step)
        self._around = None

    def outcome(self, fence: int | None) -> Watched:
        """What is to be committed: the alerts that are not as they were."""
        changed = [
            index
            for index, (before, after) in enumerate(zip(self._committed, self._watch.alerts, strict=True))
            if before != after
        ]
        alerts = tuple(self._judged(index) for index in changed)
        return Watched(self.vigil.run, self.vigil.revision, self.position, alerts, fence)

    def committed(self) -> None:
        """What was said is stored."""
        self._committed = list(self._watch.alerts)
        self._said.clear()

    @property
    def is_waiting(self) -> bool:
        """Whether something fires that has not been told of."""
        return any(alert.is_open and alert.told != alert.firing for alert in self._watch.alerts)

    def _note(self, stretch: Stretch) -> None:
        self.at = float(stretch.at[-1])
        self._scale = _scale_at(stretch, len(stretch) - 1, self._scale)

    def _hear(self, index: int, alert: Alert, transition: Transition) -> Alert:
        said = self._said.setdefault(index, _Said())
        if {transition.before.value, transition.after.value} != _UNEVENTFUL:
            said.transitions.append(_row_of(transition))
        return self._told(index, alert, transition.step)

    def _told(self, index: int, alert: Alert, step: int | None) -> Alert:
        if not alert.is_open and alert.told_resolved == alert.firing:
            return alert
        around = self._around = self._around or self._surroundings()
        entry = self.entries[index]
        hush = around.hush(entry.row.id, alert.firing)
        alert, happened = tell(alert, step, around.now, hush=hush, cooldown=entry.compiled.cooldown)
        if happened is not None:
            notice = notice_of(entry.rule, self.vigil, alert, happened, self._scale_of(step))
            said = self._said.setdefault(index, _Said())
            said.deliveries += deliveries_of(notice, (BROWSER, *_channels_of(entry, around.channels)))
        return alert

    def _scale_of(self, step: int | None) -> float | None:
        if self._stretch is None or step is None:
            return self._scale
        return _scale_at(self._stretch, int(self._stretch.step.searchsorted(step)), self._scale)

    def _judged(self, index: int) -> AlertJudged:
        entry, alert = self.entries[index], self._watch.alerts[index]
        said = self._said.get(index, _Said())
        return AlertJudged(
            rule=entry.row.id,
            name=entry.rule.name,
            severity=entry.rule.severity,
            revision=entry.row.revision,
            state=alert.state.value,
            since_step=alert.since_step,
            since_at=alert.since_at or 0.0,
            value=alert.value,
            culprit=None if alert.culprit is None else str(alert.culprit),
            sentence=alert.sentence,
            firings=alert.firing,
            is_open=alert.is_open,
            kept=msgspec.msgpack.encode(alert),
            transitions=tuple(said.transitions),
            deliveries=tuple(said.deliveries),
        )


def _named(vigil: Vigil) -> tuple[object, ...]:
    return vigil.revision, vigil.name, vigil.project, vigil.tags


# Between these an alert goes to and fro while windows fill: no history.
_UNEVENTFUL = {"quiet", "no data"}


def _needs(rules: Sequence[Compiled]) -> Needs:
    """What all rules ask for, and the scale, which is told with whatever happens."""
    return together([Needs(series=frozenset({"scale"})), *(rule.needs for rule in rules)])


def _recalled(kept: KeptAlert) -> Alert:
    """The alert as it was committed; where its rule has changed, a new one that goes on counting."""
    blank = Alert(firing=kept.firings, told=kept.firings, told_resolved=kept.firings)
    try:
        return msgspec.msgpack.decode(kept.kept, type=Alert) if kept.kept else blank
    except (msgspec.DecodeError, msgspec.ValidationError):
        return blank


def _channels_of(entry: Entry, on: Sequence[str]) -> Sequence[str]:
    """Those that the rule names; where it names none all that are on, but not for mere information."""
    if entry.rule.channels:
        return entry.rule.channels
    return () if entry.rule.severity == "info" else on


def _row_of(moved: Transition) -> TransitionRow:
    return TransitionRow(
        firing=moved.firing,
        before=moved.before.value,
        after=moved.after.value,
        step=moved.step,
        at=moved.at,
        value=moved.value,
        culprit=None if moved.culprit is None else str(moved.culprit),
        sentence=moved.sentence,
    )


def _scale_at(stretch: Stretch, index: int, otherwise: float | None) -> float | None:
    told = stretch.values.get("scale")
    if told is None or not told.told[index]:
        return otherwise
    return float(told.values[index])
