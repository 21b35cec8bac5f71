"""What the hook holds in memory, and what it sends, for 148 parameters with 28 million elements.

The same training runs unwatched and watched, each in a process of its own, and once more watched with Python's
allocations traced. Resident memory is what the system says, code that the hook loads included, of which the compiler
of its kernels is most; it is told after half of the updates too, so that what grows shows. glibc is told to give freed
tensors back at once: what it keeps for later is tens of megabytes more or less by chance. Bytes are counted by a proxy
before the server, WebSocket and HTTP included, with a sample every 10 updates.

    python -m benchmarks.footprint [--updates 400]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import tracemalloc
from dataclasses import asdict, dataclass
from pathlib import Path

import scalescope
import torch

from benchmarks.serving import serving
from benchmarks.trainings import gpt
from tests.proxy import between

MIB = 2**20
EVERY = 10
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "131072"}
OURS = str(Path(scalescope.__file__).parent / "*")


@dataclass(frozen=True, slots=True)
class Held:
    """MiB that a process holds: resident now and at the most, and by Python objects made in our files."""

    now: float
    peak: float
    ours: float

    @classmethod
    def read(cls) -> Held:
        # On Linux; elsewhere the peak stands for both.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB
        statm = Path("/proc/self/statm")
        pages = int(statm.read_text().split()[1]) if statm.exists() else 0
        return cls(pages * os.sysconf("SC_PAGE_SIZE") / MIB or peak, peak, _ours())


def train(url: str, updates: int, *, traced: bool) -> None:
    """The trainer's process: tells what it holds after half of its updates, and after all."""
    torch.set_num_threads(1)
    training = gpt(tokens=8, fused=True)
    if traced:
        tracemalloc.start()
    scope = scalescope.Scope()
    if url:
        scope = scalescope.watch(training.model, training.optimizer, training.scaler, url=url, every=EVERY)
        training.log = scope.log
    for number in range(1, updates + 1):
        training.update()
        if number in (updates // 2, updates):
            print(json.dumps(asdict(Held.read())), flush=True)
    scope.close()


def _ours() -> float:
    if not tracemalloc.is_tracing():
        return 0.0
    taken = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(inclusive=True, filename_pattern=OURS)])
    return sum(statistic.size for statistic in taken.statistics("filename")) / MIB


def start(url: str, updates: int, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.footprint", "--train", url, "--updates", str(updates), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **GIVE_BACK})


def ended(process: subprocess.Popen[str]) -> list[Held]:
    told, _ = process.communicate()
    if process.returncode:
        raise SystemExit("a training failed; see above")
    return [Held(**json.loads(line)) for line in told.splitlines()]


def measure(updates: int) -> None:
    with tempfile.TemporaryDirectory() as folder, serving(folder) as url, between(url) as proxy:
        os.environ["SCALESCOPE_SPOOL"] = folder
        plain, watched = start("", updates), start(proxy.url, updates)
        without, with_hook = ended(plain), ended(watched)
        sent, received = proxy.sent_bytes, proxy.received_bytes
        traced = ended(start(url, max(updates // 4, 20), "--traced"))
    print(f"148 parameters, 28 M elements, {updates} updates, a sample every {EVERY}")
    for after, one, other in zip((updates // 2, updates), without, with_hook, strict=True):
        now, peak = other.now - one.now, other.peak - one.peak
        print(f"  after {after:5} updates {now:+7.1f} MiB resident, {peak:+7.1f} at the most, of {one.now:.0f}")
    print(f"  Python objects made by the hook: {traced[0].ours:.2f} MiB at first, {traced[1].ours:.2f} at last")
    print(f"  sent {sent / updates:.0f} bytes an update, received {received / updates:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--train", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.train is None:
        measure(chosen.updates)
    else:
        train(chosen.train, chosen.updates, traced=chosen.traced)


if __name__ == "__main__":
    main()
