"""The rules on one run as they stand after the last pass: fed with what came since, asked what became of them.

What it remembers is rebuilt out of the store at any time: alerts as they were committed, windows by seeing again the
updates that they reach back to. Who could not commit what it has said throws it away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from scalescope_server.rules.alert import Alert, State, Transition
from scalescope_server.rules.dependence import Needs
from scalescope_server.rules.ending import OUT_OF_SCOPE, RUN_ENDED, ended, is_over
from scalescope_server.rules.stretch import Stretch
from scalescope_server.rules.telling import Hush, tell
from scalescope_server.rules.ticks import Pulse
from scalescope_server.store.alert_records import AlertJudged, DeliveryRow, KeptAlert, TransitionRow, Watched
from scalescope_server.store.judging import Position
from scalescope_server.store.outbox import BROWSER
from scalescope_server.store.vigil import Vigil
from scalescope_server.watching.book import Entry
from scalescope_server.watching.clock import Clock
from scalescope_server.watching.notices import deliveries_of, notice_of
from scalescope_server.watching.post import Post
from scalescope_server.watching.stretches import end_of, together

SCALE = Needs(series=frozenset({"scale"}))


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
    """``position``: the last update that it has seen; ``at``: when that was, by the clock of the run's updates.

    ``fence``: that of the lease under which what it knows was committed: of another one somebody else may have judged.
    ``is_whole``: whether all rules that watch the run are here, not only those that ask for time.
    ``clock``: by which its updates come. ``surroundings``: asked for when there is something to tell, once a pass;
    :meth:`tell_open` ends one.
    """

    def __init__(
        self,
        vigil: Vigil,
        fence: int | None,
        position: Position,
        surroundings: Callable[[Vigil], Surroundings],
        clock: Clock,
    ) -> None:
        self.vigil = vigil
        self.clock = clock
        self.fence = fence
        self.position = position
        self.at: float | None = None
        self.is_whole = False
        self.needs = _needs(())
        self._surroundings = surroundings
        self._around: Surroundings | None = None
        self._posts: list[Post] = []
        self._committed: dict[int, Alert] = {}
        self._said: dict[int, _Said] = {}
        # Of rules that are not for the run any more: what becomes of their alerts.
        self._parted: dict[int, tuple[Entry, Alert]] = {}
        self._scale: float | None = None
        self._stretch: Stretch | None = None

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The rules that are evaluated."""
        return tuple(entry for post in self._posts for entry in post.here)

    @property
    def posts(self) -> int:
        """In how many groups they are."""
        return len(self._posts)

    @property
    def layers(self) -> int:
        """Of how many layers or modules it holds windows: what it takes of memory grows with them."""
        return sum(post.layers for post in self._posts)

    @property
    def pulses(self) -> bool:
        """Whether any rule asks for time that passes without an update."""
        return self.needs.pulses

    @property
    def speaks(self) -> bool:
        """Whether anything is to be said of the run."""
        return bool(self._posts or self._parted)

    def is_at(self, position: Position | None, fence: int | None) -> bool:
        """Whether it knows all that was judged of the run."""
        return position in (None, self.position) and fence == self.fence

    def is_of(self, vigil: Vigil) -> bool:
        """Whether its rules are those of ``vigil``."""
        return _named(self.vigil) == _named(vigil)

    def man(self, post: Post) -> None:
        """Go on with these rules, too."""
        self._posts.append(post)
        self._committed |= post.alerts()
        self.needs = _needs(self._posts)

    def leave(self, rules: Collection[int]) -> None:
        """Go on without these rules."""
        for post in self._posts:
            post.leave(rules)
        self._posts = [post for post in self._posts if post.here]
        self._committed = {rule: alert for rule, alert in self._committed.items() if rule not in rules}
        self.needs = _needs(self._posts)

    def part(self, entry: Entry, alert: Alert, at: float) -> None:
        """The run is not one that the rule is for any more, so its alert ends."""
        self._parted[entry.row.id] = entry, self._end(entry, alert, at, OUT_OF_SCOPE)

    def note(self, stretch: Stretch) -> None:
        """Of the update at which it stands, when it was, and at which scale."""
        self.at = float(stretch.at[-1])
        self._scale = _scale_at(stretch, len(stretch) - 1, self._scale)

    def see(self, stretch: Stretch) -> None:
        """Judge the updates that follow."""
        stretch = self._stretch = self.clock.forward(stretch)
        for post in self._posts:
            post.see(stretch, self._hear)
        self._stretch = None
        self.note(stretch)
        self.position = end_of(stretch)

    def pass_time(self, pulse: Pulse, known_s: float = math.inf, silent_after_s: float = math.inf) -> float | None:
        """Judge that time has passed and no update come; in how many seconds there may be more to say, None: never.

        ``known_s``: for how long whatever came could be stored; rules that ask for longer wait until then.
        ``silent_after_s``: after so long without a sign of life a run is silent.
        """
        waits: list[float] = []
        for post in self._posts:
            if not post.needs.pulses:
                continue
            left_s = post.credible_after_s(pulse.state, silent_after_s) - known_s
            if left_s > 0:
                waits.append(left_s)
                continue
            post.pass_time(pulse, self._hear)
            silent_s = 0.0 if pulse.last_update_at is None else pulse.at - pulse.last_update_at
            waits += post.waits(silent_s, pulse.at)
        return min(waits, default=None)

    def end(self, at: float, *, timed: bool = False) -> None:
        """The run has ended well: whatever fires is over with it, and but for time nothing will come any more.

        ``timed``: of the rules alone that ask for time.
        """
        for post in (post for post in self._posts if post.needs.pulses or not timed):
            alerts = post.alerts()
            over = {rule: alert for rule, alert in alerts.items() if alert.is_open or _is_idle(alert, post)}
            entries = {entry.row.id: entry for entry in post.here}
            post.remember({rule: self._end(entries[rule], alert, at, RUN_ENDED) for rule, alert in over.items()})

    def tell_open(self) -> None:
        """Tell of what fires and could not be told of before: muted it was, or too soon after another."""
        for post in self._posts:
            entries = {entry.row.id: entry for entry in post.here}
            late = {rule: alert for rule, alert in post.alerts().items() if _is_untold(alert)}
            post.remember({rule: self._told(entries[rule], alert, self.position.step) for rule, alert in late.items()})
        self._around = None

    def outcome(self, fence: int | None) -> Watched:
        """What is to be committed: the alerts that are not as they were."""
        alerts = self._alerts()
        changed = [entry for entry in self.entries if alerts[entry.row.id] != self._committed[entry.row.id]]
        judged = [self._judged(entry, alerts[entry.row.id]) for entry in changed]
        judged += [self._judged(entry, alert) for entry, alert in self._parted.values()]
        return Watched(self.vigil.run, self.vigil.revision, self.position, tuple(judged), fence)

    def committed(self, fence: int | None) -> None:
        """What was said is stored, under the lease with ``fence``."""
        self.fence = fence
        self._committed = self._alerts()
        self._said.clear()
        self._parted.clear()

    @property
    def is_waiting(self) -> bool:
        """Whether something fires that has not been told of."""
        return any(map(_is_untold, self._alerts().values()))

    def _alerts(self) -> dict[int, Alert]:
        return {rule: alert for post in self._posts for rule, alert in post.alerts().items()}

    def _hear(self, entry: Entry, before: Alert, alert: Alert, transition: Transition) -> Alert:
        if self.vigil.state == "finished" and transition.step is None and is_over(before, self.position.step):
            return before  # It has said what it had to say of the end of this run.
        self._keep(entry, transition)
        return self._told(entry, alert, transition.step)

    def _keep(self, entry: Entry, transition: Transition) -> None:
        if {transition.before.value, transition.after.value} != _UNEVENTFUL:
            self._said.setdefault(entry.row.id, _Said()).transitions.append(_row_of(transition))

    def _end(self, entry: Entry, alert: Alert, at: float, why: str) -> Alert:
        alert, transition = ended(alert, self.position.step, at, why)
        self._keep(entry, transition)
        if why == RUN_ENDED and entry.asks_state:
            # That a run has ended is no trouble which its end would do away with.
            return msgspec.structs.replace(alert, told_resolved=alert.firing)
        return self._told(entry, alert, self.position.step, why)

    def _told(self, entry: Entry, alert: Alert, step: int | None, why: str = "") -> Alert:
        if not alert.is_open and alert.told_resolved == alert.firing:
            return alert
        around = self._around = self._around or self._surroundings(self.vigil)
        hush = around.hush(entry.row.id, alert.firing)
        alert, happened = tell(alert, step, around.now, hush=hush, cooldown=entry.compiled.cooldown)
        if happened is not None:
            notice = notice_of(entry.rule, self.vigil, alert, happened, self._scale_of(step))
            notice = msgspec.structs.replace(notice, reason=why or notice.reason)
            said = self._said.setdefault(entry.row.id, _Said())
            said.deliveries += deliveries_of(notice, (BROWSER, *_channels_of(entry, around.channels)))
        return alert

    def _scale_of(self, step: int | None) -> float | None:
        if self._stretch is None or step is None:
            return self._scale
        return _scale_at(self._stretch, int(self._stretch.step.searchsorted(step)), self._scale)

    def _judged(self, entry: Entry, alert: Alert) -> AlertJudged:
        said = self._said.get(entry.row.id, _Said())
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


def _is_untold(alert: Alert) -> bool:
    return alert.is_open and alert.told != alert.firing


def _is_idle(alert: Alert, post: Post) -> bool:
    """Whether it waits for updates, of which none will come."""
    return alert.state is State.PENDING and not post.needs.pulses


# Between these an alert goes to and fro while windows fill: no history.
_UNEVENTFUL = {"quiet", "no data"}


def _needs(posts: Sequence[Post]) -> Needs:
    """What all rules ask for, and the scale, which is told with whatever happens."""
    return together([SCALE, *(post.needs for post in posts)])


def recalled(kept: KeptAlert) -> Alert:
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
