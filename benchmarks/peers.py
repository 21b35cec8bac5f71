"""The same run in other trackers: filled as their own writers would fill it, and read from their own servers.

They keep no histograms of all layers, so they are given what they can hold: the loss and the skips of every update.
"""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import json
import os
import re
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.long_runs import skipped_step

READY_WITHIN_S = 120.0
# After so long it is asked no more.
ASKED_FOR_S = 30.0
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
        _fill("trackio", updates, environment)
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


def mlflow(updates: int, folder: Path, rounds: int) -> str:
    """By rows in its own tables, since its client takes a thousand values a call, and the request of its own charts."""
    home = folder / f"mlflow-{updates}"
    home.mkdir(exist_ok=True)
    # Without its job runners, which are seven processes more.
    alone = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    environment = {**QUIET, **alone, "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db"}
    if not (home / "whole").exists():
        _fill("mlflow", updates, environment)
        (home / "whole").touch()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    command = ["-m", "mlflow", "server", "--backend-store-uri", environment["MLFLOW_TRACKING_URI"]]
    with _server([*command, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"], environment) as url:
        _until(lambda: bool(_answer(f"{url}health", None)))
        run = (home / "run").read_text()
        asked = f"run_ids={run}&metric_key=skipped&max_results=320"
        path = f"{url}ajax-api/2.0/mlflow/metrics/get-history-bulk-interval?{asked}"
        seconds, wire, content = _asked(path, None, rounds)
    steps = [int(metric.get("step", 0)) for metric in json.loads(content)["metrics"]]
    size = sum(file.stat().st_size for file in home.glob("mlflow.db*"))
    return _told(seconds, wire, steps, updates, size)


class Peer(NamedTuple):
    """How one is asked, and the module that is only there where its server is: of MLflow there is a client alone."""

    ask: Callable[[int, Path, int], str]
    module: str


PEERS: Mapping[str, Peer] = {
    "TensorBoard": Peer(tensorboard, "tensorboard"),
    "MLflow": Peer(mlflow, "flask"),
    "Trackio": Peer(trackio, "trackio"),
}


def told_by(peer: Peer, updates: int, folder: Path, rounds: int) -> str:
    """What one answers, and how long it took to fill it in, to start it and to ask it."""
    if importlib.util.find_spec(peer.module) is None:
        return "not installed: pip install --group peers"
    began = time.monotonic()
    try:
        told = peer.ask(updates, folder, rounds)
    except TimeoutError as error:
        told = str(error)
    return f"{told} ({time.monotonic() - began:.0f} s in all)"


def _fill(name: str, updates: int, environment: Mapping[str, str]) -> None:
    """In a process of its own, whose environment says where."""
    filling = [sys.executable, "-m", "benchmarks.peers", name, str(updates)]
    subprocess.run(filling, check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)


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


def fill_mlflow(updates: int) -> None:
    client: Any = importlib.import_module("mlflow").MlflowClient()
    file = Path(client.tracking_uri.removeprefix("sqlite:///"))
    run = client.create_run("0").info.run_id
    loss = np.random.default_rng(0).random(updates).tolist()
    # What it keeps of each metric as the latest, it makes itself.
    for name, value in (("loss", loss[-1]), ("skipped", 0.0)):
        client.log_metric(run, name, value, timestamp=1_000_000 + updates - 1, step=updates - 1)
    values = [("loss", loss), ("skipped", [float(step == skipped_step(updates)) for step in range(updates)])]
    insert = "INSERT INTO metrics (key, value, timestamp, step, is_nan, run_uuid) VALUES (?, ?, ?, ?, 0, ?)"
    with closing(sqlite3.connect(file)) as connection, connection:
        for name, column in values:
            rows = ((name, value, 1_000_000 + step, step, run) for step, value in enumerate(column[:-1]))
            connection.executemany(insert, rows)
    (file.parent / "run").write_text(run)


FILLING: Mapping[str, Callable[[int], None]] = {"trackio": fill_trackio, "mlflow": fill_mlflow}


@contextmanager
def _server(arguments: list[str], environment: Mapping[str, str]) -> Iterator[str]:
    """The address that it tells in what it prints."""
    with tempfile.TemporaryFile("w+") as said:
        # In a group of its own: MLflow's server is a child of its command.
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, **environment},
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            found: list[str] = []

            def told() -> bool:
                said.seek(0)
                found[:] = [f"{url}/" for url in re.findall(r"http://(?:127\.0\.0\.1|localhost):\d+", said.read())]
                return bool(found)

            _until(told)
            yield found[0]
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        with suppress(OSError, ValueError):
            if true():
                return
        time.sleep(0.2)
    raise TimeoutError(f"its server did not get ready within {READY_WITHIN_S:.0f} s")


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
    """(median seconds, bytes on the wire, content), of fewer rounds where they take long."""
    taken: list[float] = []
    wire, content = 0, b""
    while len(taken) < rounds and sum(taken) < ASKED_FOR_S:
        began = time.perf_counter()
        wire, content = _answer(path, body)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken), wire, content


if __name__ == "__main__":
    FILLING[sys.argv[1]](int(sys.argv[2]))
