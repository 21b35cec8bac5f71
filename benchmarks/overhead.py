"""What the hook adds to a whole training, at default settings and with a real server: goal, less than 1 %.

Two trainings from one seed run in one process on one thread and take turns, block by block: with, without,
without, with. One is watched. Each pair of blocks gives a ratio, of wall time and of the CPU time of the training's
thread. Blocks in which gradients were sampled are told apart, and count as often as the interval says that the
budget settled on: that is the line *in all*. What the hook's own thread takes of a CPU is told beside it; it runs
during the blocks of both.

``--control`` watches neither: what the method itself finds where there is nothing to find.

    python -m benchmarks.overhead [--pairs 120] [--seconds 150] [--only demo|gpt] [--control]
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from os import environ

import scalescope
import torch

from benchmarks.paired import mixed
from benchmarks.serving import serving
from benchmarks.trainings import Training, characters, gpt

LINK_THREAD = "scalescope-link"


@dataclass(frozen=True, slots=True)
class Course:
    """What is run: a block has ``block`` updates, and the first ``warm_up`` of them are not counted."""

    title: str
    make: Callable[[], Training]
    block: int
    warm_up: int


# By the end of the warm-up the budget has settled, and a periodic sample falls into the middle of a block.
COURSES = {
    "demo": Course("the demo's model, 0.1 M parameters", characters, block=10, warm_up=335),
    "gpt": Course("28 M parameters", lambda: gpt(tokens=128), block=1, warm_up=35),
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds (wall, CPU of the training's thread) of the same block, without the hook and with it."""

    plain: tuple[float, float]
    watched: tuple[float, float]
    sampled: bool

    def ratio(self, clock: int) -> float:
        return self.watched[clock] / self.plain[clock] - 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many pairs of blocks, and seconds after which no more are begun."""

    pairs: int
    seconds: float


def pairs_of(course: Course, plain: Training, watched: Training, scope: scalescope.Scope, bounds: Bounds) -> list[Pair]:
    found: list[Pair] = []
    began = time.monotonic()
    while len(found) < bounds.pairs and time.monotonic() - began < bounds.seconds:
        order = (watched, plain) if len(found) % 2 else (plain, watched)
        samples = scope.stats.sampled.updates
        taken = {training: _timed(training, course.block) for training in order}
        found.append(Pair(taken[plain], taken[watched], scope.stats.sampled.updates > samples))
    return found


def _timed(training: Training, updates: int) -> tuple[float, float]:
    cpu, wall = time.thread_time(), time.perf_counter()
    for _ in range(updates):
        training.update()
    return time.perf_counter() - wall, time.thread_time() - cpu


def link_cpu_s() -> float:
    """CPU seconds of the hook's own thread so far; 0.0 without one."""
    found = [thread.ident for thread in threading.enumerate() if thread.name == LINK_THREAD]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in found if ident is not None)


def interval_of(scope: scalescope.Scope, updates: int, before: int) -> float:
    """Updates for each sampled one, over the last ``updates``, before which ``before`` had been sampled."""
    return updates / max(scope.stats.sampled.updates - before, 1)


def measure(course: Course, url: str, bounds: Bounds, *, control: bool) -> None:
    with ExitStack() as stack:
        plain, watched = course.make(), course.make()
        scope = scalescope.Scope()
        if not control:
            scope = stack.enter_context(scalescope.watch(watched.model, watched.optimizer, watched.scaler, url=url))
            if not scope.run_id:
                raise SystemExit("nothing is watched; see above")
            watched.log = scope.log
        for training in (plain, watched):
            _timed(training, course.warm_up)
        samples, cpu = scope.stats.sampled.updates, link_cpu_s()
        pairs = pairs_of(course, plain, watched, scope, bounds)
        link_s = link_cpu_s() - cpu
        interval = interval_of(scope, len(pairs) * course.block, samples)
        _tell(course, pairs, interval, link_s, scope)
    same = all(map(torch.equal, plain.losses, watched.losses))
    print(f"  losses of both, {len(plain.losses)} updates: {'the same bit for bit' if same else 'NOT THE SAME'}")


def _tell(course: Course, pairs: list[Pair], interval: float, link_s: float, scope: scalescope.Scope) -> None:
    plain_s = sum(pair.plain[0] for pair in pairs)
    update_ms = 1e3 * plain_s / len(pairs) / course.block
    print(f"{course.title}: {len(pairs)} pairs of {course.block} updates, {update_ms:.1f} ms each")
    ordinary, sampled = ([pair for pair in pairs if pair.sampled is kind] for kind in (False, True))
    # A block holds one sample at most where it is not longer than the interval.
    share = min(course.block / interval, 1.0)
    for clock, name in enumerate(("wall time", "CPU time of the training's thread")):
        every = [pair.ratio(clock) for pair in ordinary], [pair.ratio(clock) for pair in sampled]
        print(f"  {name}, in all {mixed(*every, share).percent()}")
        for kind, ratios in zip(("not sampled", "sampled"), every, strict=True):
            if ratios:
                print(f"    {len(ratios):3} pairs {kind:12} {mixed(ratios, [], 0.0).percent()}")
    print(f"  the hook's own thread: {100 * link_s / (2 * plain_s):.2f} % of a CPU, over the blocks of both")
    costs = scope.stats.unsampled.median_us, scope.stats.sampled.median_us
    if None not in costs:
        print(f"  by the hook's own clock {costs[0]:.0f} us, {costs[1]:.0f} us sampled, one in {interval:.0f} updates")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=120)
    parser.add_argument("--seconds", type=float, default=150.0, help="for the pairs of each training, at most")
    parser.add_argument("--only", choices=COURSES)
    parser.add_argument("--control", action="store_true", help="watch neither")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, serving(folder) as url:
        environ["SCALESCOPE_SPOOL"] = folder
        for name, course in COURSES.items():
            if chosen.only in (None, name):
                measure(course, url, Bounds(chosen.pairs, chosen.seconds), control=chosen.control)


if __name__ == "__main__":
    main()
