"""What the rows of a measure are: parameters or modules, each with the format its values are held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from scalescope.numerics.formats import BF16, FP16, FloatFormat, known_format
from scalescope.numerics.measures import MeasureName

from scalescope_server.store.records import ModuleRow, ParameterRow
from scalescope_server.tallies import PLANS, TallyMeasure

LayerMeasure = Literal[MeasureName, TallyMeasure]

SAMPLED: dict[LayerMeasure, MeasureName] = {name: name for name in get_args(MeasureName)}
TALLIED: dict[LayerMeasure, TallyMeasure] = {name: name for name in PLANS}


class LayerRow(NamedTuple):
    """A parameter or module as a row: ``format`` is the one its values are held against, None if not known."""

    name: str
    position: int
    format: FloatFormat | None


def computed_rows(parameters: Sequence[ParameterRow]) -> list[LayerRow]:
    """Parameters with the format their gradients are computed in."""
    return [LayerRow(p.name, p.index, known_format(p.compute_format)) for p in parameters]


def stored_rows(parameters: Sequence[ParameterRow]) -> list[LayerRow]:
    """Parameters with the format they are stored in if it is a narrow one, else bf16: a copy would be in it."""
    return [LayerRow(p.name, p.index, _narrow(known_format(p.dtype))) for p in parameters]


def module_rows(
    modules: Sequence[ModuleRow], parameters: Sequence[ParameterRow], setup: Mapping[str, object]
) -> list[LayerRow]:
    """The modules with the format of their outputs: as the set-up tells it, else that of their own parameters."""
    told = setup.get("modules")
    formats = {name: known_format(str(dtype)) for name, dtype in told.items()} if isinstance(told, dict) else {}
    own = {p.module: known_format(p.compute_format) for p in parameters if p.compute_format}
    return [LayerRow(m.name, m.index, formats.get(m.name) or own.get(m.name)) for m in modules]


def _narrow(stored: FloatFormat | None) -> FloatFormat:
    return stored if stored in (FP16, BF16) else BF16
