"""JSON that a trainer wrote, made strict; and JSON as the database holds it."""

from __future__ import annotations

import json
import math
from typing import Any


def dumps(value: object) -> str:
    """Strict JSON text that can be searched as it is read: letters stay letters."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def plain(value: object) -> Any:  # noqa: ANN401 - JSON is anything
    """``value`` with every number that is not finite as a text, "nan" or "inf"."""
    return json.loads(json.dumps(value), parse_constant=_plain_float)


def json_object(text: str) -> dict[str, Any]:
    """The JSON object in ``text`` as strict JSON: NaN becomes "nan", infinity "inf", a lone surrogate "?".

    Raises:
        ValueError: if it holds something else.
    """
    try:
        found = json.loads(text, parse_constant=_plain_float, parse_float=_plain_float)
        plain = dumps(found).encode("utf-8", "replace")
    except RecursionError as error:
        raise ValueError("expected JSON of a sensible depth") from error
    if not plain.startswith(b"{"):
        raise ValueError(f"expected a JSON object, got {type(found).__name__}")
    return dict(json.loads(plain))


def _plain_float(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else str(value)
