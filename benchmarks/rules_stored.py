"""What a backtest over a stored run takes on SQLite and on Postgres: seconds on the clock, reading included.

The run was judged as it came, by a rule that asks for findings, as the built-in ones do.

python -m benchmarks.rules_stored [--updates 100000] [--rounds 2]
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from scalescope_server.judge_pass import Outcome, judge
from scalescope_server.rules.spec import Rule
from scalescope_server.store.delivery import Batch
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.records import RunId
from scalescope_server.watching.book import spec_of
from scalescope_server.watching.keeper import Keeper
from scalescope_server.watching.trials import try_rule

from benchmarks.records import Dictation, hello
from benchmarks.rules import BACKTESTED
from tests.postgres import cluster

BATCH = 10_000
NAMES = ("loss", "grad_norm")
SENTENCES = (*BACKTESTED, "when finding(SCALE_THRASH)", "when no update for 10 min and run is running")


def fill(store: Store, updates: int) -> float:
    """Seconds that it took to store a run of so many updates."""
    say, began = Dictation(), time.perf_counter()
    for first in range(0, updates, BATCH):
        steps = say.steps(first, min(BATCH, updates - first), NAMES)
        store.writer.append(Batch(hello("run"), (steps,), 1_000.0 + first, 0)).result()
    return time.perf_counter() - began


def judged(store: Store) -> float:
    """Seconds that it took to judge what is stored."""
    store.writer.add_rule(spec_of(Rule("thrashing", "when finding(SCALE_THRASH)")), 1.0).result()
    keeper, began = Keeper(store.reader, time.time), time.perf_counter()
    while judge(store, RunId("run"), None, keeper).outcome is Outcome.MORE:
        pass
    return time.perf_counter() - began


def measure(store: Store, name: str, updates: int, rounds: int) -> None:
    print(f"\n{name}: {updates:,} updates, stored in {fill(store, updates):.1f} s,", end="")
    print(f" judged in {judged(store):.1f}; seconds of a backtest")
    for sentence in SENTENCES:
        rule, found = Rule("a rule", sentence), []
        for _ in range(rounds):
            began = time.perf_counter()
            (trial,) = try_rule(store.reader, rule, None, None, time.time)
            found.append(time.perf_counter() - began)
        print(f"{sentence:56}{min(found):>8.2f}   fired {len(trial.found.firings)} times", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args(arguments)
    # As a server does once it has begun.
    gc.freeze()
    with ExitStack() as held_open:
        folder = Path(held_open.enter_context(tempfile.TemporaryDirectory()))
        postgres = held_open.enter_context(cluster(durable=True))
        for name, url in (("SQLite", str(folder / "a.db")), ("Postgres", postgres.new(postgres.template))):
            with closing(open_store(url)) as store:
                measure(store, name, asked.updates, asked.rounds)


if __name__ == "__main__":
    main()
