"""Tallies and probes in the store: folded by their catalogue, at one scale only, every row counting its own."""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scalescope.numerics.tallies import MODULE_TALLIES, PARAMETER_TALLIES, PROBE_TALLIES
from scalescope.wire import Record, SampleReason
from scalescope_server.store.columns import FOLDS
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.errors import BadRecord
from scalescope_server.store.records import TallyBucket

from tests.batches import Dictation, batch, hello

pytestmark = pytest.mark.both_engines

ROWS = 3
NAN = math.nan


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database)
    yield opened
    opened.close()


class Plan(NamedTuple):
    """One tally of the modules at ``indexes``: a sum and a maximum of each, None where they are not known."""

    step: int
    scale: float | None
    reason: SampleReason
    indexes: list[int]
    sums: list[int | None]
    tops: list[int | None]


# Whole numbers add up exactly in any order.
VALUES = st.none() | st.integers(0, 2**20)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    indexes = draw(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True))
    columns = st.lists(VALUES, min_size=len(indexes), max_size=len(indexes))
    return Plan(
        draw(st.integers(0, 600)),
        draw(st.sampled_from([65536.0, 1024.0, None])),
        draw(st.sampled_from(["periodic", "skip", "request"])),
        indexes,
        draw(columns),
        draw(columns),
    )


def told(values: Sequence[int | None]) -> list[float]:
    return [NAN if value is None else float(value) for value in values]


def recomputed(given_plans: Sequence[Plan], size: int) -> dict[object, list[object]]:
    """(bucket, scale, periodic) -> per row (sum, maximum, tallies), by the definition and without numpy."""
    found: defaultdict[object, list[list[list[int | None]]]] = defaultdict(lambda: [[[], []] for _ in range(ROWS)])
    for plan in given_plans:
        rows = found[plan.step // size * size, plan.scale, plan.reason == "periodic"]
        for index, added, top in zip(plan.indexes, plan.sums, plan.tops, strict=True):
            rows[index][0].append(added)
            rows[index][1].append(top)
    return {
        key: [
            (
                sum(known) if (known := [v for v in sums if v is not None]) else NAN,
                max((v for v in tops if v is not None), default=NAN),
                len(sums),
            )
            for sums, tops in rows
        ]
        for key, rows in found.items()
    }


def rows_of(buckets: Sequence[TallyBucket]) -> dict[object, list[object]]:
    return {
        (b.step, b.scale, b.periodic): list(
            zip(
                b.columns["forward_nonfinite"].tolist(),
                b.columns["forward_amax"].tolist(),
                b.tallies.tolist(),
                strict=True,
            )
        )
        for b in buckets
    }


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(plans(), min_size=1, max_size=40), st.integers(1, 10))
def test_levels_equal_a_fold_over_all_tallies_of_their_bucket_and_scale(
    given_plans: list[Plan], per_batch: int
) -> None:
    say = Dictation()
    layout = say.layout(modules=["", "a", "b"])
    records = [
        say.tally(
            plan.step,
            subject="module",
            scale=plan.scale,
            reason=plan.reason,
            indexes=plan.indexes,
            forward_nonfinite=told(plan.sums),
            forward_amax=told(plan.tops),
        )
        for plan in given_plans
    ]
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(str(Path(folder) / "tallies.db"))
        store.writer.append(batch(hello(), layout)).result()
        for first in range(0, len(records), per_batch):
            store.writer.append(batch(hello(), *records[first : first + per_batch])).result()
        store.writer.append(batch(hello(), say.steps(0, 601))).result()
        names = ["forward_nonfinite", "forward_amax"]
        for points, size in ((100, 8), (12, 64), (2, 512), (1, 4096)):
            bucket, found = store.reader.tallies("run", "module", names, range(ROWS), points=points)
            if bucket == 1:
                assert len(given_plans) <= points
                continue
            assert bucket == size
            np.testing.assert_equal(rows_of(found), recomputed(given_plans, size))
        store.close()


