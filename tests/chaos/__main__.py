"""``python -m tests.chaos``: rounds at random, and what came of them; 1 where anything was lost or doubled."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.chaos.databases import postgres_cluster, sqlite_file
from tests.chaos.faults import FAULTS
from tests.chaos.rounds import Outcome, drawn, play, table
from tests.chaos.stage import stage

ENGINES = {"sqlite": sqlite_file, "postgres": postgres_cluster}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="of each engine (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="repeats what an earlier call left to chance")
    parser.add_argument("--only", choices=list(FAULTS), default=None)
    parser.add_argument("--engine", choices=list(ENGINES), default=None)
    chosen = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if chosen.seed is None else chosen.seed
    engines = [chosen.engine] if chosen.engine else list(ENGINES)
    outcomes = [outcome for engine in engines for outcome in of_engine(engine, chosen.rounds, seed, chosen.only)]
    print(table(outcomes))
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    if wrong:
        print(f"{len(wrong)} of {len(outcomes)} rounds with discrepancies; repeat them with --seed {seed}")
    return 1 if wrong else 0


def of_engine(engine: str, rounds: int, seed: int, only: str | None) -> Iterator[Outcome]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scalescope-chaos-")))
        database = stack.enter_context(ENGINES[engine](folder))
        staged = stack.enter_context(stage(folder, database))
        faults = [name for name in FAULTS if only in (None, name) and (database.mortal or name != "kill-database")]
        for fault, of_round in drawn(faults, rounds, seed):
            outcome = play(staged, fault, of_round)
            print(f"{engine} {fault} {of_round}: {outcome.seconds:.1f} s, {outcome.rows} rows", flush=True)
            for sentence in outcome.wrong:
                print(f"  WRONG: {sentence}", flush=True)
            yield outcome


if __name__ == "__main__":
    sys.exit(main())
