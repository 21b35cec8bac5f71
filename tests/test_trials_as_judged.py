"""A rule tried on a stored run fires when judging the same run live did, by the real judge and a clock that is set."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from scalescope.wire import Heartbeat, Hello, Record
from scalescope_server.judge import Judge
from scalescope_server.rules.spec import Rule
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.records import RunId
from scalescope_server.watching.trials import try_rule

from tests.batches import STARTED_AT, Dictation, batch, hello, histograms
from tests.watched import RUN, Clock, add_rule

SENTENCES = (
    "when scale < 1",
    "when skipped for 2 steps keep firing for 3 steps",
    "when changes(scale, 10 steps) >= 3",
    "when mean(loss, 2 min) > 1 for 20 s",
    "when loss > 2 keep firing for 1 min",
    "when finding(SCALE_COLLAPSE)",
    "when max by layer(zero_share) > 20%",
    "when max by layer(mean(zero_share, 30 steps)) > 20% for 10 s",
    "when rank disagreement(scale) or count by rank(skipped) >= 2",
    "when no update for 2 min",
    "when no update for 2 min and run is running",
    "when no update for 1 min for 2 min",
    "when run is silent",
    "when run is silent for 3 min keep firing for 1 min",
    "when run is crashed for 2 min",
    "when run is finished",
)
DAY = 86_400.0
# How often the judge looks at silent runs here: so much later it tells of a wait that began, and of one that ended.
LOOKS_S = 14.0
# Between updates, and between the starts of a trainer. None of them ends just when a sentence's time does.
PAUSES_S = (3.0, 4.0, 7.0, 33.0, 95.0, 155.0)


class Fired(NamedTuple):
    """Whether, and with which update, it was resolved. ``at`` is left out of comparisons: see ``LOOKS_S``."""

    number: int
    step: int | None
    value: float | None
    culprit: str | None
    is_over: bool
    until_step: int | None


class Audience:
    def changed(self, run: RunId) -> None:
        """Nobody listens."""


@dataclass
class Life:
    """A run of two ranks that lives at random, and is judged as it does."""

    store: Store
    clock: Clock
    chance: random.Random
    judge: Judge = field(init=False)
    step: int = 0
    starts: int = 0
    # By how much the clock of the trainers is ahead.
    ahead_s: float = 0.0

    def __post_init__(self) -> None:
        self.judge = Judge(self.store, Audience(), clock=self.clock, now=self.clock, pack=False)

    def start(self, updates: int) -> None:
        """A trainer that starts, tells of some updates, and ends in one way or another."""
        self.starts += 1
        began = self.clock.seconds + self.ahead_s
        callers = [hello(segment=str(self.starts), rank=rank, started_at=began) for rank in range(2)]
        say = [Dictation() for _ in callers]
        for caller, dictation in zip(callers, say, strict=True):
            self._store(caller, dictation.layout(("a", "float16"), ("b", "float16")))
        first = 0
        while first < updates:
            if first and self.chance.random() < 0.3:
                # Set otherwise, but not while anybody waits: of how long that was its times do not tell.
                self._wait(callers, first, PAUSES_S[0])
                self.ahead_s += self.chance.choice((-DAY, 2 * DAY))
            else:
                self._wait(callers, first, self.chance.choice(PAUSES_S))
            count = self.chance.choice((1, 1, 2, 5))
            self._tell(callers, say, first, count)
            first += count
        self.step += first
        self._wait(callers, first, self.chance.choice(PAUSES_S))
        ending = self.chance.choice(("finished", "crashed", "killed"))
        for caller, dictation in zip(callers, say, strict=True):
            if ending != "killed":
                bye = dictation.bye("crashed" if ending == "crashed" else "finished")
                self._store(caller, msgspec.structs.replace(bye, at=self.clock.seconds + self.ahead_s))
        self._judge()

    def rest(self, seconds: float) -> None:
        """Nobody is there."""
        self._wait([], 0, seconds)

    def _tell(self, callers: list[Hello], say: list[Dictation], first: int, count: int) -> None:
        """Updates that came within the last second."""
        scale = [self.chance.choice((0.25, 0.5, 1.0, 4.0)) for _ in range(count)]
        apart = self.chance.random() < 0.2
        at = np.linspace(self.clock.seconds - 1.0, self.clock.seconds, count + 1)[1:] + self.ahead_s
        for rank, (caller, dictation) in enumerate(zip(callers, say, strict=True)):
            told = dictation.steps(
                first,
                count,
                scale=[2 * value for value in scale] if apart and rank else scale,
                skipped=[float(self.chance.random() < 0.4) for _ in scale],
                loss=[self.chance.choice((0.5, 1.0, 3.0)) for _ in scale],
            )
            records: list[Record] = [msgspec.structs.replace(told, at=at.astype("<f8").tobytes())]
            if self.chance.random() < 0.5:
                zero = self.chance.choice((0, 2, 8))
                records.append(dictation.sample(first, histograms([0] * (8 - zero), [0] * 8, zero=0)))
                if zero:
                    records.pop()
            self._store(caller, *records)
        self._judge()

    def _wait(self, callers: list[Hello], told: int, seconds: float) -> None:
        """Let time pass; ``callers`` live, and have told so many updates."""
        last, ends = self.clock.seconds, self.clock.seconds + seconds
        while self.clock.seconds < ends:
            self.clock.seconds = min(self.clock.seconds + LOOKS_S, ends)
            for caller in callers:
                step = told - 1 if told else None
                at = self.clock.seconds + self.ahead_s
                progress_at = last + self.ahead_s if told else None
                beat = Heartbeat(at=at, step=step, progress_at=progress_at, pending=0, dropped=0)
                self.store.writer.heartbeat(caller, beat, self.clock.seconds).result()
            self._take_up()
            self.judge._pulse()

    def _store(self, caller: Hello, *records: Record) -> None:
        self.store.writer.append(batch(caller, *records, at=self.clock.seconds)).result()

    def _judge(self) -> None:
        self.judge.wake(RUN)
        self._take_up()

    def _take_up(self) -> None:
        self.judge._take_up_unjudged()
        while (run := self.judge._turns.take(self.clock.seconds)) is not None:
            self.judge._judge(run)


@pytest.fixture
def life(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Life]:
    clock = Clock(STARTED_AT)
    with closing(open_store(str(tmp_path / "a.db"), clock=clock)) as store:
        yield Life(store, clock, random.Random(request.param))


def live(store: Store, name: str) -> list[tuple[Fired, float]]:
    found = [each for each in store.reader.alerts(run=RUN)[0] if each.alert.name == name]
    moves = store.reader.transitions(found[0].alert.id, limit=200, cursor=None)[0] if found else []
    fired: list[tuple[Fired, float]] = []
    for move in reversed(moves):
        if move.after == "firing" and move.firing > len(fired):
            value = None if move.step is None else move.value
            fired.append((Fired(move.firing, move.step, value, move.culprit, False, None), move.at))
        elif move.after == "resolved":
            fired[-1] = fired[-1][0]._replace(is_over=True, until_step=move.step), fired[-1][1]
    return fired


def tried(store: Store, rule: Rule, clock: Clock) -> list[tuple[Fired, float]]:
    (trial,) = try_rule(store.reader, rule, [RUN], None, clock)
    return [
        (
            Fired(
                firing.number,
                firing.step,
                None if firing.step is None else firing.value,
                None if firing.culprit is None else str(firing.culprit),
                firing.until_at is not None,
                firing.until_step,
            ),
            firing.at,
        )
        for firing in trial.found.firings
    ]


@pytest.mark.parametrize("life", [0, 7], indirect=True)
def test_a_rule_tried_on_a_stored_run_fires_as_it_did_live(life: Life) -> None:
    rules = [Rule(str(number), sentence) for number, sentence in enumerate(SENTENCES)]
    for rule in rules:
        add_rule(life.store, rule.when, rule.name)
    life.judge._take_up_unjudged()
    for _ in range(2):
        life.start(updates=life.chance.choice((4, 8)))
        life.rest(life.chance.choice(PAUSES_S))
    life.rest(300.0)
    for rule in rules:
        was, would = live(life.store, rule.name), tried(life.store, rule, life.clock)
        assert [fired for fired, _ in would] == [fired for fired, _ in was], rule.when
        late = [at - due for (_, at), (_, due) in zip(was, would, strict=True)]
        assert all(-1e-6 <= seconds <= 2 * LOOKS_S for seconds in late), rule.when
