"""A long run and a short one in one SQLite database, stored and judged as a server does, and kept for the next time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

from scalescope.wire import Record
from scalescope_server.judge_pass import Outcome, judge
from scalescope_server.store.delivery import Batch
from scalescope_server.store.engine import open_store
from scalescope_server.watching.keeper import Keeper
from scalescope_server.watching.pack import enter_pack

from benchmarks.records import EVERY, Dictation, hello

LONG, SHORT = 1_000_000, 10_000
# The one update that is skipped, as a part of the run: 543,210 of a million.
SKIPPED = 0.54321
# Of which the first two are columns of their own, the others the user's.
NAMES = ("loss", "learning_rate", "train/accuracy", "train/tokens_seen")
BATCH = 10_000
# To be counted up where what is filled in changes.
EDITION = 2


def skipped_step(updates: int) -> int:
    return round(updates * SKIPPED)


def filled(long: int = LONG, short: int = SHORT) -> Path:
    """The database with the runs ``long`` and ``short``, of so many updates, a tenth as many samples and tallies."""
    folder = Path(tempfile.gettempdir()) / "scalescope-long-runs"
    folder.mkdir(exist_ok=True)
    file = folder / f"{long}-{short}-edition-{EDITION}.db"
    if not file.exists():
        # Under another name until it is whole.
        unfinished = file.with_suffix(".unfinished")
        for leftover in folder.glob(f"{unfinished.name}*"):
            leftover.unlink()
        for run, updates in (("short", short), ("long", long)):
            _fill(unfinished, run, updates)
        _judge(unfinished, long + short)
        unfinished.rename(file)
    return file


def _fill(file: Path, run: str, updates: int) -> None:
    say, began = Dictation(), time.perf_counter()
    with closing(open_store(str(file))) as store:
        for first in range(0, updates, BATCH):
            records = tuple(chain([say.layout()] if not first else [], _records(say, first, updates)))
            store.writer.append(Batch(hello(run), records, 1_000.0 + first, 0)).result()
    print(f"filled in {updates:,} updates in {time.perf_counter() - began:.0f} s", flush=True)


def _judge(file: Path, updates: int) -> None:
    """As a server does: one that is at work on the past answers pages more slowly."""
    began = time.perf_counter()
    with closing(open_store(str(file))) as store:
        enter_pack(store.writer, time.time())
        keeper = Keeper(store.reader, time.time)
        for run in store.reader.unjudged():
            while judge(store, run, None, keeper).outcome is Outcome.MORE:
                pass
    print(f"judged {updates:,} updates in {time.perf_counter() - began:.0f} s", flush=True)


def _records(say: Dictation, first: int, updates: int) -> Iterator[Record]:
    stop, skipped = min(first + BATCH, updates), skipped_step(updates)
    for step in range(first, stop, EVERY):
        yield say.sample(step)
        yield from say.tallies(step)
    if first <= skipped < stop:
        yield say.skip(skipped)
    yield say.steps(first, stop - first, NAMES, skipped=skipped)
