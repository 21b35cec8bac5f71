"""What it costs to take a run out of the store and to remove it: ``python -m benchmarks.in_and_out``.

A run of ``--updates`` (20 values of the user's own each, a sample of 148 parameters every tenth) is exported in each
format: rows per second of processor time, and memory held beyond what was held before. Then it is pruned and deleted
while a trainer sends small batches, whose acknowledgements are told beside those without.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
from scalescope.numerics.exponents import Histograms
from scalescope.packing import pack
from scalescope.rows import column
from scalescope.wire import PROTOCOL, Event, Hello, Layout, Parameter, Record, Sample, Steps
from scalescope_server.exporting.encoding import Format
from scalescope_server.exporting.streams import stream
from scalescope_server.judge_pass import Outcome, judge_once
from scalescope_server.store.delivery import Batch
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.extract.tables import TableName
from scalescope_server.store.records import RunId
from scalescope_server.upkeep import Upkeep

PARAMETERS, OWN, SAMPLE_EVERY, BATCH = 148, 20, 10, 500
RUN, OTHER = RunId("long"), RunId("other")


def hello(run: str) -> Hello:
    return Hello(
        protocol=PROTOCOL,
        run=run,
        segment="only",
        rank=0,
        world_size=1,
        started_at=0.0,
        project="benchmark",
        name=None,
        tags=[],
        config="{}",
        environment={},
        scaler=None,
        optimizers=[],
        every=SAMPLE_EVERY,
    )


def steps(sequence: int, first: int, count: int) -> Steps:
    rows = np.arange(count)
    values = np.random.default_rng(first).normal(size=(OWN, count))
    columns = {f"own/{i}": column(rows, values[i]) for i in range(OWN)}
    columns |= {"scale": column(rows, np.full(count, 65536.0)), "loss": column(rows, values[0])}
    at = np.arange(first, first + count, dtype="<f8")
    return Steps(sequence=sequence, first=first, count=count, at=at.tobytes(), columns=columns)


def samples(sequence: int, first: int, count: int) -> Iterator[Sample]:
    generator = np.random.default_rng(first)
    for step in range(first, first + count, SAMPLE_EVERY):
        table = Histograms.empty(PARAMETERS)
        table.counts[:, 100:130] = generator.poisson(500, (PARAMETERS, 30))
        yield Sample(
            sequence=sequence + (step - first) // SAMPLE_EVERY,
            step=step,
            at=float(step),
            kind="grad",
            reason="periodic",
            scale=65536.0,
            micro_batches=1,
            parameters=b"",
            table=pack(table),
        )


def fill(store: Store, updates: int) -> None:
    named = [Parameter(f"layer.{i}", "layer", [4], "float32", 4, "fp16") for i in range(PARAMETERS)]
    records: list[Record] = [Layout(sequence=0, parameters=named, order="unknown", backward=[])]
    sequence = 1
    for first in range(0, updates, BATCH):
        records += samples(sequence, first, BATCH)
        sequence += BATCH // SAMPLE_EVERY
        skip = Event(sequence=sequence + 1, step=first, at=0.0, kind="skip", data="{}")
        records += [steps(sequence, first, BATCH), skip]
        sequence += 2
        store.writer.append(Batch(hello(RUN), tuple(records), 1.0, 1)).result()
        records = []
    while judge_once(store, RUN) is Outcome.MORE:
        pass


def exported(store: Store, format_: Format, name: TableName) -> str:
    extract = store.reader.extract(RUN)
    rows = sum(page.rows for page in extract.pages(name))
    tracemalloc.start()
    size = sum(len(piece) for piece in stream(extract, format_, (name,)))
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    began = time.process_time()
    for _ in stream(extract, format_, (name,)):
        pass
    took = time.process_time() - began
    return f"{rows:,} rows, {size / 1e6:.1f} MB, {rows / took:,.0f} rows/s of CPU, {held / 1e6:.1f} MB held"


class Trickle:
    """A trainer that sends 10 updates at a time; ``delays_ms`` of their acknowledgements."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0

    def delays_ms(self, until: Callable[[], bool]) -> list[float]:
        delays = []
        while not until():
            batch = Batch(hello(OTHER), (steps(self._next, 10 * self._next, 10),), 1.0, 1)
            self._next += 1
            began = time.perf_counter()
            self._store.writer.append(batch).result()
            delays.append(1e3 * (time.perf_counter() - began))
        return delays


def told(delays: list[float]) -> str:
    p50, p99 = np.percentile(delays, [50, 99])
    return f"acknowledged in {p50:.1f} ms (median), {p99:.1f} ms (p99), {max(delays):.1f} ms (worst) of {len(delays)}"


def kept(store: Store, trickle: Trickle, done: Callable[[], bool], *, older_s: float | None) -> str:
    upkeep = Upkeep(store, prune_older_than_s=older_s, clock=lambda: 1e9)
    ended, found = threading.Event(), [""]

    def send() -> None:
        found[0] = told(trickle.delays_ms(ended.is_set))

    sending = threading.Thread(target=send)
    began = time.perf_counter()
    upkeep.start()
    sending.start()
    while not done():
        ended.wait(0.05)
    took = time.perf_counter() - began
    ended.set()
    sending.join()
    upkeep.stop()
    return f"{took:.1f} s; {found[0]}"


def is_erased(store: Store) -> bool:
    with store.reader.reading() as connection:
        return connection.exec_driver_sql("SELECT key FROM run WHERE doomed").first() is None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--database", help="default: a new SQLite file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = arguments.database or str(Path(folder) / "benchmark.db")
        with closing(open_store(database)) as store:
            fill(store, arguments.updates)
            formats: tuple[Format, ...] = ("json", "csv", "parquet")
            names: tuple[TableName, ...] = ("updates", "samples")
            for name in names:
                for format_ in formats:
                    print(f"export {name:<8}{format_:<8} {exported(store, format_, name)}")
            trickle, count = Trickle(store), iter(range(100))
            print(f"nothing else     {told(trickle.delays_ms(lambda: next(count, None) is None))}")
            end = arguments.updates
            pruned = kept(store, trickle, lambda: store.reader.prunable(1e9)[0].looked_at >= end, older_s=1e6)
            print(f"while pruning    {pruned}")
            store.writer.delete_run(RUN).result()
            print(f"while erasing    {kept(store, trickle, lambda: is_erased(store), older_s=None)}")


if __name__ == "__main__":
    main()
