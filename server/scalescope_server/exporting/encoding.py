"""The ways to write a table: each takes pages as they come and gives bytes, and holds no more than a few of them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from scalescope_server.answers import single
from scalescope_server.exporting.parquet import ParquetEncoding
from scalescope_server.store.extract.tables import Field, FieldKind, Page, TableName

Format = Literal["json", "csv", "parquet"]

_encoder = msgspec.json.Encoder()


class Encoding(Protocol):
    """One table on its way into a file: ``head`` first, then the pages in their order, then ``tail``."""

    def head(self) -> bytes: ...

    def page(self, page: Page) -> bytes: ...

    def tail(self) -> bytes: ...


class LinesEncoding:
    """JSON lines, an object for each row: ``table`` says of which, and a value that is not there is left out.

    Numbers that are not finite are the texts "nan", "inf" and "-inf".
    """

    def __init__(self, name: TableName, fields: Sequence[Field]) -> None:
        self._name = name
        self._fields = fields

    def head(self) -> bytes:
        return b""

    def page(self, page: Page) -> bytes:
        names = [field.name for field in self._fields]
        columns = [
            _plain(column) if field.kind == "real" else column
            for field, column in zip(self._fields, page.columns, strict=True)
        ]
        return _encoder.encode_lines([self._line(names, row) for row in zip(*columns, strict=True)])

    def tail(self) -> bytes:
        return b""

    def _line(self, names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
        told = {name: value for name, value in zip(names, row, strict=True) if value is not None}
        return {"table": self._name} | told


class CommasEncoding:
    """CSV with a line of names: nothing between two commas is a value that is not there, ``nan`` is one.

    JSON values and lists are JSON text.
    """

    def __init__(self, _: TableName, fields: Sequence[Field]) -> None:
        self._fields = fields

    def head(self) -> bytes:
        return _commas([[field.name for field in self._fields]])

    def page(self, page: Page) -> bytes:
        columns = [
            [_TEXTS.get(field.kind, str)(value) if value is not None else "" for value in column]
            for field, column in zip(self._fields, page.columns, strict=True)
        ]
        return _commas(list(zip(*columns, strict=True)))

    def tail(self) -> bytes:
        return b""


ENCODINGS: dict[Format, Callable[[TableName, Sequence[Field]], Encoding]] = {
    "json": LinesEncoding,
    "csv": CommasEncoding,
    "parquet": ParquetEncoding,
}


def _plain(column: Sequence[float | None]) -> Sequence[float | str | None]:
    finite = all(value is None or math.isfinite(value) for value in column)
    return column if finite else [single(value) for value in column]


def _commas(rows: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _json_text(value: object) -> str:
    return _encoder.encode(value).decode()


def _boolean(value: bool) -> str:
    return "true" if value else "false"


_TEXTS: dict[FieldKind, Callable[[Any], str]] = {
    "json": _json_text,
    "counts": _json_text,
    "boolean": _boolean,
    "real": repr,
}
