"""Samples unpacked together: each as it would be alone, and the one that cannot be is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
from scalescope.numerics.exponents import BINS, MIN_EXPONENT, Histograms
from scalescope.packing import Trimmed, unpack
from scalescope.wire import Sample
from scalescope_server.store.errors import BadRecord
from scalescope_server.store.stacks import CELLS, MAX_NUMEL, Stack, stacked

from tests.batches import Dictation, histograms, same


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


def test_samples_in_a_stack_are_what_each_is_alone() -> None:
    told = samples(tables(np.random.default_rng(5), 7, 40))
    for chosen, stack in stacked(told):
        assert stack.counts.shape[0] == chosen.stop - chosen.start
        for sample, record in enumerate(told[chosen]):
            assert same(alone(stack, sample), unpack(record.table))


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
