"""Built-in rules on real trainings that crash, fall silent, stand still or cannot tell all, and on one that pauses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial, partialmethod
from pathlib import Path

import pytest
from scalescope import courier
from scalescope.link import Link
from scalescope.outbox import Outbox
from scalescope.wire import Heartbeat
from scalescope_server.judge import ONLY, Judge
from scalescope_server.store.engine import Store, open_store

from tests.batches import hello
from tests.judged import PATIENCE_S, fired_in, firings, judging, reach, updates_judged
from tests.proxy import between
from tests.small_link import until
from tests.small_server import free_port
from tests.test_judge_pulses import judge_of, pass_time
from tests.troubled_trainings import Parts, batches
from tests.watched import Clock

UPDATES = 20
EVERY_S = 10.0


def train(parts: Parts, updates: int) -> None:
    inputs = batches()
    for step in range(updates):
        parts.step(parts.loss(inputs[step % 64]))


def test_a_training_that_ends_with_an_exception_fires(tmp_path: Path) -> None:
    parts = Parts.of()
    with judging(tmp_path) as served:
        with suppress(ArithmeticError), parts.watched(served.url) as scope:
            train(parts, UPDATES)
            reach(scope)
            raise ArithmeticError
        until(lambda: firings(served, scope.run_id) == {"crashed-trainer": None}, PATIENCE_S)


def test_records_that_the_hook_had_to_drop_fire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is away, the memory for what waits is full, and there is no disk."""
    monkeypatch.setattr(courier, "Outbox", partial(Outbox, memory_bytes=16_384))
    parts = Parts.of()
    with judging(tmp_path) as served, between(f"http://127.0.0.1:{free_port()}") as line:
        (tmp_path / "no folder").touch()
        monkeypatch.setenv("SCALESCOPE_SPOOL", str(tmp_path / "no folder"))
        with parts.watched(line.url, every=5) as scope:
            train(parts, 400)
            until(lambda: scope.stats.dropped > 0, PATIENCE_S)
            line.to = served.url
        assert firings(served, scope.run_id) == {"hook-drops-data": None}


@dataclass
class Left:
    """A store that holds what came of a training before its line was cut, and the clock of its server."""

    store: Store
    run: str
    clock: Clock
    judge: Judge
    # When the last update closed, as the trainer goes on to tell.
    progress_at: float

    def fired(self) -> set[str]:
        return {name for each in self.store.reader.alerts(limit=200)[0] for name in fired_in(each)}

    def let_pass(self, seconds: float, *, beats: bool = False) -> None:
        """The server looks again and again, and hears of no update; ``beats``: the trainer says that it is there."""
        ends = self.clock.seconds + seconds
        while self.clock.seconds < ends:
            if beats:
                self.beat()
            pass_time(self.judge, self.clock, EVERY_S)

    def beat(self) -> None:
        (segment,) = self.store.reader.run(self.run).segments
        greeting, now = hello(self.run, segment.id, world_size=1), self.clock()
        beat = Heartbeat(at=now, step=UPDATES - 1, progress_at=self.progress_at, dropped=0, pending=0, sent_bytes=0)
        self.store.writer.heartbeat(greeting, beat, now).result()


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Left]:
    monkeypatch.setenv("SCALESCOPE_SPOOL", str(tmp_path / "spool"))
    parts = Parts.of()
    with judging(tmp_path) as served:
        scope = parts.watch(served.url)
        train(parts, UPDATES)
        # More may still be logged of the last one.
        until(lambda: updates_judged(served, scope.run_id) >= UPDATES - 1, PATIENCE_S)
        assert firings(served, scope.run_id) == {}
    clock = Clock(time.time())
    with closing(open_store(str(tmp_path / "scalescope.db"), clock=clock)) as store:
        yield Left(store, scope.run_id, clock, judge_of(store, clock, ONLY), clock())
    monkeypatch.setattr(Link, "close", partialmethod(Link.close, timeout_s=0.0))
    scope.close()


def test_a_trainer_of_which_nothing_more_is_heard_fires(left: Left) -> None:
    left.let_pass(50.0)
    assert left.fired() == set()
    left.let_pass(300.0)
    assert left.fired() == {"silent-trainer"}


def test_a_loop_that_stands_still_while_its_process_is_there_fires(left: Left) -> None:
    left.let_pass(700.0, beats=True)
    assert left.fired() == {"stalled-loop"}


def test_none_fires_while_a_training_is_evaluated_for_some_minutes(left: Left) -> None:
    left.let_pass(540.0, beats=True)
    assert left.fired() == set()
