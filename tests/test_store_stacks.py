"""Samples unpacked together: each as it would be alone, and the one that cannot be is refused by name.

By numpy, and by the compiled kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from scalescope.numerics.elsewhere import CompileError
from scalescope.numerics.exponents import BINS, MIN_EXPONENT, Histograms
from scalescope.numerics.paths import Faster
from scalescope.packing import Trimmed, opened_together, pack, unpack
from scalescope.wire import Sample
from scalescope_server.store import stacks
from scalescope_server.store.errors import BadRecord
from scalescope_server.store.stack_kernel import MANY, StackKernel
from scalescope_server.store.stacks import CELLS, MAX_NUMEL, Stack, by_numpy, stacked

from tests.batches import Dictation, histograms, same

# Of every width and sign.
COUNTS = st.one_of(st.integers(0, 2**8), st.integers(0, 2**16), st.integers(0, 2**32), st.integers(-(2**50), 2**50))


@pytest.fixture(params=["numpy", "numba"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Faster[StackKernel]:
    """Which of them unpacks; it is still in use at the end."""
    chosen: Faster[StackKernel] = Faster("numba", lambda: request.getfixturevalue("stack_kernel"))
    monkeypatch.setattr(stacks, "NUMBA", chosen)
    if request.param == "numba":
        chosen.ask()
        assert chosen.settled.wait(300)
        assert not chosen.reason
    return chosen


def tables(rng: np.random.Generator, rows: int, many: int) -> list[Histograms]:
    """Of counts of every width, in columns of their own, one of them of nothing."""
    found = [Histograms.empty(rows)]
    for _ in range(many - 1):
        table = Histograms.empty(rows)
        first, columns = int(rng.integers(0, BINS - 9)), int(rng.integers(1, 9))
        largest = 2 ** int(rng.integers(4, 36))
        table.counts[:, first : first + columns] = rng.integers(0, largest, (rows, columns))
        table.zero[:], table.inf[:], table.nan[:] = rng.integers(0, 2**40, (3, rows)) % 2**30
        table.amax[:], table.sum_squares[:] = rng.random((2, rows))
        found.append(table)
    return found


def samples(told: Sequence[Histograms]) -> list[Sample]:
    say = Dictation()
    return [say.sample(step, table) for step, table in enumerate(told)]


def alone(stack: Stack, sample: int) -> Histograms:
    counts = stack.counts[sample].astype(np.int64)
    return Trimmed(stack.low, counts, stack.classes[sample], stack.amax[sample], stack.sum_squares[sample]).whole()


def test_samples_in_a_stack_are_what_each_is_alone(way: Faster[StackKernel]) -> None:
    before = way.reason
    told = samples(tables(np.random.default_rng(5), 7, 40))
    for chosen, stack in stacked(told):
        assert stack.counts.shape[0] == chosen.stop - chosen.start
        for sample, record in enumerate(told[chosen]):
            assert same(alone(stack, sample), unpack(record.table))
    assert way.reason == before


def test_samples_of_a_large_model_are_unpacked_a_few_at_once() -> None:
    rows = CELLS // BINS // 2
    wide = histograms(*[[MIN_EXPONENT, 127]] * rows)
    chosen = [chosen for chosen, _ in stacked(samples([wide] * 5))]
    assert chosen == [slice(0, 2), slice(2, 4), slice(4, 5)]


def test_a_part_of_a_stack_has_its_samples_and_its_rows() -> None:
    told = tables(np.random.default_rng(6), 5, 6)
    ((_, stack),) = stacked(samples(told))
    picked = np.array([3, 0])
    part = stack.part(slice(2, 4)).take(picked)
    assert [same(alone(part, i), told[2 + i].take(picked)) for i in range(2)] == [True, True]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda table: table.zero.__setitem__(0, MAX_NUMEL), "elements, got a larger one"),
        (lambda table: table.counts.__setitem__((0, 3), 2**62), "elements, got a larger one"),
        (lambda table: table.counts.__setitem__((0, 3), -1), "expected counts of at least 0"),
        (lambda table: table.nan.__setitem__(0, -1), "expected counts of at least 0"),
        (lambda table: table.amax.__setitem__(0, np.inf), "finite amax"),
        (lambda table: table.amax.__setitem__(0, np.nan), "finite amax"),
        (lambda table: table.sum_squares.__setitem__(0, np.nan), "non-finite value"),
        (lambda table: table.sum_squares.__setitem__(0, -1.0), "sums of squares of at least 0"),
    ],
)
def test_the_table_that_cannot_be_is_refused_by_name(spoil: Callable[[Histograms], None], message: str) -> None:
    told = [histograms([0], [1, 5]) for _ in range(4)]
    spoil(told[2])
    # A count below 0 only fits where it is as wide as they come.
    told[2].counts[1, 200] = 2**33
    with pytest.raises(BadRecord, match=message) as caught:
        list(stacked(samples(told)))
    assert caught.value.sequence == 2


def test_bytes_that_are_no_table_are_refused_by_name() -> None:
    good, bad = samples([histograms([0])] * 2)
    bad = msgspec.structs.replace(bad, table=msgspec.structs.replace(bad.table, body=b"no zstd"))
    with pytest.raises(BadRecord, match=r"sample 1: .*zstd"):
        list(stacked([good, bad]))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    counts=arrays.arrays(np.int64, st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 9)), elements=COUNTS),
    real=arrays.arrays(np.float64, (2, 5, 4), elements=st.floats(allow_nan=True)),
    classes=arrays.arrays(np.int64, (3, 5, 4), elements=COUNTS),
    first=st.integers(0, BINS - 9),
)
def test_both_ways_unpack_and_refuse_the_same(
    stack_kernel: StackKernel,
    counts: NDArray[np.int64],
    real: NDArray[np.float64],
    classes: NDArray[np.int64],
    first: int,
) -> None:
    told = []
    for i, of_sample in enumerate(counts):
        rows, columns = of_sample.shape
        table = Histograms.empty(rows)
        table.counts[:, first : first + columns] = of_sample
        table.zero[:], table.inf[:], table.nan[:] = classes[:, i, :rows]
        table.amax[:], table.sum_squares[:] = real[:, i, :rows]
        told.append(pack(table))
    raws, low = opened_together(told), min((table.low for table in told if table.bins), default=0)
    end = max((table.low + table.bins for table in told if table.bins), default=0)
    mine, other = np.full((2, len(told), told[0].rows, end - low), np.nan)
    found, wanted = stack_kernel.unpack(told, raws, low, MAX_NUMEL, mine), by_numpy(told, raws, low, other)
    assert np.array_equal(mine, other)
    assert found[3] == wanted[3]
    for one, another in zip(found[:3], wanted[:3], strict=True):
        assert np.array_equal(one, another, equal_nan=one.dtype.kind == "f")


def test_the_kernel_is_compiled_for_the_first_large_batch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    chosen: Faster[StackKernel] = Faster("numba", lambda: pytest.fail("compiled"))
    monkeypatch.setattr(chosen, "ask", lambda: asked.append(True))
    monkeypatch.setattr(stacks, "NUMBA", chosen)
    wide = histograms(*[[MIN_EXPONENT, 127]] * 64)
    few = MANY // (64 * BINS)
    list(stacked(samples([wide] * few)))
    assert not asked
    list(stacked(samples([wide] * (few + 1))))
    assert asked


def test_a_kernel_that_fails_is_given_up_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def unpack(self, *_: object) -> None:
            raise CompileError("expected status 0, got 1")

    chosen: Faster[Failing] = Faster("numba", Failing)
    chosen.ask()
    assert chosen.settled.wait(10)
    monkeypatch.setattr(stacks, "NUMBA", chosen)
    told = tables(np.random.default_rng(7), 3, 4)
    ((_, stack),) = stacked(samples(told))
    assert [same(alone(stack, i), table) for i, table in enumerate(told)] == [True] * 4
    assert chosen.reason == "expected status 0, got 1"
