"""What each of several ranks reports of the parameters, and so how much of its records the merge of all ranks takes.

The sums of sharded parameters are over all ranks. Of a replicated one a single rank reports; what another one sends of
it all the same is kept for a look at that rank alone. Modules have no parts: each rank's outputs are its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from scalescope.wire import Layout, Placement

from scalescope_server.store.errors import BadRecord

# The position of a placement is the code that ``layout.parts`` stores. Only append.
_PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
_STORED = np.dtype([("placement", "u1"), ("leads", "u1"), ("elements", "<i8")])

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """What the merge takes of the rows of one rank: whether it ``reports`` each, and whether it ``leads``, bool [rows].

    ``alone``: no other rank reports of what it does.
    """

    reports: Mask
    leads: Mask
    alone: bool

    def of(self, rows: NDArray[np.int64]) -> Share:
        """The share of some of its rows."""
        return Share(self.reports[rows], self.leads[rows], self.alone)


def packed_parts(record: Layout) -> bytes:
    """The parts of a layout as they are stored.

    Raises:
        BadRecord: unless there is one for each parameter, of no more elements than it has; or none at all.
    """
    parts, parameters = record.parts, record.parameters
    if parts and len(parts) != len(parameters):
        message = f"expected a part for each of the {len(parameters)} parameters, or none, got {len(parts)}"
        raise BadRecord("layout", record.sequence, message)
    for part, parameter in zip(parts, parameters, strict=False):
        if part.elements > parameter.numel:
            message = f"expected at most {parameter.numel} elements of {parameter.name!r}, got {part.elements}"
            raise BadRecord("layout", record.sequence, message)
    rows = [(_PLACEMENTS.index(part.placement), part.leads, part.elements) for part in parts]
    return np.array(rows, _STORED).tobytes()


def share_of(stored: bytes, rows: int, rank: int) -> Share:
    """The share of so many parameters that the stored parts of ``rank`` amount to.

    Without parts a rank has said nothing of the others. All of them report the same then, and the first is heard.
    """
    if not stored:
        return whole(rows) if rank == 0 else nothing(rows)
    parts = np.frombuffer(stored, _STORED)
    leads = parts["leads"].astype(np.bool_)
    reports = (parts["elements"] > 0) | leads
    of_all = np.flatnonzero(reports & (parts["placement"] != _PLACEMENTS.index("replicated")))
    return Share(reports, leads, alone=not of_all.size)


def whole(rows: int) -> Share:
    """Everything, as a rank without others reports it."""
    return Share(np.ones(rows, np.bool_), np.ones(rows, np.bool_), alone=True)


def each(rows: int) -> Share:
    """Rows of which every rank has its own."""
    return Share(np.ones(rows, np.bool_), np.ones(rows, np.bool_), alone=False)


def nothing(rows: int) -> Share:
    """Rows that are left to other ranks."""
    return Share(np.zeros(rows, np.bool_), np.zeros(rows, np.bool_), alone=True)
