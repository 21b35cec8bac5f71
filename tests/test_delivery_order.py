"""Whatever fails and whoever is killed: each alert is told in its order, at least once, or by a later firing of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from scalescope_server.delivery.grouping import plan
from scalescope_server.store import tables
from scalescope_server.store.notices import enter_at
from scalescope_server.store.outbox import FARTHEST_S, LEASE_S, Ending, Taken, settle_at, take_at
from scalescope_server.watching.notices import deliveries_of
from sqlalchemy import Connection, StaticPool, create_engine, select

from tests.notices import notice

CHANNELS = ("chat", "pager")
# More rounds than any number of turns takes, when nothing fails any more.
ROUNDS = 100

# Of one alert's turns, the later the greater.
Turn = int


@dataclass
class World:
    """One server after another, and what arrived: of each alert and channel the turns, in the order of arrival."""

    connection: Connection
    now: float = 1e9
    entered: dict[int, Turn] = field(default_factory=dict)
    going: list[Taken] = field(default_factory=list)
    arrived: dict[tuple[str, str], list[Turn]] = field(default_factory=dict)
    contents: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def turn(self, alert: int) -> None:
        """It begins to fire, or that is over."""
        turn = self.entered[alert] = self.entered.get(alert, 1) + 1
        told = notice(rule=f"rule {alert}", firing=turn // 2, happened="resolved" if turn % 2 else "fired")
        enter_at(self.connection, 1, deliveries_of(told, CHANNELS), alert, self.now)

    def take(self) -> None:
        self.going += take_at(self.connection, "server", plan, self.now)

    def end(self, *, arrives: bool, noted: bool) -> None:
        """The end of an attempt that is on its way; a server that is killed notes nothing."""
        if not self.going:
            return
        taken = self.going.pop(0)
        if arrives:
            self._receive(taken)
        if noted:
            ending = Ending(taken.message, 0.1) if arrives else Ending(taken.message, 0.1, "no", 60.0)
            settle_at(self.connection, "server", [ending], self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        # No attempt takes that long.
        if seconds >= LEASE_S:
            self.going.clear()

    def finish(self) -> None:
        """From now on all that is sent arrives."""
        for _ in range(ROUNDS):
            self.wait(FARTHEST_S)
            self.take()
            if not self.going:
                return
            while self.going:
                self.end(arrives=True, noted=True)
        raise AssertionError("something waits without an end")

    def _receive(self, taken: Taken) -> None:
        is_new = taken.message not in self.contents
        assert self.contents.setdefault(taken.message, taken.notices) == taken.notices
        of: dict[str, list[Turn]] = {}
        for told in taken.notices:
            of.setdefault(told["rule"], []).append(2 * told["firing"] + (told["happened"] == "resolved"))
        for rule, turns in of.items():
            before = self.arrived.setdefault((rule, taken.channel), [])
            if is_new:
                before += turns
            # What comes again is what came last.
            assert before[-len(turns) :] == turns


@contextmanager
def world() -> Iterator[World]:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    try:
        with engine.begin() as connection:
            tables.delivery.create(connection)
            yield World(connection)
    finally:
        engine.dispose()


HAPPENINGS = st.one_of(
    st.tuples(st.just("turn"), st.integers(1, 2)),
    st.tuples(st.just("take"), st.none()),
    st.tuples(st.just("end"), st.tuples(st.booleans(), st.booleans())),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 10.0, 61.0, 601.0])),
)


def play(found: World, happenings: list[tuple[str, Any]]) -> None:
    for what, told in happenings:
        match what:
            case "turn":
                found.turn(told)
            case "take":
                found.take()
            case "end":
                found.end(arrives=told[0], noted=told[1])
            case _:
                found.wait(told)
    found.finish()


@settings(max_examples=40, deadline=None)
@given(st.lists(HAPPENINGS, max_size=60))
def test_an_alert_is_told_in_its_order_at_least_once_or_by_a_later_firing(happenings: list[tuple[str, Any]]) -> None:
    with world() as found:
        play(found, happenings)
        row = tables.delivery.c
        stored = found.connection.execute(select(row.rule, row.channel, row.firing, row.happened, row.state)).all()
    for turns in found.arrived.values():
        assert turns == sorted(turns)
    for rule, channel, firing, happened, state in stored:
        turns = found.arrived.get((rule, channel), [])
        turn = 2 * firing + (happened == "resolved")
        assert state in ("delivered", "suppressed")
        # Both of its turns are told, or none and then a later one.
        assert (turn in turns) == (state == "delivered")
        assert state == "delivered" or (2 * firing not in turns and max(turns) > turn)


def test_of_an_alert_that_flaps_for_an_hour_a_bounded_number_of_firings_is_told() -> None:
    with world() as found:
        for _ in range(120):
            found.turn(1)
            found.take()
            found.end(arrives=True, noted=True)
            found.end(arrives=True, noted=True)
            found.wait(30.0)
        found.finish()
    for turns in found.arrived.values():
        assert turns == sorted(turns)
        assert 18 <= sum(turn % 2 == 0 for turn in turns) <= 24
        assert turns[-1] == found.entered[1]
