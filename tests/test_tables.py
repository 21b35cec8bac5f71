"""Which program of a launch takes which part of which tensor."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scalescope.numerics.tables import KINDS, table_of


@given(st.lists(st.integers(0, 500), max_size=8), st.sampled_from([1, 7, 64]), st.integers(1, 20))
def test_every_value_of_every_tensor_is_taken_once(sizes: list[int], tile: int, programs: int) -> None:
    table = table_of([torch.empty(size) for size in sizes], tile, programs=programs)
    of_row, first = table.words[3 * table.rows :].reshape(2, -1)
    assert table.words[table.rows : 2 * table.rows].tolist() == sizes
    assert len(of_row) == table.programs <= programs + sum(size > 0 for size in sizes)
    for row, size in enumerate(sizes):
        mine = first[of_row == row]
        assert mine.tolist() == list(range(0, size, tile * table.tiles))


def test_a_row_says_where_its_tensor_is_and_of_what_kind() -> None:
    tensors = [torch.ones(5, dtype=dtype) for dtype in KINDS]
    table = table_of(tensors, 4)
    addresses, _, kinds = table.words[: 3 * table.rows].reshape(3, -1)
    assert addresses.tolist() == [tensor.data_ptr() for tensor in tensors]
    np.testing.assert_array_equal(kinds, range(len(KINDS)))


def test_no_tensors_make_a_table_without_programs() -> None:
    table = table_of([], 4)
    assert (table.rows, table.programs, len(table.words)) == (0, 0, 0)
