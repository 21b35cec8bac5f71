"""Rounds one after the other, and the table of what came of them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.faults import FAULTS
from tests.chaos.scene import Scene
from tests.chaos.stage import Stage


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one round. ``wrong``: a sentence for each discrepancy.

    Counts are of rows compared, of records that came twice, were given up by the trainer, and were pushed from a spool.
    """

    engine: str
    fault: str
    seed: str
    seconds: float
    rows: int
    repeated: int
    dropped: int
    pushed: int
    slowest_s: float
    wrong: tuple[str, ...]


def play(stage: Stage, fault: str, seed: str, **lengths: Any) -> Outcome:
    """One round. The same seed leaves the same to chance; when things happen is up to the machine as well."""
    began = time.monotonic()
    run = f"{stage.database.name}-{fault}-{seed}".replace("/", "-")
    scene = Scene(stage, run, random.Random(seed), **lengths)
    try:
        FAULTS[fault](scene)
        found = scene.finish()
    finally:
        scene.give_up()
    return Outcome(
        engine=stage.database.name,
        fault=fault,
        seed=seed,
        seconds=time.monotonic() - began,
        rows=found.rows,
        repeated=found.repeated,
        dropped=found.dropped,
        pushed=scene.pushed,
        slowest_s=scene.slowest_s,
        wrong=(*scene.wrong, *found.wrong),
    )


def drawn(faults: Sequence[str], rounds: int, seed: int) -> Iterator[tuple[str, str]]:
    """(fault, seed) of so many rounds: each fault as often as any other, in an order of its own."""
    chance = random.Random(seed)
    waiting: list[str] = []
    for number in range(rounds):
        waiting = waiting or chance.sample(faults, len(faults))
        yield waiting.pop(), f"{seed}/{number}"


def table(outcomes: Sequence[Outcome]) -> str:
    """One line for each engine and fault, with the sums of its rounds."""
    head = ("engine", "fault", "rounds", "rows", "repeated", "given up", "pushed", "healthz max ms", "discrepancies")
    kinds = sorted({(outcome.engine, outcome.fault) for outcome in outcomes})
    return "\n".join(["".join(f"{name:>15}" for name in head), *(_line(kind, outcomes) for kind in kinds)])


def _line(kind: tuple[str, str], outcomes: Sequence[Outcome]) -> str:
    of_kind = [outcome for outcome in outcomes if (outcome.engine, outcome.fault) == kind]
    sums = [sum(getattr(outcome, name) for outcome in of_kind) for name in ("rows", "repeated", "dropped", "pushed")]
    slowest_ms = 1000 * max(outcome.slowest_s for outcome in of_kind)
    cells = (*kind, len(of_kind), *sums, f"{slowest_ms:.0f}" if slowest_ms else "-", sum(len(o.wrong) for o in of_kind))
    return "".join(f"{cell!s:>15}" for cell in cells)
