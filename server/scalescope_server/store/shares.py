"""What the merge of all ranks takes of stored records, by the run's parameters or modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, bindparam, select

from scalescope_server.store import tables
from scalescope_server.store.parts import Mask, Share, each, nothing, share_of
from scalescope_server.store.views import View

_OF_MODULES = ("module", "forward", "grad_output")


@dataclass(frozen=True, slots=True)
class Shares:
    """The share of each rank of each segment, by the position of its rows; of modules each rank has its own."""

    of_subject: Literal["parameter", "module"]
    of_caller: dict[tuple[int, int], Share]

    def taken(self, segment: int, rank: int, chosen: NDArray[np.int64]) -> tuple[Mask, Mask]:
        """(whether the rank reports, whether it leads) at each of the ``chosen`` positions, bool."""
        share = each(len(chosen)) if self.of_subject == "module" else self._at(segment, rank, chosen)
        return share.reports, share.leads

    def _at(self, segment: int, rank: int, chosen: NDArray[np.int64]) -> Share:
        share = self.of_caller.get((segment, rank), nothing(0))
        known = chosen < len(share.reports)
        reports, leads = np.zeros(len(chosen), np.bool_), np.zeros(len(chosen), np.bool_)
        reports[known], leads[known] = share.reports[chosen[known]], share.leads[chosen[known]]
        return Share(reports, leads, share.alone)


def read_shares(connection: Connection, view: View) -> Shares:
    """The shares of all ranks of the run."""
    if view.kind in _OF_MODULES:
        return Shares("module", {})
    found = connection.execute(_LAYOUTS, {"of_run": view.run})
    placed = {(row.segment, row.rank): _placed(row.positions, row.parts, row.rank) for row in found}
    return Shares("parameter", placed)


def _placed(positions: bytes, parts: bytes, rank: int) -> Share:
    """The share of a caller by position, where its layout has it by index."""
    places = np.frombuffer(positions, "<i4").astype(np.int64)
    share = share_of(parts, len(places), rank)
    rows = int(places.max(initial=-1)) + 1
    reports, leads = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
    reports[places], leads[places] = share.reports, share.leads
    return Share(reports, leads, share.alone)


_layout = tables.layout.c
_LAYOUTS = (
    select(_layout.segment, _layout.rank, _layout.positions, _layout.parts)
    .join(tables.segment, tables.segment.c.key == _layout.segment)
    .where(tables.segment.c.run == bindparam("of_run"))
)
