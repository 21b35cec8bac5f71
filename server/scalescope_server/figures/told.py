"""What the loop of a run was heard to do, for the overview: windows in words, what was unusual, the set-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from scalescope_server.figures.origins import origins
from scalescope_server.figures.unusual import Unusual, told_apart
from scalescope_server.figures.windows import FactLine, Scheduler, length, micro_batches_of, ordinary, scheduler_of
from scalescope_server.store.records import EventRow, RunId

if TYPE_CHECKING:
    from scalescope_server.store.reader import Reader

# In an ordinary loop they are a handful. Where every window differs, the last ones are told.
MOST_FACTS = 5000
MOST_ORIGINS = 500


class ToldAnswer(Struct, frozen=True, kw_only=True):
    """``updates``: how many the facts are of; ``since``: the first they were looked at from, if not from the start.

    ``micro_batches``: backward passes of all of them, null where not all are known. ``setup`` as in ``/facts``.
    """

    updates: int
    since: int | None
    micro_batches: int | None
    scheduler: Scheduler | None
    ordinary: list[FactLine]
    unusual: list[Unusual]
    setup: dict[str, object]


def draw_told(reader: Reader, run: RunId) -> ToldAnswer:
    """What is known of the run's windows. Raises NotFound for no such run."""
    detail = reader.run(run)
    since, items, setup = reader.last_facts(run, MOST_FACTS)
    wrong, usual = told_apart(items)
    return ToldAnswer(
        updates=sum(map(length, items)),
        since=since,
        micro_batches=micro_batches_of(items) if since is None else None,
        scheduler=scheduler_of(items),
        ordinary=ordinary(items, detail, setup, usual),
        unusual=sorted([*wrong, *origins(_origins(reader, run))], key=lambda each: _RANKS[each.severity]),
        setup=setup,
    )


_RANKS = {"critical": 0, "warning": 1, "info": 2}


def _origins(reader: Reader, run: RunId) -> list[EventRow]:
    return reader.events(run, merged=True, kind="nonfinite", limit=MOST_ORIGINS)[0]
