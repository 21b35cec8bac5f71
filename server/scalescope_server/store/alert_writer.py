"""What rooms above ask of the writer about rules and alerts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from scalescope_server.store import alerts, rules, silences
from scalescope_server.store.alert_records import Committed, RuleRow, SilenceRow, Watched
from scalescope_server.store.closing import Ending
from scalescope_server.store.judging import Judged
from scalescope_server.store.transaction import Transaction
from scalescope_server.store.watching import commit_watched

Result = TypeVar("Result")


class AlertWriter(ABC):
    """Part of :class:`~scalescope_server.store.writer.Writer`, whose words hold here too.

    A ``spec`` is a whole rule as JSON holds it. ``at``: seconds since the epoch. ``ending`` makes what is told of the
    firings that end with the rule as it was.
    """

    @abstractmethod
    def _submit(self, work: Callable[[Transaction], Result], run: str | None = None, size: int = 0) -> Future[Result]:
        """Put ``work`` in line."""

    def commit_watched(self, watched: Watched, judged: Judged | None = None) -> Future[Committed]:
        """Store what a pass over the rules of a run came to, with what it was judged in the same pass.

        :class:`NotFound`.
        """
        return self._submit(lambda t: commit_watched(t.connection, watched, judged), watched.run)

    def add_rule(self, spec: rules.Spec, at: float) -> Future[RuleRow]:
        """:class:`RuleTaken`."""
        return self._submit(lambda t: rules.add_rule(t.connection, spec, at))

    def change_rule(
        self, rule: int, spec: rules.Spec, at: float, ending: Ending, seen: int | None = None
    ) -> Future[RuleRow]:
        """Where its revision is still the one ``seen``. :class:`NoRule`, :class:`RuleTaken`, :class:`RuleChanged`."""
        return self._submit(lambda t: rules.change_rule(t.connection, rule, spec, at, ending, seen))

    def switch_rule(self, rule: int, *, enabled: bool, at: float, ending: Ending) -> Future[RuleRow]:
        """On or off, and nothing else of it. :class:`NoRule`."""
        return self._submit(lambda t: rules.switch_rule(t.connection, rule, enabled=enabled, at=at, ending=ending))

    def delete_rule(self, rule: int, at: float, ending: Ending) -> Future[None]:
        """:class:`NoRule`."""
        return self._submit(lambda t: rules.delete_rule(t.connection, rule, at, ending))

    def import_rules(
        self,
        specs: Sequence[rules.Spec],
        at: float,
        ending: Ending,
        pack: Sequence[rules.Spec] = (),
        version: int = 0,
    ) -> Future[tuple[int, int]]:
        """(how many are new, how many have changed): those whose name is there are put in its place.

        ``pack``: the built-in rules of ``version``, some of which may be among them.
        """
        return self._submit(lambda t: rules.import_rules(t.connection, specs, at, ending, pack, version))

    def enter_pack(self, specs: Sequence[rules.Spec], version: int, at: float, ending: Ending) -> Future[int]:
        """Bring the built-in rules to ``version``; how many have changed."""
        return self._submit(lambda t: rules.enter_pack(t.connection, specs, version, at, ending))

    def acknowledge(self, alert: int, at: float) -> Future[None]:
        """Somebody has taken up its open firing. :class:`NoAlert`."""
        return self._submit(lambda t: alerts.acknowledge(t.connection, alert, at))

    def mute(self, alert: int, until: float | None) -> Future[None]:
        """Tell nothing of it until then; None: tell of it again. :class:`NoAlert`."""
        return self._submit(lambda t: alerts.mute(t.connection, alert, until))

    def silence(self, project: str, starts_at: float, ends_at: float, reason: str, at: float) -> Future[SilenceRow]:
        """Tell nothing of the runs in projects that the glob matches, between the two times."""
        return self._submit(lambda t: silences.add_silence(t.connection, project, starts_at, ends_at, reason, at))

    def end_silence(self, silence: int) -> Future[bool]:
        """Whether there was one."""
        return self._submit(lambda t: silences.delete_silence(t.connection, silence))
