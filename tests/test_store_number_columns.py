"""Columns of numbers are read bit for bit as they were stored, on both engines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from scalescope_server.store import tables
from scalescope_server.store.binary_arrays import binary_array, numbers_of
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.number_columns import read_columns
from sqlalchemy import select

from tests.batches import Dictation, batch, hello

# What neither the text of a decimal number nor half its bits would keep.
LOSSES = (0.1 + 0.2, math.nextafter(1.0, 2.0), 5e-324, -1.7976931348623157e308)


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with closing(open_store(database, clock=lambda: 1000.0)) as opened:
        yield opened


@pytest.mark.both_engines
def test_numbers_come_as_they_were_stored_and_null_as_nan(store: Store) -> None:
    told = Dictation().steps(0, len(LOSSES) + 1, loss=dict(enumerate(LOSSES)))
    store.writer.append(batch(hello(world_size=1), told)).result()
    row = tables.step.c
    query = select(row.step, row.loss, row.nonfinite, row.growth_tracker).order_by(row.step.desc())
    with store.reader._engine.connect() as connection:
        steps, losses, flags, never = read_columns(connection, query)
        none = read_columns(connection, query.where(row.step > 100))
    assert steps.tolist() == [4, 3, 2, 1, 0]
    assert np.array_equal(losses.view(np.int64)[1:], np.array(LOSSES[::-1]).view(np.int64))
    assert np.isnan(losses[0])
    assert flags.tolist() == [0] * 5
    assert np.isnan(never).all()
    kinds = [np.dtype(kind) for kind in (np.int64, np.float64, np.int64, np.float64)]
    assert [column.dtype for column in (steps, losses, flags, never)] == kinds
    assert [(len(column), column.dtype) for column in none] == [(0, kind) for kind in kinds]


@pytest.mark.parametrize("kind", ["i2", "i4", "i8", "f8"])
def test_an_array_is_read_from_the_bytes_it_is_written_as(kind: str) -> None:
    values = np.array([0, 1, -2, 32767], kind)
    assert np.array_equal(numbers_of(binary_array(values, kind, values != values).data), values)
    assert len(numbers_of(np.array([0, 0, 701], ">i4").tobytes())) == 0


def test_another_array_is_refused_by_its_head() -> None:
    values = np.array([1.0, 2.0])
    with pytest.raises(ValueError, match=r"without nulls, got the head \[1, 1, 701, 2, 1\]"):
        numbers_of(binary_array(values, "f8", np.array([True, False])).data)
    with pytest.raises(ValueError, match=r"got the head \[2"):
        numbers_of(np.array([2, 0, 701, 1, 1, 1, 1], ">i4").tobytes())
