"""Runs told update by update, and rules that watch them, for the tests of the judge and of what it hands on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from scalescope_server.judge_pass import Outcome, judge
from scalescope_server.rules.spec import Rule
from scalescope_server.store.alert_records import RuleRow
from scalescope_server.store.engine import Store
from scalescope_server.store.outbox import BROWSER
from scalescope_server.store.records import RunId
from scalescope_server.watching.book import spec_of
from scalescope_server.watching.keeper import Keeper
from scalescope_server.watching.notices import ended

from tests.batches import STARTED_AT, Dictation, batch, hello

RUN = RunId("run")


@dataclass
class Training:
    """One run of one rank. Its updates come a second apart by its own clock, from second 0."""

    store: Store
    hello: Any = field(default_factory=lambda: hello(world_size=1))
    step: int = 0
    say: Dictation = field(default_factory=Dictation)

    def tell(self, *scales: float, at: float = STARTED_AT, **series: Sequence[float]) -> None:
        """Updates at these scales, one after the other."""
        zeros = [0.0] * len(scales)
        steps = self.say.steps(self.step, len(scales), scale=scales, **{"skipped": zeros} | series)
        self.store.writer.append(batch(self.hello, steps, at=at)).result()
        self.step += len(scales)

    def end(self, reason: Any = "finished") -> None:
        self.store.writer.append(batch(self.hello, self.say.bye(reason))).result()


@dataclass
class Clock:
    """Seconds since the epoch, as a test sets them."""

    seconds: float = STARTED_AT

    def __call__(self) -> float:
        return self.seconds


def add_rule(store: Store, when: str, name: str = "mine", **changes: Any) -> RuleRow:
    return store.writer.add_rule(spec_of(Rule(name, when, **changes)), 1.0).result()


def change_rule(store: Store, row: RuleRow, **changes: Any) -> RuleRow:
    rule = msgspec.structs.replace(msgspec.convert(row.spec, Rule), **changes)
    return store.writer.change_rule(row.id, spec_of(rule), 2.0, ended).result()


def look(store: Store, keeper: Keeper, run: RunId = RUN) -> Outcome:
    """Judge until nothing is left to judge."""
    while (outcome := judge(store, run, None, keeper).outcome) is Outcome.MORE:
        pass
    return outcome


def state_of(store: Store, name: str = "mine") -> str:
    """The state of the rule's alert; quiet where there is none."""
    found = [each.alert.state for each in store.reader.alerts()[0] if each.alert.name == name]
    return found[0] if found else "quiet"


def moves(store: Store, name: str = "mine") -> list[tuple[str, int | None]]:
    """What the rule's alert went through, in order: the state it came into, and at which step."""
    found = [each.transitions for each in store.reader.alerts()[0] if each.alert.name == name]
    return [(moved.after, moved.step) for moved in reversed(found[0])] if found else []


def outbox(store: Store) -> list[tuple[str, int, str, str]]:
    """(what happened, of which firing, channel, state) of each notice but those for pages, in the order of entry."""
    found = [line for each in store.reader.alerts()[0] for line in reversed(each.deliveries)]
    return [(line.happened, line.firing, line.channel, line.state) for line in found if line.channel != BROWSER]


def timeline(store: Store, scales: Sequence[float], keeper: Callable[[], Keeper], name: str = "mine") -> list[str]:
    """The state after each of these updates, judged one by one."""
    training, states = Training(store), []
    for scale in scales:
        training.tell(scale)
        look(store, keeper())
        states.append(state_of(store, name))
    return states
