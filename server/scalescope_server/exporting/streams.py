"""A run as a stream of bytes, made as they are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from scalescope_server.errors import InvalidError
from scalescope_server.exporting.encoding import ENCODINGS, Format
from scalescope_server.exporting.parquet import check_parquet
from scalescope_server.store.extract.reading import TABLES, Extract
from scalescope_server.store.extract.tables import TableName

MEDIA_TYPES: dict[Format, str] = {
    "json": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
# What a file that holds a single table is of, unless something else was asked for.
FIRST: TableName = "updates"


def checked_tables(format_: Format, asked: Sequence[TableName]) -> tuple[TableName, ...]:
    """The tables of one file; of none asked for all in JSON lines, and the updates in what holds one alone.

    Raises:
        InvalidError: if the format holds one table and several were asked for, or it lacks a package here.
    """
    if format_ == "parquet":
        check_parquet()
    if format_ == "json":
        return tuple(name for name in TABLES if name in asked) or TABLES
    if len(set(asked)) > 1:
        raise InvalidError(f"a {format_} file holds one table: ask for each on its own, or for json", field="what")
    return tuple(asked[:1]) or (FIRST,)


def stream(
    extract: Extract,
    format_: Format,
    asked: Sequence[TableName],
    on_page: Callable[[float], None] = lambda _: None,
) -> Iterator[bytes]:
    """The file, piece by piece; each reads one page, and some are empty. ``on_page``: told how many tables are done."""
    for place, name in enumerate(asked):
        encoding = ENCODINGS[format_](name, extract.fields(name))
        yield encoding.head()
        for page in extract.pages(name):
            on_page(place + page.done)
            yield encoding.page(page)
        yield encoding.tail()
