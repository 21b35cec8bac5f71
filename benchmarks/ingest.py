"""What the server stores a second, durable and with its roll-ups kept, beside the bare engine and beside Trackio.

A server in a process of its own takes records through its socket, from a sender that has them encoded: updates with 20
numbers of the user each, then samples of 148 parameters. The server has stored another run before and come to rest:
what it does once when it begins is no part of it. The ceiling is the bare engine with the very rows that came of it, in
commits of the same size, each on the disk (see ``raw_engines``). All are run in turn; told are the medians over the
rounds, and beside them what the server takes of a processor for each, which others on the machine change less. A
trainer that sends a thousand updates a second tells what an acknowledgement takes when nothing waits; ten minutes of
training, sent as fast as it goes, tell what the server holds.

    python -m benchmarks.ingest [--updates 50000] [--samples 10000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec
import numpy as np
from scalescope.wire import Record

from benchmarks.raw_engines import SAMPLES, UPDATES, postgres_seconds, sqlite_seconds
from benchmarks.records import EVERY, USER_SCALARS, Dictation, hello
from benchmarks.sending import frames, send
from benchmarks.serving import served
from tests.postgres import cluster

# The hook's news goes out every 100 ms: of a trainer at a thousand updates a second so many in a record.
OF_RECORD = 100
# What is sent of a training for its memory: updates a second, and minutes.
PACE, MINUTES = 100, 10

# Samples that a server has stored before it is measured: so many at once that it has its kernel compiled.
FIRST_SAMPLES = 600

Commits = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Engine:
    """Gives addresses of new databases, and the seconds of the bare engine for what is stored in one."""

    name: str
    new: Callable[[], str]
    raw: Callable[[str, Sequence[str], Commits], float]


def updates(count: int) -> list[Record]:
    say = Dictation()
    return [say.layout(), *(say.steps(first, OF_RECORD) for first in range(0, count, OF_RECORD))]


def samples(count: int, *, tallied: bool = False) -> list[Record]:
    say = Dictation()
    found: list[Record] = [say.layout()]
    for step in range(0, count * EVERY, EVERY):
        found += [say.sample(step), *(say.tallies(step) if tallied else [])]
    return found


def beyond(step: int) -> list[Record]:
    """Records of each sort, of updates that no commit of the bare engine has; samples for a large batch."""
    say = Dictation()
    found: list[Record] = [say.layout(), say.steps(step, 1), *say.tallies(step)]
    return found + [say.sample(at) for at in range(step, step + FIRST_SAMPLES * EVERY, EVERY)]


def training(minutes: int) -> Iterator[list[Record]]:
    """Each tenth of a training of so many minutes, numbered on its own."""
    part = minutes * 60 * PACE // 10
    for tenth in range(10):
        say = Dictation(tenth)
        found: list[Record] = [say.layout()]
        for step in range(tenth * part, (tenth + 1) * part, OF_RECORD):
            for at in range(step, step + OF_RECORD, EVERY):
                found += [say.sample(at), *say.tallies(at)]
            found.append(say.steps(step, OF_RECORD))
        yield found


def one_round(engine: Engine, updated: int, sampled: int) -> dict[str, float]:
    """Figures by name."""
    found: dict[str, float] = {}
    told = (("updates", updates(updated), updated, UPDATES), ("samples", samples(sampled), sampled * EVERY, SAMPLES))
    for name, records, steps, tables in told:
        database = engine.new()
        count = steps if name == "updates" else steps // EVERY
        with served(database) as server:
            send(server.url, hello("before"), frames(beyond(steps)))
            server.settle()
            before = server.cpu_s()
            sent = send(server.url, hello(name), frames(records))
            taken = server.cpu_s() - before
        raw = engine.raw(database, tables, commits(steps, sent.acks))
        found |= {f"{name}/s": count / sent.seconds, f"{name}/s, bare engine": count / raw}
        found[f"{name}: microseconds of a processor for each"] = taken / count * 1e6
        found |= {f"{name}: share": raw / sent.seconds, f"{name}: in a commit": count / sent.acks}
        found[f"{name}: p99 ms of an acknowledgement, all at once"] = sent.p99_ms()
    return found


def commits(steps: int, acks: int) -> Commits:
    """The steps [start, stop) of as many commits of one size as there were."""
    edges = np.linspace(0, steps, max(acks, 1) + 1).astype(int).tolist()
    return list(itertools.pairwise(edges))


def paced(engine: Engine, seconds: int) -> tuple[float, float]:
    """(median, p99) in ms of an acknowledgement at a thousand updates a second, in 100 records."""
    say = Dictation()
    records: list[Record] = [say.layout(), *(say.steps(first, 10) for first in range(0, seconds * 1000, 10))]
    with served(engine.new()) as server:
        sent = send(server.url, hello("paced"), frames(records), per_second=100)
    return float(np.median(sent.delays)) * 1e3, sent.p99_ms()


def held(engine: Engine, minutes: int) -> tuple[list[float], float]:
    """(MiB after each tenth of a training, MiB a simulated minute over the last eight of them)."""
    found, after = [], 0
    with served(engine.new()) as server:
        # What is loaded once, whatever comes later.
        send(server.url, hello("before"), frames(beyond(0)))
        server.settle()
        for tenth, records in enumerate(training(minutes)):
            # Each tenth is a connection of its own and a segment that goes on: the run is one.
            moved = [msgspec.structs.replace(record, sequence=i) for i, record in enumerate(records)]
            send(server.url, hello("long", f"tenth-{tenth}"), frames(moved))
            after += len(moved)
            found.append(server.resident_mib())
    slope = np.polyfit(np.arange(8) * minutes / 10, found[2:], 1)[0]
    return found, float(slope)


def trackio_rate(count: int) -> float:
    """Durable updates/s of Trackio with the same 20 numbers, until its ``finish`` has come back."""
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"TRACKIO_DIR": folder, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "true"}
        command = [sys.executable, "-m", "benchmarks.ingest", "--trackio", str(count)]
        told = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **quiet}
        ).stdout
    return float(json.loads(told.splitlines()[-1]))


def log_to_trackio(count: int) -> None:
    trackio = importlib.import_module("trackio")
    trackio.init(project="benchmark")
    values = [{name: (step * 7919 + i) % 1000 / 999 for i, name in enumerate(USER_SCALARS)} for step in range(count)]
    began = time.perf_counter()
    for step, logged in enumerate(values):
        trackio.log(logged, step=step)
    trackio.finish()
    print(json.dumps(count / (time.perf_counter() - began)), flush=True)


def tell(figures: dict[str, list[float]]) -> None:
    for name, values in figures.items():
        median = statistics.median(values)
        print(f"  {name:52} {f'{median:.1%}' if 'share' in name else f'{median:,.1f}':>12}  of {len(values)}")


def measure(updated: int, sampled: int, rounds: int, minutes: int) -> None:
    with ExitStack() as held_open:
        folder = held_open.enter_context(tempfile.TemporaryDirectory())
        postgres = held_open.enter_context(cluster(durable=True))
        numbers = itertools.count()
        engines = (
            Engine("SQLite", lambda: f"{folder}/{next(numbers)}.db", lambda *of: sqlite_seconds(folder, *of)),
            Engine("Postgres", lambda: postgres.new(postgres.template), postgres_seconds),
        )
        figures: dict[str, defaultdict[str, list[float]]] = {engine.name: defaultdict(list) for engine in engines}
        peers: list[float] = []
        for _ in range(rounds):
            for engine in engines:
                for name, value in one_round(engine, updated, sampled).items():
                    figures[engine.name][name].append(value)
            if importlib.util.find_spec("trackio") is not None:
                peers.append(trackio_rate(updated))
        for engine in engines:
            print(f"{engine.name}: updates of {len(USER_SCALARS)} numbers of the user, samples of 148 parameters")
            tell(figures[engine.name])
            median, p99 = paced(engine, 5)
            print(f"  an acknowledgement at 1,000 updates/s: median {median:.1f} ms, p99 {p99:.1f} ms")
            resident, slope = held(engine, minutes)
            print(f"  {minutes} minutes of training: {resident[0]:.0f} MiB resident after a tenth of it,", end="")
            print(f" {resident[-1]:.0f} at its end; {slope:+.2f} MiB a minute from the third tenth on")
        print("Trackio, durable, the same 20 numbers")
        print(f"  updates/s {statistics.median(peers):,.1f}  of {len(peers)}" if peers else "  not installed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=50_000)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=int, default=MINUTES)
    parser.add_argument("--trackio", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.trackio is not None:
        log_to_trackio(chosen.trackio)
    else:
        measure(chosen.updates, chosen.samples, chosen.rounds, chosen.minutes)


if __name__ == "__main__":
    main()
