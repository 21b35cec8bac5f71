"""One round: trainings of one run under a fault, and what came of it."""

from __future__ import annotations

import multiprocessing
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from scalescope_server.store.engine import open_store
from scalescope_server.store.records import RunId

from tests.chaos.compare import Found, Told, compare
from tests.chaos.judged import wrongly_judged
from tests.chaos.spooled import last_spooled
from tests.chaos.stage import ROOT, Stage
from tests.chaos.training import Plan, read_record, train
from tests.small_link import until

END_WITHIN_S = 90.0
PUSHES = 5
HEALTHY_WITHIN_S = 1.0

_processes = multiprocessing.get_context("forkserver")
# What a training needs is imported once, and each start of it takes milliseconds.
_processes.set_forkserver_preload(["tests.chaos.warm"])


@dataclass
class Start:
    """One start of the training."""

    plan: Plan
    process: BaseProcess
    killed: bool = False
    # The last record that it was told is stored, or that it left in its spool.
    kept: int = -1


@dataclass
class Scene:
    """A round under way. ``chance`` decides everything that is left open."""

    stage: Stage
    run: str
    chance: random.Random
    updates: int = 300
    locked_s: float = 20.0
    healthy_within_s: float = HEALTHY_WITHIN_S
    # Whether the fault leaves a trainer no place for its data: what it counts as given up may be missing then.
    drops: bool = False
    starts: list[Start] = field(default_factory=list)
    pushed: int = 0
    slowest_s: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def spool(self) -> Path:
        return self.stage.folder / self.run / "spool"

    def begin(self, **bounds: Any) -> Start:
        """Start the training, for the first time or once more."""
        self.stage.overheard.forget()
        self.spool.mkdir(parents=True, exist_ok=True)
        record = self.spool.parent / f"record-{len(self.starts)}"
        seed = self.chance.getrandbits(32)
        plan = Plan(self.stage.proxy.url, self.run, record, self.spool, seed, self.updates, **bounds)
        process = _processes.Process(target=train, args=(plan,), name=f"{self.run}-{len(self.starts)}")
        process.start()
        self.starts.append(Start(plan, process))
        return self.starts[-1]

    def at(self, share: float) -> None:
        """Wait until the training has come so far."""
        start = self.starts[-1]
        until(lambda: _written(start.plan.record) >= share * self.updates or not start.process.is_alive(), END_WITHIN_S)

    def soon(self, least: float = 0.0, most: float = 1.0) -> None:
        """Let so many seconds pass."""
        threading.Event().wait(self.chance.uniform(least, most))

    def maybe(self, probability: float = 0.5) -> bool:
        return self.chance.random() < probability

    def kill(self) -> None:
        """Kill the training."""
        start = self.starts[-1]
        start.process.kill()
        start.process.join(END_WITHIN_S)
        start.killed = True
        _, spooled = last_spooled(self.spool)
        start.kept = max(self.stage.overheard.durable, spooled)

    def end(self) -> None:
        """Wait for the training to end by itself."""
        start = self.starts[-1]
        start.process.join(END_WITHIN_S)
        if not start.killed:
            start.kept = self.stage.overheard.durable
            if start.process.exitcode != 0:
                self.wrong.append(f"the training ended with {start.process.exitcode}")

    def push(self) -> None:
        """Deliver what is left in the spool, as a user would."""
        for _ in range(PUSHES):
            count, _ = last_spooled(self.spool)
            if not list(self.spool.glob("*.spool")):
                return
            command = [sys.executable, "-m", "scalescope.cli", "push", str(self.spool)]
            subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=END_WITHIN_S)
            self.pushed += count
        self.wrong.append(f"not delivered after {PUSHES} pushes: {sorted(self.spool.iterdir())}")

    @contextmanager
    def healthy(self) -> Iterator[None]:
        """The server has to answer quickly all the while."""
        with self.stage.watched() as health:
            yield
        self.slowest_s = max(self.slowest_s, health.slowest_s)
        self.wrong += [f"/healthz: {failure}" for failure in health.failures[:1]]
        if health.slowest_s > self.healthy_within_s + health.late_s or not health.answers:
            late = f"asked {health.late_s:.1f} s late at worst"
            self.wrong.append(f"/healthz took {health.slowest_s:.1f} s, {health.answers} answers, {late}")

    def finish(self) -> Found:
        """The end of the round: everything delivered, and each row compared."""
        self.end()
        self.push()
        told = [Told(read_record(s.plan.record), s.kept, s.killed, self.drops) for s in self.starts]
        with closing(open_store(self.stage.database.url)) as store:
            self.wrong += wrongly_judged(store, RunId(self.run))
            with store._reading.connect() as connection:
                return compare(connection, self.run, told)

    def give_up(self) -> None:
        """Leave no process behind."""
        for start in self.starts:
            start.process.kill()


def _written(record: Path) -> int:
    return record.read_bytes().count(b"\n") if record.exists() else 0
