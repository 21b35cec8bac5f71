"""What the hook adds to a whole training, at default settings and with a real server: goal, less than 1 %.

Two trainings from one seed run in one process on one thread and take turns, block by block: with, without,
without, with. One is watched, and for the second half of the pairs the other one, since two that are alike can differ
by where their memory lies. Each pair of blocks gives a ratio, of wall time and of the CPU time of the training's
thread. Blocks in which gradients were sampled are told apart, and count as often as samples are taken: that is the
line *in all*. What the hook's own thread takes of a CPU is told beside it; it runs during the blocks of both.

How often samples are taken, a training tells that runs alone before, at default settings, until its budget has settled.
The one in the pairs is given that: two in turns would look like one that is twice as slow.

``--control`` watches neither: what the method itself finds where there is nothing to find.

    python -m benchmarks.overhead [--pairs 120] [--seconds 900] [--only demo|gpt] [--control]
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from os import environ

import scalescope
import torch

from benchmarks.paired import median, mixed
from benchmarks.serving import serving
from benchmarks.trainings import Training, characters, gpt

LINK_THREAD = "scalescope-link"


@dataclass(frozen=True, slots=True)
class Course:
    """What is run: a block has ``block`` updates at most; the budget has settled within ``settling`` of them."""

    title: str
    make: Callable[[], Training]
    block: int
    settling: int


COURSES = {
    "demo": Course("the demo's model, 0.1 M parameters", characters, block=10, settling=700),
    "gpt": Course("28 M parameters", lambda: gpt(tokens=128), block=1, settling=140),
}
# So many tell how long an update takes.
TRIED = 3
# So many updates come before the pairs: with it a sample falls into the middle of a block of ten.
WARM_UP = 15
# A block takes about so long where its updates are slow: the machine is not the same any more a few seconds later.
BLOCK_S = 0.5


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds (wall, CPU of the training's thread) of the same block, without the hook and with it."""

    plain: tuple[float, float]
    watched: tuple[float, float]
    sampled: bool

    def ratio(self, clock: int) -> float:
        return self.watched[clock] / self.plain[clock] - 1


def pairs_of(
    block: int, plain: Training, watched: Training, scope: scalescope.Scope, *, most: int, until: float
) -> list[Pair]:
    """At most so many, and none is begun after that moment of ``time.monotonic``."""
    found: list[Pair] = []
    while len(found) < most and time.monotonic() < until:
        order = (watched, plain) if len(found) % 2 else (plain, watched)
        samples = scope.stats.sampled.updates
        taken = {training: _timed(training, block) for training in order}
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


def watching(training: Training, url: str, every: int | None = None) -> scalescope.Scope:
    scope = scalescope.watch(training.model, training.optimizer, training.scaler, url=url, every=every)
    if not scope.run_id:
        raise SystemExit("nothing is watched; see above")
    training.log = scope.log
    return scope


def settled(course: Course, url: str) -> int:
    """The interval that the default settings come to: two in a row are alike."""
    training = course.make()
    steps: list[int] = []
    with watching(training, url) as scope:
        for step in range(course.settling):
            training.update()
            if scope.stats.sampled.updates > len(steps):
                steps.append(step)
            if len(steps) > 4 and steps[-1] - steps[-2] == steps[-2] - steps[-3]:
                break
    return steps[-1] - steps[-2]


def measure(course: Course, url: str, most: int, seconds: float, *, control: bool) -> None:
    every = None if control else settled(course, url)
    one, other = course.make(), course.make()
    update_s = min(_timed(training, TRIED)[0] for training in (one, other)) / TRIED
    block = max(1, min(course.block, round(BLOCK_S / update_s)))
    pairs: list[Pair] = []
    link_s, costs = 0.0, ""
    for plain, watched in ((one, other), (other, one)):
        with scalescope.Scope() if control else watching(watched, url, every) as scope:
            for training in (plain, watched):
                _timed(training, WARM_UP)
            cpu = link_cpu_s()
            until = time.monotonic() + seconds / 2
            pairs += pairs_of(block, plain, watched, scope, most=(most + 1) // 2, until=until)
            link_s += link_cpu_s() - cpu
            costs += _own_clock(scope)
        watched.log = None
    _tell(course, pairs, block, every, link_s)
    print(costs, end="")
    same = all(map(torch.equal, one.losses, other.losses))
    print(f"  losses of both, {len(one.losses)} updates: {'the same bit for bit' if same else 'NOT THE SAME'}")


def _tell(course: Course, pairs: list[Pair], block: int, every: int | None, link_s: float) -> None:
    plain_s = sum(pair.plain[0] for pair in pairs)
    update_ms = 1e3 * plain_s / len(pairs) / block
    what = f"one in {every} sampled" if every else "neither watched"
    share = min(block / every, 1.0) if every else 0.0
    print(f"{course.title}: {len(pairs)} pairs of {block} updates, {update_ms:.1f} ms each, {what}")
    for clock, name in enumerate(("wall time", "CPU time of the training's thread")):
        ordinary, sampled = ([pair.ratio(clock) for pair in pairs if pair.sampled is kind] for kind in (False, True))
        print(f"  {name}, in all {mixed(ordinary, sampled, share).percent()}")
        for kind, ratios in (("not sampled", ordinary), ("sampled", sampled)):
            if ratios:
                print(f"    {len(ratios):3} pairs {kind:12} {median(ratios).percent()}")
    print(f"  the hook's own thread: {100 * link_s / (2 * plain_s):.2f} % of a CPU, over the blocks of both")


def _own_clock(scope: scalescope.Scope) -> str:
    unsampled, sampled = scope.stats.unsampled.median_us, scope.stats.sampled.median_us
    if unsampled is None or sampled is None:
        return ""
    return f"  by the hook's own clock {unsampled:.0f} us, {sampled:.0f} us sampled\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=120)
    parser.add_argument("--seconds", type=float, default=900.0, help="for the pairs of each training, at most")
    parser.add_argument("--only", choices=COURSES)
    parser.add_argument("--control", action="store_true", help="watch neither")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, serving(folder) as url:
        environ["SCALESCOPE_SPOOL"] = folder
        for name, course in COURSES.items():
            if chosen.only in (None, name):
                measure(course, url, chosen.pairs, chosen.seconds, control=chosen.control)


if __name__ == "__main__":
    main()
