"""Trainings whose server is in trouble, beside one that is not watched: same loss, same speed, bounded in all.

Each is the demo's training in a process of its own, from the same seed, at default settings. They take turns, a
block of updates each, so that noise on the machine hits all alike; ratios are to the unwatched one of the same
round. That one runs twice: what the two differ by is what the method cannot tell apart. What a trouble adds is to
be compared with what a healthy server takes. A training that waits for the others looks slow to its own hook: so each
samples every 10 updates, as often as any does, whatever its budget.

The full disk is a file system of 32 KiB where root may mount one, else a limit on the size of files. There the
memory for undelivered data is 16 KiB in place of 32 MiB, so that the disk is met, and data dropped, at once.

    python -m benchmarks.troubles [--rounds 40] [--block 5]
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.paired import median
from benchmarks.serving import serving
from benchmarks.troubled import Trainer, Way
from tests.proxy import between
from tests.small_server import Shelf, free_port
from tests.small_server import serving as small_server

FAR_S = 0.2
DISK_BYTES = 32_768
MEMORY_BYTES = 16_384
WARM_UP = 30

# By way, of each round: the ratios of wall time and of CPU time to the first one's, less one.
Ratios = dict[str, list[tuple[float, float]]]


@contextmanager
def ways(folder: Path) -> Iterator[list[Way]]:
    """All of them, with the servers they need. The first is what the others are compared with."""
    dead = f"http://127.0.0.1:{free_port()}"
    disk, spool = folder / "disk", str(folder / "spool")
    with ExitStack() as stack:
        healthy = stack.enter_context(serving(str(folder)))
        far = stack.enter_context(between(healthy, delay_s=FAR_S))
        # The kernel takes the connection, and nobody looks after it.
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        mute = stack.enter_context(small_server(Shelf(), manner="mute"))
        deaf = stack.enter_context(small_server(Shelf(), manner="no acks"))
        limit = 0 if stack.enter_context(small_disk(disk)) else DISK_BYTES
        yield [
            Way("not watched"),
            Way("not watched, again"),
            Way("healthy server", healthy, spool),
            Way("dead from the start", dead, spool),
            Way("takes connections, says nothing", f"http://127.0.0.1:{silent.getsockname()[1]}", spool),
            Way("never answers the greeting", mute.url, spool),
            Way("never acknowledges", deaf.url, spool),
            Way("dead, and the disk is full", dead, str(disk), MEMORY_BYTES, limit),
            Way(f"{1e3 * FAR_S:.0f} ms away, each way", far.url, spool),
        ]


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Make ``folder`` a file system of its own that is soon full; False where that is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def compare(trainers: Sequence[Trainer], rounds: int, block: int) -> Ratios:
    for trainer in trainers:
        trainer.run(WARM_UP)
    found: Ratios = {trainer.way.name: [] for trainer in trainers}
    for number in range(rounds):
        # Nobody always comes after the same one.
        turn = number % len(trainers)
        order = [*trainers[turn:], *trainers[:turn]][:: -1 if number // len(trainers) % 2 else 1]
        taken = {trainer.way.name: trainer.run(block) for trainer in order}
        wall, cpu = taken[trainers[0].way.name]
        for name, (its_wall, its_cpu) in taken.items():
            found[name].append((its_wall / wall - 1, its_cpu / cpu - 1))
    return found


def tell(trainers: Sequence[Trainer], ratios: Ratios) -> None:
    ends = {trainer.way: trainer.end() for trainer in trainers}
    plain, _, _ = ends[trainers[0].way]
    for way, (ended, during, closing) in ends.items():
        same = "the same bit for bit" if ended.result == plain.result else "NOT THE SAME"
        print(f"{way.name}\n  loss and weights {same}")
        if way is not trainers[0].way:
            for clock, name in enumerate(("wall time", "CPU time")):
                print(f"  {name} of an update {median([pair[clock] for pair in ratios[way.name]]).percent()}")
        if way.url:
            counts = f"{ended.sent} sent, {ended.pending} pending, {ended.dropped} dropped"
            memory = f"{ended.peak_mib - plain.peak_mib:+.0f} MiB of memory"
            print(f"  {counts}; closed in {ended.close_s:.1f} s; {memory}")
            for when, lines in (("log, training:", during), ("log, at its end:", closing)):
                print("".join(f"  {when} {line}\n" for line in lines), end="")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--block", type=int, default=5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ways(Path(name)) as all_ways, ExitStack() as running:
        trainers = []
        for way in all_ways:
            trainers.append(Trainer(way, Path(name)))
            running.callback(trainers[-1].kill)
        print(f"{chosen.rounds} rounds of {chosen.block} updates, medians and their 95 % intervals")
        tell(trainers, compare(trainers, chosen.rounds, chosen.block))


if __name__ == "__main__":
    main()
