"""What the built-in rules said of a training, once a server has judged all of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path

import pytest
from scalescope.link import Link
from scalescope.scope import Scope
from scalescope_server.store.alert_records import AlertHistory
from scalescope_server.store.errors import NotFound

from tests.serving import Served, serving
from tests.small_link import until

# On a busy machine nothing is lost, it only takes longer.
PATIENCE_S = 120.0


@contextmanager
def judging(folder: Path) -> Iterator[Served]:
    """A server for trainings of this process, which wait at their ends for as long as it takes."""
    with pytest.MonkeyPatch.context() as patch, serving(str(folder / "scalescope.db")) as served:
        patch.setenv("SCALESCOPE_SPOOL", str(folder / "spool"))
        patch.setattr(Link, "close", partialmethod(Link.close, timeout_s=PATIENCE_S))
        yield served


def reach(scope: Scope) -> None:
    """Wait until the server was reached: for one that never was, a training waits a second at its end."""
    until(lambda: scope.stats.sent > 0, PATIENCE_S)


def updates_judged(served: Served, run: str) -> int:
    """How many; 0 as long as nothing of ``run`` is stored."""
    try:
        return served.store.reader.judgement(run)[0]
    except NotFound:
        return 0


def firings(served: Served, run: str) -> dict[str, str | int | None]:
    """The rules that have fired on ``run``, over or not, without their ``pack/``; the last culprit of each."""
    found: dict[str, str | int | None] = {}
    for each in _alerts(served, run):
        found |= fired_in(each)
    return found


def fired_in(history: AlertHistory) -> dict[str, str | int | None]:
    """The rule and its last culprit where it has fired, over or not."""
    # The newest first.
    fired = [moved.culprit for moved in history.transitions if moved.after == "firing"]
    return {_name(history): fired[0]} if fired else {}


def unknown(served: Served, run: str) -> set[str]:
    """The rules that at the end of ``run`` had no data to go by, or failed."""
    return {_name(each) for each in _alerts(served, run) if each.alert.state in {"no data", "error"}}


def _name(history: AlertHistory) -> str:
    return history.alert.name.removeprefix("pack/")


def _alerts(served: Served, run: str) -> Iterator[AlertHistory]:
    reader = served.store.reader
    until(lambda: run not in reader.unjudged(), PATIENCE_S)
    cursor: str | None = None
    while True:
        found, cursor = reader.alerts(limit=200, cursor=cursor)
        yield from (each for each in found if each.alert.run == run)
        if cursor is None:
            return
