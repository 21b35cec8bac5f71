"""A run with everything that there is to tell, and what its tables must hold: for tests of what goes out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from scalescope.wire import Record
from scalescope_server.store.engine import Store
from scalescope_server.store.extract.tables import Chosen, TableName
from scalescope_server.store.reader import Reader
from scalescope_server.store.records import RunId

from tests.batches import Dictation, batch, hello, histograms

NAN, INF = math.nan, math.inf
Row = dict[str, Any]


def fill(store: Store, run: str = "run") -> None:
    """Two ranks in a first segment, rank 0 again in a second: series, histograms, tallies, a probe, events, facts."""
    for rank in (0, 1):
        caller, says = hello(run, rank=rank), Dictation()
        records: list[Record] = [
            says.layout(("a.weight", "fp16"), ("b.weight", "bf16"), modules=["a", "b"]),
            says.setup(0, flags={"tf32": False}),
            says.sample(0, histograms([-3, -3, 5], [0], zero=1)),
            says.steps(
                0, 3, (2, {"micro_batches": 1}), scale=[65536.0] * 3, loss=[2.5, NAN, INF], mine=[1.0, NAN, -INF]
            ),
            says.event(1, data='{"scale": 65536.0, "parameter": "a.weight", "nonfinite": {"a.weight": 3}}'),
            says.sample(1, histograms([1], inf=2, nan=1), reason="skip", parameters=[1]),
            says.sample(2, histograms([7], [8]), kind="forward"),
            says.tally(2, update_squares=[1.0, NAN], weight_squares=[4.0, 9.0]),
            says.steps(3, 2, skipped=[0.0, 1.0], rank={1: 7.0}),
        ]
        if rank == 0:
            records.append(says.probe(2, {"loss": 1.5}, lost=[1.0, 2.0], reference_nonzero=[8.0, 8.0]))
        store.writer.append(batch(caller, *records)).result()
    says = Dictation()
    store.writer.append(batch(hello(run, segment="second"), says.steps(0, 2, loss=[9.0, 8.0]), says.bye())).result()


def rows(reader: Reader, name: TableName, run: str = "run", **chosen: Any) -> list[Row]:
    """A table of an extract as one dictionary for each row, without what is not there."""
    extract = reader.extract(RunId(run), Chosen(**chosen))
    names = [field.name for field in extract.fields(name)]
    return [
        {key: value for key, value in zip(names, row, strict=True) if value is not None}
        for page in extract.pages(name)
        for row in zip(*page.columns, strict=True)
    ]


def picked(found: Iterable[Row], *names: str) -> list[tuple[Any, ...]]:
    """Some values of each row, None where there is none."""
    return [tuple(row.get(name) for name in names) for row in found]


def alike(one: object, other: object) -> bool:
    """Equal, NaN to NaN as well."""
    return repr(one) == repr(other)
