"""What an extract is made of: tables, their fields, and pages of rows held as columns.

The same tables stand in every format that a run is written in, so a column has one name and one meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from scalescope.wire import EventKind, SampleKind
from sqlalchemy import Connection

TableName = Literal[
    "run",
    "parameters",
    "modules",
    "segments",
    "ranks",
    "updates",
    "merged",
    "events",
    "windows",
    "setups",
    "samples",
    "tallies",
    "probes",
    "findings",
]
# ``json``: any JSON value. ``counts``: a list of whole numbers.
FieldKind = Literal["text", "integer", "real", "boolean", "json", "counts"]


class Field(NamedTuple):
    """A column: its name, and of which kind its values are."""

    name: str
    kind: FieldKind


# Where a table is read on: opaque outside of the table. Each part rises.
Position = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Rows of one table: a list for each of its fields, all as long. None: no value, which NaN is not.

    ``done``: how much of the table is read with it, from 0 to 1, about.
    """

    columns: Sequence[Sequence[Any]]
    following: Position | None
    done: float = 1.0

    @property
    def rows(self) -> int:
        return len(self.columns[0]) if self.columns else 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """What of a run is extracted; None: all of it.

    Attributes:
        start, stop: updates, the second exclusive.
        rank: of this rank alone; what all ranks told together is left out.
        series: of updates, these alone.
        names: of samples, tallies and probes the rows of these parameters and modules alone.
        kinds: of events and samples those of these kinds alone.
    """

    start: int | None = None
    stop: int | None = None
    rank: int | None = None
    series: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    kinds: tuple[EventKind | SampleKind, ...] | None = None


EVERYTHING = Chosen()


class Table(NamedTuple):
    """``read`` gives the page at a position, None at the beginning."""

    fields: tuple[Field, ...]
    read: Callable[[Connection, Position | None], Page]


def fields(kind: FieldKind, *names: str) -> tuple[Field, ...]:
    return tuple(Field(name, kind) for name in names)


def columns_of_rows(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    """Rows of ``width`` values as columns."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
