"""Parquet by pyarrow, which is only imported where it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from scalescope_server.errors import InvalidError
from scalescope_server.store.extract.tables import Field, FieldKind, Page, TableName

if TYPE_CHECKING:
    import pyarrow

# A row group: large enough that readers are quick, small enough to be held.
GROUP_ROWS = 65_536
GROUP_BYTES = 16 * 1024 * 1024

_encoder = msgspec.json.Encoder()


def check_parquet() -> None:
    """Raises :class:`InvalidError` with what to install where pyarrow is not there."""
    if find_spec("pyarrow") is None:
        raise InvalidError("Parquet needs pyarrow: pip install 'scalescope[parquet]'", field="format")


class ParquetEncoding:
    """One Parquet file: missing values are null, which NaN is not; JSON values are JSON text, counts a list."""

    def __init__(self, _: TableName, fields: Sequence[Field]) -> None:
        check_parquet()
        import pyarrow.parquet

        self._fields = fields
        self._schema = pyarrow.schema([(field.name, _type_of(field.kind)) for field in fields])
        self._sink = _Sink()
        self._waiting: list[pyarrow.RecordBatch] = []
        self._writer = pyarrow.parquet.ParquetWriter(self._sink, self._schema, compression="zstd")

    def head(self) -> bytes:
        return self._sink.taken()

    def page(self, page: Page) -> bytes:
        import pyarrow

        arrays = [
            pyarrow.array(_told(field.kind, column), _type_of(field.kind), from_pandas=False)
            for field, column in zip(self._fields, page.columns, strict=True)
        ]
        self._waiting.append(pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema))
        rows, size = sum(b.num_rows for b in self._waiting), sum(b.nbytes for b in self._waiting)
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            self._write()
        return self._sink.taken()

    def tail(self) -> bytes:
        self._write()
        self._writer.close()
        return self._sink.taken()

    def _write(self) -> None:
        import pyarrow

        table = pyarrow.Table.from_batches(self._waiting, self._schema)
        self._waiting = []
        if table.num_rows:
            self._writer.write_table(table, row_group_size=table.num_rows)


class _Sink:
    """A file that can only be written, and whose bytes are taken away as they come."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        self._size += len(self._parts[-1])
        return len(self._parts[-1])

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """Nothing to let go of."""

    def taken(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _told(kind: FieldKind, column: Sequence[Any]) -> Sequence[Any]:
    if kind != "json":
        return column
    return [None if value is None else _encoder.encode(value).decode() for value in column]


def _type_of(kind: FieldKind) -> pyarrow.DataType:
    import pyarrow

    types = {
        "integer": pyarrow.int64(),
        "real": pyarrow.float64(),
        "boolean": pyarrow.bool_(),
        "counts": pyarrow.list_(pyarrow.int64()),
    }
    return types.get(kind, pyarrow.string())
