"""The same run in other trackers: filled as their own writers would fill it, and read from their own servers.

They keep no histograms of all layers, so they are given what they can hold: the loss and the skips of every update.
"""

from __future__ import annotations

import gzip
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.long_runs import skipped_step

READY_WITHIN_S = 120.0
QUIET = {"DO_NOT_TRACK": "true", "HF_HUB_OFFLINE": "1"}


def tensorboard(updates: int, folder: Path, rounds: int) -> str:
    """By its protocol buffers, and the request of its own page, at default settings."""
    logs = folder / f"tensorboard-{updates}"
    if not (logs / "whole").exists():
        _write_events(logs, updates)
        (logs / "whole").touch()
    command = ["-m", "tensorboard.main", "--logdir", str(logs), "--host", "127.0.0.1", "--port", "0"]
    with _server(command, {}) as url:
        path = f"{url}data/plugin/scalars/scalars?run=.&tag=skipped"
        _until(lambda: bool(_points(path)) and _points(path)[-1][1] == updates - 1)
        seconds, wire, content = _asked(path, None, rounds)
    size = sum(file.stat().st_size for file in logs.glob("events*"))
    steps = [point[1] for point in json.loads(content)]
    return _told(seconds, wire, steps, updates, size)


def trackio(updates: int, folder: Path, rounds: int) -> str:
    """By its own bulk writer, and the request of its own page for all series of a run."""
    home = folder / f"trackio-{updates}"
    environment = {**QUIET, "TRACKIO_DIR": str(home)}
    if not (home / "whole").exists():
        filling = [sys.executable, "-m", "benchmarks.peers", str(updates)]
        subprocess.run(filling, check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
        (home / "whole").touch()
    with _server(["-m", "trackio.cli", "show", "--project", "benchmark", "--host", "127.0.0.1"], environment) as url:
        _until(lambda: bool(_post(f"{url}api/get_runs_for_project", {"project": "benchmark"})))
        run: Any = json.loads(_post(f"{url}api/get_runs_for_project", {"project": "benchmark"}))
        first = (run["data"] if isinstance(run, dict) else run)[0]
        known = {"run": first.get("name") or first.get("run"), "run_id": first.get("id") or first.get("run_id")}
        body = {"project": "benchmark", "runs": [known], "max_points": 3000, "scalar_only": True}
        seconds, wire, content = _asked(f"{url}api/get_logs_batch", body, rounds)
    steps = [int(step) for step in re.findall(rb'"step": ?(\d+)', content)]
    size = sum(file.stat().st_size for file in home.rglob("*.db*"))
    return _told(seconds, wire, steps, updates, size)


PEERS: Mapping[str, Callable[[int, Path, int], str]] = {"tensorboard": tensorboard, "trackio": trackio}


def _told(seconds: float, wire: int, steps: list[int], updates: int, size: int) -> str:
    there = "there" if skipped_step(updates) in steps else "MISSING"
    told = f"{seconds * 1e3:.0f} ms, {wire / 1e3:.1f} kB on the wire, {len(steps):,} points"
    return f"{told}, the skipped update {there}; {size / updates:.0f} bytes an update on disk"


def _write_events(logs: Path, updates: int) -> None:
    event_pb2: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
    summary_pb2: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
    record_writer: Any = importlib.import_module("tensorboard.summary.writer.record_writer")
    logs.mkdir(parents=True, exist_ok=True)
    loss = np.random.default_rng(0).random(updates).tolist()
    with (logs / "events.out.tfevents.1000.benchmark").open("wb") as file:
        writer = record_writer.RecordWriter(file)
        writer.write(event_pb2.Event(wall_time=1000.0, file_version="brain.Event:2").SerializeToString())
        for step in range(updates):
            values = {"loss": loss[step], "skipped": float(step == skipped_step(updates))}
            told = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            event = event_pb2.Event(wall_time=1000.0 + step, step=step, summary=summary_pb2.Summary(value=told))
            writer.write(event.SerializeToString())
        writer.flush()


def fill_trackio(updates: int) -> None:
    storage: Any = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    loss = np.random.default_rng(0).random(updates).tolist()
    for first in range(0, updates, 20_000):
        steps = list(range(first, min(first + 20_000, updates)))
        values = [{"loss": loss[step], "skipped": float(step == skipped_step(updates))} for step in steps]
        storage.bulk_log("benchmark", "run", values, steps=steps)


@contextmanager
def _server(arguments: list[str], environment: Mapping[str, str]) -> Iterator[str]:
    """The address that it tells in what it prints."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, *arguments], env={**os.environ, **environment}, stdout=said, stderr=subprocess.STDOUT
        )
        try:
            found: list[str] = []

            def told() -> bool:
                said.seek(0)
                found[:] = re.findall(r"http://(?:127\.0\.0\.1|localhost):\d+/", said.read().replace("\n", "/\n"))
                return bool(found)

            _until(told)
            yield found[0]
        finally:
            process.terminate()
            process.wait()


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        with suppress(OSError, ValueError):
            if true():
                return
        time.sleep(0.2)
    raise SystemExit("a peer's server did not get ready")


def _points(path: str) -> list[list[float]]:
    with urllib.request.urlopen(path, timeout=60) as answer:
        found: list[list[float]] = json.loads(answer.read())
        return found


def _post(path: str, body: object) -> bytes:
    return _answer(path, body)[1]


def _answer(path: str, body: object) -> tuple[int, bytes]:
    """(bytes on the wire, content)"""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Accept-Encoding": "gzip", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(path, data, headers), timeout=120) as answer:
        read: bytes = answer.read()
        packed = answer.headers.get("Content-Encoding") == "gzip"
    return len(read), gzip.decompress(read) if packed else read


def _asked(path: str, body: object, rounds: int) -> tuple[float, int, bytes]:
    """(median seconds, bytes on the wire, content)"""
    taken, wire, content = [], 0, b""
    for _ in range(rounds):
        began = time.perf_counter()
        wire, content = _answer(path, body)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken), wire, content


if __name__ == "__main__":
    fill_trackio(int(sys.argv[1]))
