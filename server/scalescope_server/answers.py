"""The answers' shapes: plain structs, encoded as JSON that holds no NaN and no infinity."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec
from fastapi import Response

from scalescope_server.errors import ServerError

Single = float | Literal["inf", "-inf", "nan"] | None
JSON = "application/json"

_encoder = msgspec.json.Encoder()


class ErrorBody(msgspec.Struct, frozen=True):
    """What went wrong: a code for programs, a sentence for people, and the input to blame, if one is."""

    code: str
    message: str
    field: str | None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Every answer with a status of 400 or more."""

    error: ErrorBody


def json_answer(content: object, status: int = 200) -> Response:
    """``content`` as JSON. Floats that are not finite become null (msgspec's rule)."""
    return Response(_encoder.encode(content), status, {"cache-control": "no-store"}, JSON)


def error_answer(error: ServerError) -> Response:
    body = ErrorAnswer(ErrorBody(error.code, error.message, error.field))
    return json_answer(body, error.status)


def single(value: float | None) -> Any:
    """A single number as answers hold it: text where it is not finite."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
