"""One training of ``benchmarks.troubles``, in a process of its own: as it trains, and what it says at its end."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import scalescope
import torch
from scalescope import courier
from scalescope.outbox import Outbox

from benchmarks.trainings import characters

CLOSING = "-- closing"


@dataclass(frozen=True, slots=True)
class Way:
    """How a training is watched: not at all without a ``url``. Bounds of 0 are the usual ones."""

    name: str
    url: str = ""
    spool: str = ""
    memory_bytes: int = 0
    file_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """What a training says of itself at its end; ``result`` is a digest of all losses and weights."""

    result: str
    close_s: float
    peak_mib: float
    sent: int
    pending: int
    dropped: int


class Trainer:
    """The process of one training, as its parent sees it."""

    def __init__(self, way: Way, folder: Path) -> None:
        self.way = way
        self._told = (folder / f"{way.name}.log").open("w+")
        command = [sys.executable, "-m", "benchmarks.troubled", json.dumps(asdict(way))]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._told, text=True)

    def run(self, updates: int) -> tuple[float, float]:
        """Seconds that so many updates took, and CPU seconds of the training's thread."""
        assert self._process.stdin is not None
        print(updates, file=self._process.stdin, flush=True)
        wall, cpu = json.loads(self._answer())
        return wall, cpu

    def end(self) -> tuple[Ended, list[str], list[str]]:
        """What it says, and the log lines while it trained and as it closed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        ended = Ended(**json.loads(self._answer()))
        self._process.wait()
        self._told.seek(0)
        during, _, closing = self._told.read().partition(f"{CLOSING}\n")
        self._told.close()
        return ended, during.splitlines(), closing.splitlines()

    def kill(self) -> None:
        """Where there was no orderly end."""
        self._process.kill()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            self._told.seek(0)
            raise SystemExit(f"{self.way.name}: the training ended early:\n{self._told.read()}")
        return answer


def train(way: Way) -> None:
    """The process itself: a block of updates for each number on its input."""
    torch.set_num_threads(1)
    training = characters()
    scope = scalescope.Scope()
    if way.url:
        _bound(way)
        scope = scalescope.watch(training.model, training.optimizer, training.scaler, url=way.url)
        training.log = scope.log
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.thread_time()
        for _ in range(int(line)):
            training.update()
        print(json.dumps([time.perf_counter() - wall, time.thread_time() - cpu]), flush=True)
    print(CLOSING, file=sys.stderr, flush=True)
    began = time.perf_counter()
    scope.close()
    close_s = time.perf_counter() - began
    stats, peak_mib = scope.stats, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result = _digest([*training.losses, *training.model.parameters()])
    ended = Ended(result, close_s, peak_mib, stats.sent, stats.pending, stats.dropped)
    print(json.dumps(asdict(ended)), flush=True)


def _bound(way: Way) -> None:
    os.environ["SCALESCOPE_SPOOL"] = way.spool
    if way.file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (way.file_bytes, way.file_bytes))
    if way.memory_bytes:
        # Nobody can set it: the real one would take half an hour to fill.
        vars(courier)["Outbox"] = partial(Outbox, memory_bytes=way.memory_bytes)


def _digest(tensors: list[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()


if __name__ == "__main__":
    train(Way(**json.loads(sys.argv[1])))
