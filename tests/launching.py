"""Ranks of a program, and what each of them says.

They are forked from one process that has imported the module: importing torch takes longer than most trainings here.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

from tests.programs import Programs

# Four processes that train on two busy cores take most of it.
DEADLINE_S = 160

PROGRAM = "import sys; from tests import launching; sys.exit(launching.main(*sys.argv[1:]))"


def launched(programs: Programs, world: int, folder: Path, module: str, *more: str) -> list[Any]:
    """What the ``main`` of ``module`` answers on each rank, to its rank, the world, a file to meet at, and ``more``."""
    done = programs.run(PROGRAM, module, str(world), str(folder), *more)
    assert done.returncode == 0, done.stderr[-6000:]
    return [json.loads(_answer(folder, rank).read_text()) for rank in range(world)]


def main(module: str, ranks_in_all: str, of_answers: str, *more: str) -> int:
    """0 if all ranks end well before the deadline; no rank outlives it."""
    world, folder = int(ranks_in_all), Path(of_answers)
    program = importlib.import_module(module)
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_run, args=(program, rank, world, folder, *more)) for rank in range(world)]
    end = time.monotonic() + DEADLINE_S
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(max(0.0, end - time.monotonic()))
    good = all(rank.exitcode == 0 for rank in ranks)
    for rank in ranks:
        rank.kill()
    return 0 if good else 1


def _run(program: Any, rank: int, world: int, folder: Path, *more: str) -> None:
    answer = program.main(rank, world, str(folder / "rendezvous"), *more)
    _answer(folder, rank).write_text(json.dumps(answer))


def _answer(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"
