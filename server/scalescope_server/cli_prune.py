"""``scalescope prune``: remove what is old of every run but what is around events, and say what that frees."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

from scalescope.errors import UsageError
from scalescope.progress import ProgressLine

from scalescope_server.ages import parse_age
from scalescope_server.errors import SettingError
from scalescope_server.lock import locked
from scalescope_server.store.engine import Store
from scalescope_server.store.errors import NotFound
from scalescope_server.store.pruning import MARGIN, Piece, Removed
from scalescope_server.store.pruning_reader import Prunable
from scalescope_server.store.space import compact
from scalescope_server.upkeep import rest_after

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - argparse names it no other way

DEFAULT_AGE = "30d"

Result = TypeVar("Result")
Write = Callable[[Callable[[], Future[Piece]]], Piece]


def add_prune(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command, all but where the database is."""
    parser = subparsers.add_parser(
        "prune",
        help="remove what is old but for what is around events",
        description="Of updates that are old keep exactly only those around skips, changes of the scale and findings "
        f"({MARGIN} before and after each). Roll-ups, events, facts and probes stay for ever. Safe to repeat and to "
        "interrupt, and beside a server that runs.",
    )
    parser.add_argument("--older-than", default=DEFAULT_AGE, metavar="AGE", help="default: %(default)s")
    parser.add_argument("--dry-run", action="store_true", help="say what it would remove, and remove nothing")
    parser.add_argument(
        "--compact", action="store_true", help="give what is free in a SQLite file back, while no server uses it"
    )
    return parser


@dataclass(frozen=True, slots=True)
class Pruning:
    """What was asked for on the command line, ``now`` in seconds since the epoch by our clock."""

    now: float
    older_than_s: float
    dry_run: bool


def pruning_of(arguments: argparse.Namespace, now: float) -> Pruning:
    """Raises :class:`UsageError`."""
    try:
        return Pruning(now, parse_age(arguments.older_than, field="older_than"), arguments.dry_run)
    except SettingError as error:
        raise UsageError(f"--older-than: {error}") from error


def prune(
    store: Store,
    pruning: Pruning,
    out: TextIO,
    clock: Callable[[], float] = time.monotonic,
    rest: Callable[[float], None] = time.sleep,
) -> None:
    """Go through all runs from their beginnings; lines go to ``out``. A server beside it writes during the rests."""

    def write(submit: Callable[[], Future[Result]]) -> Result:
        return _rested(rest, submit)

    if not pruning.dry_run:
        while write(store.writer.erase):
            pass
    before = store.reader.before(pruning.now, pruning.older_than_s)
    runs = store.reader.prunable(before)
    line = ProgressLine(out, sum(run.length for run in runs), "updates", clock)
    removed, touched, done = Removed(), 0, 0
    for run in runs:
        piece_at = partial(_piece, store, run, before, None if pruning.dry_run else write)
        of_run = _prune_run(piece_at, partial(_show, line, done))
        removed, touched, done = removed.plus(of_run), touched + (of_run != Removed()), done + run.length
    line.finish(_told(removed, touched, pruning))
    print(_space_text(store), file=out)


def compactable(file: Path | None) -> Path:
    """The ``file`` of a database. Raises :class:`UsageError` for Postgres."""
    if file is None:
        raise UsageError("--compact: expected a SQLite file; on Postgres, VACUUM FULL is its owner's to run")
    return file


def compact_file(store: Store, file: Path, out: TextIO) -> None:
    """Close ``store`` and give what is free in its file back."""
    store.close()
    before = file.stat().st_size
    with locked(file):
        compact(file)
    print(f"{file}: {_size(before)} before, {_size(file.stat().st_size)} now", file=out)


def _prune_run(piece_at: Callable[[int], Piece], show: Callable[[int], None]) -> Removed:
    removed, following = Removed(), 0
    while True:
        show(following)
        try:
            piece = piece_at(following)
        except NotFound:
            return removed  # Deleted meanwhile.
        removed = removed.plus(piece.removed)
        if piece.following is None:
            return removed
        following = piece.following


def _show(line: ProgressLine, before: int, done: int) -> None:
    line.show(before + done)


def _rested(rest: Callable[[float], None], submit: Callable[[], Future[Result]]) -> Result:
    began = time.monotonic()
    result = submit().result()
    rest(rest_after(time.monotonic() - began))
    return result


def _piece(store: Store, run: Prunable, before: float, write: Write | None, start: int) -> Piece:
    if write is None:
        return store.reader.count_prunable(run.run, start, before)
    return write(partial(store.writer.prune, run.run, start, before))


def _told(removed: Removed, runs: int, pruning: Pruning) -> str:
    parts = ("updates", "values", "samples", "tallies")
    counts = ", ".join(f"{getattr(removed, part):,} {part}" for part in parts)
    verb = "Would remove" if pruning.dry_run else "Removed"
    return f"{verb} {counts} of {runs} {'run' if runs == 1 else 'runs'}: about {_size(removed.size)}."


def _space_text(store: Store) -> str:
    space = store.reader.space()
    if space.free is None:
        return f"The database takes {_size(space.taken)}; autovacuum makes what is removed free for what comes next."
    return (
        f"The database takes {_size(space.taken)}, {_size(space.free)} of it free for what comes next "
        "(--compact gives that back while no server uses the file)."
    )


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
