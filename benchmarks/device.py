"""The hook on a CUDA device: exact, without a wait of its own, at what cost. One run of about three minutes.

    python -m benchmarks.device [--copies 8] [--pairs 40]

Five things, each told in a few lines:

- *exact*: histograms by both ways for devices, and counts of non-finite values, against NumPy;
- *bandwidth*: the bytes a second that the kernel reads, of those that a copy within the device moves (goal: 80 %);
- *waits*: how often the host waits for the device in ten updates, watched and not, in loops of four kinds;
- *culprits*: skips in a fused optimizer, and before a clip, name the parameter that overflowed first;
- *overhead*: of a whole fp16 training of 28 million parameters, every tenth update sampled, in pairs of blocks.

The exit status is 0 where all that must hold did, 1 where something did not, or where there is no CUDA device. Goals of
speed are told, and fail nothing. It needs what the hook needs; the server is used where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from os import environ

import scalescope
import torch
from scalescope.numerics.exponents import Histograms
from scalescope.numerics.guarded import GuardedCount
from scalescope.numerics.launches import ROW, TILE, Launches
from scalescope.numerics.measure import kernels_of, measure, path_of
from scalescope.numerics.tables import table_of

from benchmarks.gradients import gradients
from benchmarks.paired import median
from benchmarks.serving import serving
from benchmarks.trainings import Training, gpt
from tests.by_frexp import assert_same, expected, mixed
from tests.small_training import OPTIMIZERS, Course, events, watching

# A compiler at a low priority, and a launcher besides.
_PATIENCE_S = 300.0
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_SIZES = (0, 1, 255, 4095, 4096, 4097, 100_003)
# The loops of people: (optimizer, whether they unscale and clip).
_LOOPS = tuple((name, clip) for name in ("adamw-foreach", "adamw-fused") for clip in (False, True))
_UPDATES = 10
_IN_A_ROW = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one thing: lines to print, and whether all that must hold did."""

    title: str
    lines: Sequence[str]
    holds: bool = True

    def tell(self) -> None:
        print(f"{self.title}: {'holds' if self.holds else 'DOES NOT HOLD'}")
        for line in self.lines:
            print(f"  {line}")


def exact(device: torch.device, sizes: Sequence[int] = _SIZES) -> Finding:
    """Both ways to measure against :mod:`tests.by_frexp`, with and without a factor."""
    here = [mixed(size, seed=size).to(dtype) for size in sizes for dtype in _DTYPES]
    there = [tensor.to(device) for tensor in here]
    lines, holds = [], True
    for _ in range(2):
        for factor in (1.0, 1024.0):
            wanted = [expected(_multiplied(tensor, factor).double().numpy()) for tensor in here]
            wrong = _difference(_measured(there, factor), Histograms.stack(wanted))
            holds = holds and not wrong
            lines.append(f"{path_of(device)}, times {factor:g}: {wrong or f'{len(here)} tensors, all the same'}")
        _await_kernels(device)
    return Finding("exact", lines, holds and _is_fast(device))


def counted(device: torch.device, count: GuardedCount) -> Finding:
    """What ``count`` finds of gradients where the scaler found something, and where it did not."""
    here = [mixed(size, seed=size).to(dtype) for size in _SIZES for dtype in _DTYPES]
    there = [tensor.to(device) for tensor in here]
    told = []
    for found in (0.0, 1.0, 0.0):
        guarded = count.count_if(torch.tensor(found, device=device)) if count.prepare(there) else None
        _finish(device)
        counts = None if guarded is None else guarded.nonfinite()
        told.append(None if counts is None else counts.tolist())
    wanted = [int((~tensor.isfinite()).sum()) for tensor in here]
    right = told == [None, wanted, None]
    return Finding("counts where something was found", [f"{count.path}: {sum(wanted)} values"], right)


def bandwidth(device: torch.device, tensors: Sequence[torch.Tensor], rounds: int = 20) -> Finding:
    """Reading ``tensors`` for all their statistics, beside copying them."""
    read = sum(tensor.nbytes for tensor in tensors)
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    target = torch.empty_like(flat)
    copied = 2 * read / seconds(device, lambda: target.copy_(flat), rounds)
    measured = read / seconds(device, _reading(device, tensors), rounds)
    start = time.perf_counter()
    measure(tensors)
    host_us = 1e6 * (time.perf_counter() - start)
    share = measured / copied
    lines = [
        f"{len(tensors)} tensors, {read / 2**20:.0f} MiB, by {path_of(device)}",
        f"a copy moves {copied / 1e9:.0f} GB/s, a sample reads {measured / 1e9:.0f} GB/s: {share:.0%} (goal: 80 %)",
        f"of the host a whole sample takes {host_us:.0f} us",
    ]
    return Finding("bandwidth", lines)