def test_a_scale_that_thrashes_is_shown_in_coarser_buckets(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    say = Dictation()
    tallies = [say.tally(step, scale=2.0 ** (step % 7), looked=[1.0]) for step in range(0, 600, 3)]
    store.writer.append(batch(hello(), say.layout(("w", "fp16")), *tallies)).result()
    monkeypatch.setattr("scalescope_server.store.views.MAX_ROLLED", 30)
    size, found = store.reader.tallies("run", "parameter", ["looked"], [0], points=100)
    assert (size, len(found)) == (512, 14)
    assert sum(bucket.columns["looked"][0] for bucket in found) == 200


def test_every_column_of_the_catalogue_folds_one_way() -> None:
    assert len(FOLDS) == len(PARAMETER_TALLIES) + len(MODULE_TALLIES) + len(PROBE_TALLIES)


def test_tallies_come_back_as_they_were_sent_with_nothing_where_nothing_is_known(store: Store) -> None:
    say = Dictation()
    layout = say.layout(("a", None), ("b", None), ("c", None))
    first = say.tally(0, indexes=[2, 0], unchanged=[1.0, NAN], looked=[8.0, 8.0])
    second = say.tally(10, scale=None, reason="request", unchanged=[0.0, 1.0, 2.0])
    store.writer.append(batch(hello(), layout, first, second)).result()
    bucket, (one, other) = store.reader.tallies("run", "parameter", ["unchanged", "looked"], range(3))
    assert (bucket, one.step, one.scale, one.periodic) == (1, 0, 65536.0, True)
    assert (other.step, other.scale, other.periodic, other.tallies.tolist()) == (10, None, False, [1, 1, 1])
    np.testing.assert_equal(one.columns["unchanged"], [NAN, NAN, 1.0])
    np.testing.assert_equal(one.columns["looked"], [8.0, NAN, 8.0])
    np.testing.assert_equal(other.columns["looked"], [NAN, NAN, NAN])
    assert one.tallies.tolist() == [1, 0, 1]
    assert store.reader.tallies("run", "module", ["looked"], range(3)) == (1, [])


def test_columns_that_we_do_not_know_are_left_alone(store: Store) -> None:
    say = Dictation()
    newer = say.tally(0, looked=[8.0], of_tomorrow=[-1.0])
    store.writer.append(batch(hello(), say.layout(("a", None)), newer, say.tally(1, of_tomorrow=[1.0]))).result()
    _, (found,) = store.reader.tallies("run", "parameter", ["looked", "of_tomorrow"], [0])
    assert (found.columns["looked"].tolist(), found.tallies.tolist()) == ([8.0], [1])
    np.testing.assert_equal(found.columns["of_tomorrow"], [NAN])


def test_parameters_that_join_later_rest_on_fewer_tallies(store: Store) -> None:
    say = Dictation()
    store.writer.append(batch(hello(), say.layout(("a", None)), say.tally(0, looked=[8.0]))).result()
    larger = say.layout(("a", None), ("b", None))
    store.writer.append(batch(hello(), larger, say.tally(1, looked=[8.0, 4.0], unchanged=[1.0, 1.0]))).result()
    _, (found,) = store.reader.tallies("run", "parameter", ["looked", "unchanged"], range(2), points=1)
    assert (found.columns["looked"].tolist(), found.tallies.tolist()) == ([16.0, 4.0], [2, 1])
    assert found.columns["unchanged"].tolist() == [1.0, 1.0]


def test_another_rank_with_its_parameters_in_another_order_has_the_same_rows(store: Store) -> None:
    one, other = Dictation(), Dictation()
    store.writer.append(batch(hello(), one.layout(("a", None), ("b", None), modules=["x", "y"]))).result()
    layout = other.layout(("b", None), ("a", None), modules=["y", "x", "z"])
    tallies = (other.tally(0, looked=[2.0, 1.0]), other.tally(0, subject="module", forward_numel=[2.0, 1.0, 3.0]))
    store.writer.append(batch(hello(rank=1), layout, *tallies)).result()
    (_, (parameters,)) = store.reader.tallies("run", "parameter", ["looked"], range(2), rank=1)
    (_, (modules,)) = store.reader.tallies("run", "module", ["forward_numel"], range(3), rank=1)
    assert parameters.columns["looked"].tolist() == [1.0, 2.0]
    assert modules.columns["forward_numel"].tolist() == [1.0, 2.0, 3.0]


def test_the_update_ratio_is_a_series_told_by_the_first_tally_of_a_step(store: Store) -> None:
    say = Dictation()
    layout, steps = say.layout(("a", None), ("b", None)), say.steps(0, 3)
    first = say.tally(1, update_squares=[9.0, NAN], weight_squares=[100.0, 50.0])
    store.writer.append(batch(hello(), layout, steps, first, say.tally(2, looked=[1.0, 1.0]))).result()
    again = say.tally(1, update_squares=[1.0, 1.0], weight_squares=[1.0, 1.0])
    zero = say.tally(2, update_squares=[0.0, 0.0], weight_squares=[0.0, 0.0])
    store.writer.append(batch(hello(), again, zero)).result()
    ratio = store.reader.series("run", ["update_ratio"])[1]["update_ratio"]
    assert (ratio.step.tolist(), ratio.last.tolist()) == ([1], [0.3])


def test_probes_come_back_whole_and_in_pages(store: Store) -> None:
    say = Dictation()
    layout = say.layout(("a", None), ("b", None))
    probes = [say.probe(step, {"loss": 0.5}, indexes=[1], lost=[1.0], products=[-2.0]) for step in range(4)]
    store.writer.append(batch(hello(), layout, say.steps(0, 4), *probes, say.probe(3, {"refused": "why"}))).result()
    names, first, cursor = store.reader.probes("run", limit=3)
    _, rest, last = store.reader.probes("run", limit=3, cursor=cursor)
    assert (names, last) == (["a", "b"], None)
    assert [probe.step for probe in first + rest] == [0, 1, 2, 3, 3]
    assert (first[0].data, first[0].positions.tolist()) == ({"loss": 0.5}, [1])
    assert first[0].columns["products"].tolist() == [-2.0]
    assert (rest[-1].data, rest[-1].columns) == ({"refused": "why"}, {})
    _, (folded,) = store.reader.tallies("run", "probe", ["lost"], range(2), points=1)
    assert (folded.step, folded.tallies.tolist()) == (0, [0, 4])


SAY = Dictation()
BAD = [
    (SAY.tally(0, indexes=[5], looked=[1.0]), "expected the index of one of the 1 parameters of the layout, got 5"),
    (SAY.tally(0, subject="module", looked=[1.0]), "expected the index of one of the 0 modules"),
    (SAY.tally(0, indexes=[0, 0], looked=[1.0, 1.0]), "expected 2 different indexes"),
    (SAY.tally(0, looked=[1.0], unchanged=[1.0, 2.0]), "expected columns of one length"),
    (SAY.tally(0, looked=[-1.0]), "expected values of at least 0 in the column looked"),
    (SAY.tally(0, looked=[math.inf]), "in the column looked, got a larger one"),
    (SAY.tally(0, forward_amax=[math.inf]), "in the column forward_amax, got a larger one"),
    (SAY.tally(2**31, looked=[1.0]), "expected a step below"),
    (SAY.probe(0, [1]), "data: expected a JSON object, got list"),
    (SAY.probe(0, indexes=[1], lost=[1.0]), "expected the index of one of the 1 parameters"),
]


@pytest.mark.parametrize(("record", "message"), BAD)
def test_a_tally_that_cannot_be_true_refuses_its_batch(store: Store, record: Record, message: str) -> None:
    layout = Dictation(100).layout(("a", None))
    with pytest.raises(BadRecord) as refused:
        store.writer.append(batch(hello(), layout, record)).result()
    assert message in str(refused.value)


@pytest.mark.parametrize("value", [math.inf, 1e308])
def test_sums_that_leave_float64_are_told_as_infinite(store: Store, value: float) -> None:
    say = Dictation()
    tallies = [say.tally(step, weight_squares=[value] * 2, update_squares=[value] * 2) for step in range(2)]
    store.writer.append(batch(hello(), say.layout(("a", None), ("b", None)), *tallies)).result()
    _, (found,) = store.reader.tallies("run", "parameter", ["weight_squares"], [0], points=1)
    assert found.columns["weight_squares"].tolist() == [math.inf]
