"""Firings of the built-in rules, of any severity, on trainings that nothing is wrong with: there should be none.

The demo's healthy scenario with ten seeds, and healthy trainings of other kinds (see ``tests.healthy_trainings``), sent
to a server of this process, which judges them as they come.

    python -m benchmarks.false_alarms [--seeds 10] [--updates 600] [--kinds 1200]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from scalescope.demo.scenarios import SCENARIOS
from scalescope.demo.training import train
from scalescope_server.rules.pack import built_in

from tests.healthy_trainings import KINDS
from tests.judged import firings, judging, unknown
from tests.serving import Served


def demo(url: str, seed: int, updates: int) -> str:
    """A healthy demo with this seed: its run."""
    return train(SCENARIOS["healthy"], steps=updates, url=url, report=lambda _: None, seed=seed).run_id


def trained(url: str, seeds: int, updates: int, updates_of_kinds: int) -> Iterator[tuple[str, str]]:
    """(what it is, its run) of one training after the other."""
    for seed in range(1, seeds + 1):
        yield f"demo, seed {seed}", demo(url, seed, updates)
    for name, kind in KINDS.items() if updates_of_kinds else ():
        yield name, kind(url, name, updates_of_kinds)


def tell(served: Served, runs: Iterable[tuple[str, str]]) -> None:
    """A line of each training, and how many firings there were in all."""
    rules, total = {rule.name.removeprefix("pack/") for rule in built_in().rules}, 0
    known: set[str] = set()
    print(f"{'training':48}{'updates':>8}{'skips':>7}  fired of {len(rules)} rules")
    for name, run in runs:
        summary, fired = served.store.reader.run(run).summary, firings(served, run)
        known |= rules - unknown(served, run)
        total += len(fired)
        print(f"{name:48}{summary.attempted:>8}{summary.skipped:>7}  {', '.join(sorted(fired)) or 'none'}", flush=True)
    print(f"{total} rules fired. Never known: {', '.join(sorted(rules - known)) or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--kinds", type=int, default=1200, help="updates of each training of another kind, 0 for none")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, judging(Path(folder)) as served:
        tell(served, trained(served.url, asked.seeds, asked.updates, asked.kinds))


if __name__ == "__main__":
    main()