def waits(device: torch.device) -> Finding:
    """How often the host waits in ten updates of each loop, one of them sampled, without the hook and with it."""
    _await_kernels(device)
    lines, holds = [], True
    for name, clip in _LOOPS:
        plain = waits_of(device, course(device, name, clip), watched=False)
        watched = waits_of(device, course(device, name, clip), watched=True)
        holds = holds and plain == watched
        lines.append(f"{_loop(name, clip)}: {plain} without the hook, {watched} with it")
    return Finding(f"waits in {_UPDATES} updates", lines, holds)


def culprits(device: torch.device, pause_s: float = 0.05) -> Finding:
    """Skips of each loop name the layer whose output's gradient overflowed. ``pause_s``: between updates."""
    _await_kernels(device)
    lines, holds = [], True
    for name, clip in _LOOPS:
        bad = {12, 25}
        training = course(device, name, clip, bad)
        with watching(training.model, training.optimizer, training.scaler, every=1000) as watched:
            for _ in range(30):
                training.update()
                # As in a larger model: where updates are short, not each of them is looked at.
                time.sleep(pause_s)
            _finish(device)
            told = events(watched.end(), "skip")
        named = {step: str(data["parameter"]) for step, data in told.items()}
        # Weight and bias of one layer may come in either order.
        holds = holds and named.keys() == bad and all(name.startswith("layers.1.") for name in named.values())
        lines.append(f"{_loop(name, clip)}: {named}")
    return Finding("culprits", lines, holds)


def overhead(device: torch.device, make: Callable[[], Training], pairs: int, url: str, title: str) -> Finding:
    """Blocks of ten updates, one of which is sampled, of two trainings from one seed, one of them watched."""
    plain, watched = make(), make()
    with scalescope.watch(watched.model, watched.optimizer, watched.scaler, url=url, every=_UPDATES) as scope:
        watched.log = scope.log
        for training in (plain, watched):
            block(device, training)
        _await_kernels(device)
        taken: list[tuple[float, float]] = []
        for pair in range(pairs):
            order = (watched, plain) if pair % 2 else (plain, watched)
            wall = {id(training): block(device, training) for training in order}
            taken.append((wall[id(plain)], wall[id(watched)]))
        costs = scope.stats.unsampled.median_us or 0.0, scope.stats.sampled.median_us or 0.0
    same = all(map(torch.equal, plain.losses, watched.losses))
    update_ms = 1e3 * statistics.median(one for one, _ in taken) / _UPDATES
    lines = [
        f"{pairs} pairs of {_UPDATES} updates of {update_ms:.2f} ms: {median([b / a - 1 for a, b in taken]).percent()}",
        f"by the hook's own clock {costs[0]:.0f} us, {costs[1]:.0f} us sampled",
        f"losses of both: {'the same bit for bit' if same else 'NOT THE SAME'}",
    ]
    return Finding(f"overhead, {title}, every tenth update sampled (goal: less than 1 %)", lines, same)


def _reading(device: torch.device, tensors: Sequence[torch.Tensor]) -> Callable[[], object]:
    """What reads ``tensors``: the kernel alone where there is one."""
    if device.type != "cuda":
        return lambda: measure(tensors)
    table = table_of([tensor.reshape(-1) for tensor in tensors], TILE)
    words = torch.from_numpy(table.words).to(device)
    out = torch.zeros(table.rows * ROW, dtype=torch.int64, device=device)

    def launch(launches: Launches) -> bool:
        launches.measure(words, table, 1.0, out)
        return True

    return lambda: kernels_of(device).attempt(launch)


def seconds(device: torch.device, work: Callable[[], object], rounds: int) -> float:
    """What ``work`` takes the device, the median of ``rounds``."""
    for _ in range(3):
        work()
    return statistics.median(_timed(device, work) for _ in range(rounds))


