"""The arrays inside the wire's records: numbers to bytes, and back once they were found to fit together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalescope.wire import Column, Probe, Sample, Steps, Tally, WireError


def column(rows: NDArray[np.integer], values: NDArray[np.floating]) -> Column:
    """The column that holds ``values`` at ``rows`` (0 is the batch's first update)."""
    return Column(np.ascontiguousarray(rows, "<u4").tobytes(), np.ascontiguousarray(values, "<f8").tobytes())


def column_arrays(packed: Column, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(rows int64, values float64) of a column over ``count`` updates.

    Raises:
        WireError: if the two differ in length or a row is outside the batch or out of order.
    """
    rows = _array(packed.rows, "<u4").astype(np.int64)
    values = _array(packed.values, "<f8")
    inside = rows.size == 0 or (rows[-1] < count and bool((np.diff(rows) > 0).all()))
    if len(rows) != len(values) or not inside:
        raise WireError(f"expected a column of rising rows below {count}, got {len(rows)} rows, {len(values)} values")
    return rows, values


def times(steps: Steps) -> NDArray[np.float64]:
    """When each update of the batch closed, float64 [count]. Raises :class:`WireError` on another length."""
    at = _array(steps.at, "<f8")
    if len(at) != steps.count or not np.isfinite(at).all():
        raise WireError(f"expected {steps.count} finite times, got {len(at)}")
    return at


def indexes(sample: Sample) -> NDArray[np.int64]:
    """Row number -> index, int64 [rows]. Raises :class:`WireError` if they do not match the table."""
    return _indexes(sample.parameters, sample.table.rows)


def tallied(record: Tally | Probe) -> tuple[NDArray[np.int64], dict[str, NDArray[np.float64]]]:
    """(row number -> index, int64 [rows]; column name -> values, float64 [rows]).

    Raises:
        WireError: if the columns differ in length from one another or from the indexes.
    """
    columns = {name: _array(raw, "<f8") for name, raw in record.columns.items()}
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise WireError(f"expected columns of one length, got lengths {sorted(lengths)}")
    return _indexes(record.indexes, lengths.pop() if lengths else 0), columns


def _indexes(raw: bytes, rows: int) -> NDArray[np.int64]:
    if not raw:
        return np.arange(rows)
    found = _array(raw, "<i4").astype(np.int64)
    if len(found) != rows or (rows and (found.min() < 0 or len(np.unique(found)) != rows)):
        raise WireError(f"expected {rows} different indexes, got {len(found)}")
    return found


def _array(raw: bytes, dtype: str) -> NDArray[Any]:
    if len(raw) % np.dtype(dtype).itemsize:
        raise WireError(f"expected whole {dtype} values, got {len(raw)} bytes")
    return np.frombuffer(raw, dtype)
