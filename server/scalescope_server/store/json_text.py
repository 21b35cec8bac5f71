"""JSON that a trainer wrote, made strict; and JSON as the database holds it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

# Deeper than any settings; the JSON readers of all who ask later are sure to follow it.
MAX_DEPTH = 64


def dumps(value: object) -> str:
    """Strict JSON text that can be searched as it is read: letters stay letters."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def plain(value: object) -> Any:  # noqa: ANN401 - JSON is anything
    """``value`` with every number that is not finite as a text, "nan" or "inf"."""
    return json.loads(json.dumps(value), parse_constant=_plain_float)


def json_object(text: str) -> dict[str, Any]:
    """The JSON object in ``text`` as strict JSON: NaN becomes "nan", infinity "inf", a lone surrogate "?".

    Raises:
        ValueError: if it holds something else, or goes deeper than ``MAX_DEPTH``.
    """
    try:
        found = json.loads(text, parse_constant=_plain_float, parse_float=_plain_float)
    except RecursionError as error:
        raise ValueError(f"expected JSON of at most {MAX_DEPTH} levels") from error
    if _is_deeper(found, MAX_DEPTH):
        raise ValueError(f"expected JSON of at most {MAX_DEPTH} levels")
    plain = dumps(found).encode("utf-8", "replace")
    if not plain.startswith(b"{"):
        raise ValueError(f"expected a JSON object, got {type(found).__name__}")
    return dict(json.loads(plain))


def _is_deeper(value: object, levels: int) -> bool:
    """Whether a list or object lies inside as many as ``levels`` others. Does not recurse."""
    inside = [value]
    for _ in range(levels):
        inside = [child for item in inside for child in _children(item)]
    return any(isinstance(item, dict | list) for item in inside)


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _plain_float(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else str(value)
