"""What the pages ask of a run of a million updates and a hundred thousand samples, beside one of ten thousand updates.

Both are in one database, which is filled and judged as a server does it (ten minutes) and kept for the next time. A
server in a process of its own answers what the overview, the heat map and the page of a layer ask, of the long and the
short run in turn; time is until the last byte, bytes are those on the wire, gzipped. The one update that was skipped
must be in every view that its step lies in, from the whole run to a few updates. TensorBoard, MLflow and Trackio are
given the loss and the skips of as many updates, where they are installed (pip install --group peers), and asked as
their own pages ask; filling them in and starting them takes a minute or two each.

    python -m benchmarks.long_run [--long 1000000] [--short 10000] [--rounds 9]
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import sqlite3
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from scalescope_server.store.engine import open_store

from benchmarks.long_runs import LONG, SHORT, filled, skipped_step
from benchmarks.peers import PEERS, told_by
from benchmarks.serving import served

# What a page of 1,400 pixels asks for.
POINTS = "points=1200"
LAYER = quote("h.3.attn.qkv.weight", safe="")
# Drawn, as the pages ask for them.
DRAWN = {
    "overview, all its charts": f"figures?{POINTS}",
    "heat map of samples": f"figures/layers?measure=subnormal_share&{POINTS}",
    "heat map of tallies": f"figures/layers?measure=absorbed_share&{POINTS}",
    "a layer": f"figures/layers/{LAYER}?{POINTS}",
}
ZOOMS = (10_000, 1_000)


@dataclass(slots=True)
class Answers:
    """Of one address, asked for again and again."""

    seconds: list[float] = field(default_factory=list)
    wire: int = 0
    content: bytes = b""

    def take(self, connection: http.client.HTTPConnection, path: str) -> None:
        began = time.perf_counter()
        connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        read = answer.read()
        self.seconds.append(time.perf_counter() - began)
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {read[:300]!r}")
        self.wire = len(read)
        self.content = gzip.decompress(read) if answer.getheader("Content-Encoding") == "gzip" else read

    @property
    def ms(self) -> float:
        return statistics.median(self.seconds) * 1e3


def ask(url: str, paths: Sequence[str], rounds: int) -> list[Answers]:
    """Each of ``paths`` in turn, as often as there are rounds, and once before the clock counts."""
    place = urlsplit(url)
    answers = [Answers() for _ in paths]
    with closing(http.client.HTTPConnection(place.hostname or "", place.port, timeout=120)) as connection:
        for path in paths:
            Answers().take(connection, path)
        for _ in range(rounds):
            for answer, path in zip(answers, paths, strict=True):
                answer.take(connection, path)
    return answers


def views_of(file: Path) -> dict[str, str]:
    """What is asked for: what the pages draw, and all series of the run as numbers."""
    with closing(open_store(str(file))) as store:
        names = store.reader.series_names("long")
    asked = "&".join(f"name={quote(name, safe='')}" for name in names)
    return {**DRAWN, f"its {len(names)} series, as numbers": f"series?{asked}&{POINTS}"}


def compare(url: str, views: Mapping[str, str], long: int, rounds: int) -> None:
    """The views of both runs, and of the middle of the long one from near."""
    print(f"{'':28}{'long':>10}{'short':>10}{'ratio':>8}{'on the wire':>14}{'short':>10}")
    for name, view in views.items():
        one, other = ask(url, [f"/api/runs/{run}/{view}" for run in ("long", "short")], rounds)
        times = f"{one.ms:>7.1f} ms{other.ms:>7.1f} ms{one.ms / other.ms:>8.2f}"
        print(f"  {name:26}{times}{one.wire / 1e3:>11.1f} kB{other.wire / 1e3:>7.1f} kB", flush=True)
    for width in ZOOMS:
        within = f"&from={long // 2}&to={long // 2 + width}"
        answers = ask(url, [f"/api/runs/long/{view}{within}" for view in views.values()], rounds)
        told = ", ".join(f"{name} {answer.ms:.1f} ms" for name, answer in zip(views, answers, strict=True))
        print(f"  {width:,} updates in its middle: {told}")


def find_skip(url: str, updates: int) -> list[str]:
    """A line for each zoom: whether the skip's series has it, and the scale's chart its mark."""
    skipped, found = skipped_step(updates), []
    for width in (updates, updates // 10, 10_000, 1_000, 100):
        start = max(0, min(skipped - width // 3, updates - width))
        within = f"from={start}&to={start + width}&{POINTS}"
        series, chart = (
            json.loads(answer.content)
            for answer in ask(
                url, [f"/api/runs/long/series?name=skipped&{within}", f"/api/runs/long/figures?chart=scale&{within}"], 1
            )
        )
        points = series["series"]["skipped"]
        at = [step for step, most in zip(points["step"], points["max"], strict=True) if most == 1]
        marked = any(skipped in _steps(trace) for trace in chart["charts"][0]["figure"]["data"] if "marker" in trace)
        there = len(at) == 1 and at[0] <= skipped < at[0] + series["bucket"] and marked
        found.append(f"{width:,}: {'there' if there else 'MISSING'} (1 point = {series['bucket']:,})")
    return found


def _steps(trace: dict[str, Any]) -> list[int]:
    return list(trace.get("x", []))


def sizes(file: Path, updates: int) -> str:
    """Bytes on disk an update, in all and by table."""
    with closing(sqlite3.connect(file)) as connection:
        try:
            rows = connection.execute("SELECT name, SUM(pgsize) FROM dbstat GROUP BY name ORDER BY 2 DESC").fetchall()
        except sqlite3.OperationalError:
            rows = []  # Not every SQLite is built with it.
    by_table = ", ".join(f"{name} {size / updates:.0f}" for name, size in rows[:8])
    return f"{file.stat().st_size / updates:,.0f} bytes an update on disk{f': {by_table}' if by_table else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", type=int, default=LONG)
    parser.add_argument("--short", type=int, default=SHORT)
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    file = filled(chosen.long, chosen.short)
    views = views_of(file)
    print(f"a run of {chosen.long:,} updates, with a sample and two tallies every 10, beside one of {chosen.short:,}")
    with served(str(file)) as server:
        server.settle()
        compare(server.url, views, chosen.long, chosen.rounds)
        zooms = "; ".join(find_skip(server.url, chosen.long))
        print(f"  the update skipped at {skipped_step(chosen.long):,}, by updates in view: {zooms}")
        print(f"  the server holds {server.resident_mib():.0f} MiB")
    print(f"  {sizes(file, chosen.long + chosen.short)}")
    for name, peer in PEERS.items():
        told = told_by(peer, chosen.long, file.parent, chosen.rounds)
        print(f"{name}, of the loss and the skips alone: {told}", flush=True)


if __name__ == "__main__":
    main()