def block(device: torch.device, training: Training) -> float:
    """Seconds of ten updates, until the device is through."""
    start = time.perf_counter()
    for _ in range(_UPDATES):
        training.update()
    _finish(device)
    return time.perf_counter() - start


def course(device: torch.device, name: str, clip: bool, overflows: set[int] | None = None) -> Course:
    """A small training on ``device``; its second layer overflows in some updates."""
    made = Course(
        lambda model: OPTIMIZERS[name](model.to(device)),
        precision=lambda: torch.autocast(device.type, dtype=torch.float16),
        clip=clip,
        scaler=torch.amp.GradScaler(device.type, init_scale=1024.0),
        overflows=overflows or set(),
        overflow_at=1,
    )
    made.batches = made.batches.to(device)
    return made


def waits_of(device: torch.device, training: Course, *, watched: bool) -> int:
    """How often the host waited in the second ten updates of ``training``."""
    listening = watching(training.model, training.optimizer, training.scaler, every=_UPDATES)
    with listening if watched else nullcontext():
        training.run(_UPDATES)
        _finish(device)
        with counting_waits(device) as caught:
            training.run(_UPDATES)
        return sum("synchroniz" in str(warning.message) for warning in caught)


@contextmanager
def counting_waits(device: torch.device) -> Iterator[list[warnings.WarningMessage]]:
    """Torch warns of each wait of the host for the device, of any thread."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield caught
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")


def _loop(name: str, clip: bool) -> str:
    return f"{name}{', unscale_ and clip' if clip else ''}"


def _measured(tensors: Sequence[torch.Tensor], factor: float) -> Histograms:
    measurement = measure(tensors, factor=factor)
    _finish(tensors[0].device)
    return measurement.result()


def _multiplied(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    return tensor if factor == 1.0 else tensor.to(torch.promote_types(tensor.dtype, torch.float32)) * factor


def _difference(found: Histograms, wanted: Histograms) -> str:
    try:
        assert_same(found, wanted)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return ""


def _await_kernels(device: torch.device) -> None:
    """Until the kernels are compiled, or given up."""
    if device.type == "cuda":
        kernels = kernels_of(device)
        kernels.ask()
        kernels.settled.wait(_PATIENCE_S)


def _is_fast(device: torch.device) -> bool:
    return device.type != "cuda" or not path_of(device).reason


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _timed(device: torch.device, work: Callable[[], object]) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    # In a row, so that the device has the next before it is through with the last.
    for _ in range(_IN_A_ROW):
        work()
    ended.record()
    ended.synchronize()
    return float(begun.elapsed_time(ended)) / 1e3 / _IN_A_ROW


def findings(device: torch.device, copies: int, pairs: int, url: str) -> Iterator[Finding]:
    yield exact(device)
    yield counted(device, GuardedCount(device, kernels_of(device)))
    yield bandwidth(device, [tensor.to(device) for tensor in gradients().values() for _ in range(copies)])
    yield waits(device)
    yield culprits(device)
    for fused in (True, False):
        make = partial(gpt, rows=16, tokens=512, fused=fused, device=device.type)
        yield overhead(device, make, pairs, url, f"28 M parameters, AdamW {'fused' if fused else 'not fused'}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=8, help="of the gradients that bandwidth is measured on")
    parser.add_argument("--pairs", type=int, default=40)
    chosen = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("there is no CUDA device here: nothing was measured", file=sys.stderr)
        return 1
    _go_the_same_way()
    device = torch.device("cuda", torch.cuda.current_device())
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}")
    holds = True
    with tempfile.TemporaryDirectory() as folder, _server(folder) as url:
        environ["SCALESCOPE_SPOOL"] = folder
        for finding in findings(device, chosen.copies, chosen.pairs, url):
            finding.tell()
            holds = holds and finding.holds
    return 0 if holds else 1


def _go_the_same_way() -> None:
    """Two trainings from one seed are the same bit for bit only where kernels add in one order."""
    environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Else every tensor that is made is filled first, those of the hook among them.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # made at import


@contextmanager
def _server(folder: str) -> Iterator[str]:
    """A server where it is installed; else the address of none, and what is recorded goes to ``folder``."""
    if importlib.util.find_spec("fastapi") is None:
        yield "http://127.0.0.1:9"
        return
    with serving(folder) as url:
        yield url


if __name__ == "__main__":
    sys.exit(main())
