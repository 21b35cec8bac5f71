"""What callers name in an address: a run, and a part of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Query

from scalescope_server.errors import NotFoundError
from scalescope_server.store.records import RunId

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Span:
    """The updates ``start`` (inclusive) to ``stop`` (exclusive); None is open."""

    start: int | None
    stop: int | None


def run_of(run: str) -> RunId:
    """The run's id. What can be none is not looked for.

    Raises:
        NotFoundError: for a text that no run is called by.
    """
    if not _RUN_ID.fullmatch(run):
        raise NotFoundError(f"there is no run {run[:64]!r}", field="run")
    return RunId(run)


def span_of(
    start: Annotated[int | None, Query(alias="from", ge=0, lt=2**53)] = None,
    stop: Annotated[int | None, Query(alias="to", ge=0, lt=2**53)] = None,
) -> Span:
    return Span(start, stop)


def clamped(wanted: int, most: int) -> int:
    """``wanted`` within 1 to ``most``: how much of something is never refused."""
    return min(max(wanted, 1), most)


RunHere = Annotated[RunId, Depends(run_of)]
SpanHere = Annotated[Span, Depends(span_of)]
Cursor = Annotated[str | None, Query(max_length=512)]
Rank = Annotated[int, Query(ge=0, lt=2**31)]
# Left out: all ranks together, as far as they tell of one whole.
AnyRank = Annotated[int | None, Query(ge=0, lt=2**31)]
