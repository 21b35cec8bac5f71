"""The words between the store and the judge: what it reads of a run, and what one pass of it commits."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from scalescope_server.store.records import FindingRow, RunId


class StepRow(Struct, frozen=True):
    """One attempted update as the judge reads it; ``culprit`` is the parameter a skip's event named.

    ``skipped``: the scaler skipped it, for what overflowed. ``left_out``: it found nothing, and the loop never stepped
    an optimizer that it had unscaled. ``recreated``: another scaler than so far took part, made anew in its place.
    ``broken``: its loss was not finite, as far as it was logged.
    """

    step: int
    segment: int
    scale: float | None
    skipped: bool
    growth_tracker: int | None
    culprit: str | None
    recreated: bool = False
    left_out: bool = False
    broken: bool = False


class Setting(Struct, frozen=True):
    """What holds of a run beside its updates, as far as it was told.

    ``elements``: compute format -> elements of the parameters whose gradients are computed in it, "" where that is not
    known. ``autocast``: the formats of the autocasts in force. ``zero``: whether all gradients of the last sample were
    zero. ``ended``: its trainer has said so.
    """

    elements: dict[str, int] = {}
    autocast: tuple[str, ...] = ()
    zero: bool = False
    ended: bool = False


class Position(NamedTuple):
    """Where the judge stands: the ordinal of a segment, and the last of its steps that is judged."""

    segment: int
    step: int


BEFORE_ALL = Position(0, -1)


class Judged(Struct, frozen=True):
    """What one pass of the judge commits at once. ``updates``: how many are judged, whose outcome ``state`` is.

    ``fence``: that of the lease under which they were judged (see ``leases``), None where nobody else could.
    """

    run: RunId
    updates: int
    state: bytes
    findings: tuple[FindingRow, ...]
    fence: int | None = None
