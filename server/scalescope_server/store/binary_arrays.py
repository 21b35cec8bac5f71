"""Arrays of numbers as Postgres reads and tells them fastest: its binary format, by numpy for all elements at once.

The format is that of array_recv (src/backend/utils/adt/arrayfuncs.c): dimensions, whether there are nulls, the element
type's OID, length and lower bound, then for each element its length, -1 for a null, and its big-endian bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import psycopg

# numpy's kind and size -> OID in pg_type.
_OIDS = {"i2": 21, "i4": 23, "i8": 20, "f8": 701}
_KINDS = {oid: kind for kind, oid in _OIDS.items()}


@dataclass(frozen=True, slots=True)
class BinaryArray:
    """The bytes of an array, to be bound where its type is stated."""

    data: bytes


def binary_array(values: NDArray[Any], kind: str, null: NDArray[np.bool_]) -> BinaryArray:
    """``values`` [n] as elements of the ``kind`` "i2", "i4", "i8" or "f8", null where ``null`` is."""
    size = int(kind[1])
    elements = np.zeros(len(values), np.dtype([("length", ">i4"), ("value", f">{kind}")]))
    elements["length"] = np.where(null, -1, size)
    elements["value"][~null] = values[~null]
    header = np.array([1, null.any(), _OIDS[kind], len(values), 1], ">i4").tobytes()
    if not null.any():
        return BinaryArray(header + elements.tobytes())
    kept = np.ones((len(values), 4 + size), np.bool_)
    kept[null, 4:] = False
    return BinaryArray(header + elements.view(np.uint8).reshape(len(values), -1)[kept].tobytes())


def numbers_of(data: bytes) -> NDArray[Any]:
    """The elements of an array of one dimension without nulls, from its bytes: [n], big-endian. ValueError: another."""
    header = np.frombuffer(data, ">i4", min(5, len(data) // 4)).tolist()
    if header[:2] == [0, 0]:
        return np.empty(0)
    if len(header) < 5 or header[:2] != [1, 0] or header[2] not in _KINDS:
        raise ValueError(f"expected an array of numbers of one dimension without nulls, got the head {header}")
    return np.frombuffer(data, [("length", ">i4"), ("value", f">{_KINDS[header[2]]}")], header[3], 20)["value"]


def understand_arrays(connection: psycopg.Connection[Any]) -> None:
    """Let ``connection`` bind a :class:`BinaryArray`."""
    # Only where there is a connection: psycopg is an extra.
    from psycopg.adapt import Dumper
    from psycopg.pq import Format

    class BinaryArrayDumper(Dumper):
        format = Format.BINARY

        def dump(self, obj: BinaryArray) -> bytes:
            return obj.data

    connection.adapters.register_dumper(BinaryArray, BinaryArrayDumper)
