"""What is found of healthy trainings: the first duty of a finding is silence.

    python -m benchmarks.silence [--seeds 10] [--steps 600]

The demo's healthy training from several seeds, each recorded by a server and judged as usual. Anything above info is
a false alarm.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import closing

import torch
from scalescope.demo.scenarios import DEFAULT_STEPS, SCENARIOS
from scalescope.demo.training import Moment, train
from scalescope_server.judge_pass import Outcome, judge_once
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.records import FindingRow, RunId

from benchmarks.serving import served


def main() -> int:
    """Print what is found of each training; 1 where any of it is more than info."""
    parser = argparse.ArgumentParser(description="Train healthy runs and tell what is found of them.")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    alarms = 0
    with tempfile.TemporaryDirectory() as folder:
        database = f"{folder}/silence.db"
        with served(database) as server:
            runs = [trained(seed, options.steps, server.url) for seed in range(options.seeds)]
        with closing(open_store(database)) as store:
            for seed, run in enumerate(runs):
                found = list(judged(store, run))
                alarms += sum(finding.severity != "info" for finding in found)
                print(f"seed {seed}: " + "; ".join(f"{each.severity} {each.code}" for each in found), flush=True)
                print("".join(f"    {each.sentence}\n" for each in found), end="")
    print(f"{alarms} findings above info in {len(runs)} healthy trainings of {options.steps} updates")
    return int(alarms > 0)


def trained(seed: int, steps: int, url: str) -> RunId:
    """The run of one training, all of it stored."""
    scope = train(SCENARIOS["healthy"], steps=steps, url=url, report=_unheard, seed=seed)
    assert not scope.stats.pending
    print(f"seed {seed}: trained", flush=True)
    return RunId(scope.run_id)


def judged(store: Store, run: RunId) -> Iterator[FindingRow]:
    """What is found of a run once all of it is judged."""
    while judge_once(store, run) is Outcome.MORE:
        pass
    yield from store.reader.findings(run)


def _unheard(_: Moment) -> None:
    """Nobody watches it go."""


if __name__ == "__main__":
    raise SystemExit(main())
