"""What rooms above ask of the store about rules and alerts, and what the judge evaluates rules over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from scalescope_server.store import (
    alert_counts,
    alert_past,
    alerts,
    axis,
    firings,
    rules,
    silences,
    starts,
    ticks,
    vigil,
    watching,
)
from scalescope_server.store.alert_counts import AlertCount
from scalescope_server.store.alert_records import (
    AlertHistory,
    DeliveryLine,
    KeptAlert,
    RuleBook,
    RuleRow,
    SilenceRow,
    TransitionRow,
)
from scalescope_server.store.firings import Firing
from scalescope_server.store.judging import Position
from scalescope_server.store.records import RunId
from scalescope_server.store.snapshots import Snapshots, found_run
from scalescope_server.store.starts import StartRow
from scalescope_server.store.ticks import Updates, Wanted
from scalescope_server.store.vigil import Silence, Vigil


class AlertReader(Snapshots, ABC):
    """Part of :class:`~scalescope_server.store.reader.Reader`, whose words hold here too."""

    @abstractmethod
    def _silent_before(self) -> float:
        """Who was last seen before this time is silent."""

    def rule_book(self) -> RuleBook:
        """All rules, in the order of their names."""
        with self.reading() as connection:
            return rules.read_book(connection)

    def rule(self, rule: int) -> RuleRow:
        """:class:`NoRule`."""
        with self.reading() as connection:
            return rules.read_rule(connection, rule)

    def alerts(
        self,
        *,
        states: Sequence[str] | None = None,
        run: str | None = None,
        is_open: bool | None = None,
        limit: int = 50,
        cursor: str | None = None,
        past: int = alerts.SHOWN,
    ) -> tuple[list[AlertHistory], str | None]:
        """Alerts, those that moved last first, and the cursor of the next ones. :class:`BadCursor`.

        ``states`` None: of any; one that is quiet and has never fired is not told of. ``is_open``: those alone whose
        newest firing is not over, whatever their state (False: those alone where it is). ``past``: how many of the
        newest transitions and deliveries of each.
        """
        with self.reading() as connection:
            chosen = alerts.Chosen(None if states is None else tuple(states), run, is_open)
            return alerts.list_alerts(connection, chosen, limit=limit, cursor=cursor, past=past)

    def alert(self, alert: int) -> AlertHistory:
        """:class:`NoAlert`."""
        with self.reading() as connection:
            return alerts.read_alert(connection, alert)

    def alert_counts(self) -> list[AlertCount]:
        """How the alerts of each rule stand, but for those that are quiet."""
        with self.reading() as connection:
            return alert_counts.count_alerts(connection)

    def transitions(self, alert: int, *, limit: int, cursor: str | None) -> tuple[list[TransitionRow], str | None]:
        """What an alert went through, the newest first, and the cursor of what was before.

        :class:`NoAlert`, :class:`BadCursor`.
        """
        with self.reading() as connection:
            return alert_past.list_transitions(connection, alert, limit=limit, cursor=cursor)

    def deliveries(self, alert: int, *, limit: int, cursor: str | None) -> tuple[list[DeliveryLine], str | None]:
        """What was told of an alert, the newest first, and the cursor of what was before. As above."""
        with self.reading() as connection:
            return alert_past.list_deliveries(connection, alert, limit=limit, cursor=cursor)

    def firings(self, run: RunId, *, start: int | None = None, stop: int | None = None) -> list[Firing]:
        """The newest firings in a range of updates, in order. :class:`NotFound`."""
        with self.reading() as connection:
            return firings.read_firings(connection, found_run(connection, run).key, start, stop)

    def silences(self, at: float) -> list[SilenceRow]:
        """Those that are not over at ``at``."""
        with self.reading() as connection:
            return silences.read_silences(connection, at)

    def kept_alerts(self, run: RunId) -> list[KeptAlert]:
        """What the judge remembers of the rules on a run."""
        with self.reading() as connection:
            return watching.read_kept(connection, found_run(connection, run).key)

    def vigil(self, run: RunId) -> Vigil:
        """How a run stands for those who watch it."""
        with self.reading() as connection:
            return vigil.read_vigil(connection, run, self._silent_before())

    def newest_vigils(self, limit: int) -> list[Vigil]:
        """How the newest runs stand, the newest first."""
        with self.reading() as connection:
            return vigil.read_newest_vigils(connection, limit, self._silent_before())

    def silent_runs(self, runs: Collection[RunId], holder: str) -> dict[RunId, Silence]:
        """How those of ``runs`` that are there stand, of which no update comes, as ``holder`` finds them."""
        with self.reading() as connection:
            return vigil.read_silences(connection, runs, holder, self._silent_before())

    def starts(self, run: RunId) -> list[StartRow]:
        """When each start of its trainer was there, in order."""
        with self.reading() as connection:
            return starts.read_starts(connection, found_run(connection, run).key)

    def newest_update(self, run: RunId) -> Position:
        """The last stored update of rank 0."""
        with self.reading() as connection:
            return axis.last_position(connection, found_run(connection, run).key)

    def rules_revision(self) -> int:
        """How often any rule was changed."""
        with self.reading() as connection:
            return rules.read_revision(connection)

    def to_watch(self, seen_since: float, ended_since: float) -> list[RunId]:
        """Runs that were seen since then and of which time alone may change an alert; see :func:`read_to_watch`."""
        with self.reading() as connection:
            return vigil.read_to_watch(connection, seen_since, ended_since)

    def updates_after(
        self, run: RunId, wanted: Wanted, after: Position, until: Position, limit: int
    ) -> tuple[list[Updates], int]:
        """(at most ``limit`` updates beyond ``after`` up to ``until``, how many ranks the run has).

        See :func:`ticks.read_updates`.
        """
        with self.reading() as connection:
            found = found_run(connection, run)
            read = ticks.read_updates(connection, found, wanted, after, until, limit, self._silent_before())
            return read, found.world_size

    def measured_steps(self, run: RunId, first: int, last: int) -> dict[str, list[int]]:
        """Kind -> the steps from ``first`` to ``last`` at which it was told; see :func:`axis.measured_steps`."""
        with self.reading() as connection:
            return axis.measured_steps(connection, found_run(connection, run).key, first, last)

    def look_back(self, run: RunId, position: Position, updates: int, seconds: float, most: int = axis.END) -> Position:
        """See :func:`axis.look_back`."""
        with self.reading() as connection:
            return axis.look_back(connection, found_run(connection, run).key, position, updates, seconds, most)
