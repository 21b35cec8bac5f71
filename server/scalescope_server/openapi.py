"""The description of the API at /openapi.json: FastAPI's own, with the answers' shapes from their structs."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from msgspec import Struct

from scalescope_server import alert_answers, channel_answers, measured_answers, rule_answers
from scalescope_server import answers as plain_answers
from scalescope_server.answers import ErrorAnswer

_SCHEMAS = "#/components/schemas/{name}"

_SHAPES = (
    *plain_answers.SHAPES,
    *measured_answers.SHAPES,
    *channel_answers.SHAPES,
    *rule_answers.SHAPES,
    *alert_answers.SHAPES,
)

Responses = dict[int | str, dict[str, Any]]


def answers(shape: type[Struct], text: str) -> Responses:
    """A route's ``responses=``: what it answers when it succeeds."""
    return {200: _content(shape, text)}


def errors() -> Responses:
    """The application's ``responses=``, for every route."""
    error = _content(ErrorAnswer, "What went wrong.")
    return {422: error, "default": error}


def describe(app: FastAPI) -> None:
    """Let ``app`` answer /openapi.json with the shapes of all answers in it."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title=app.title, version=app.version, routes=app.routes, description=app.description)
            _, shapes = msgspec.json.schema_components(_SHAPES, schema_hook=_schema_of, ref_template=_SCHEMAS)
            found.setdefault("components", {}).setdefault("schemas", {}).update(shapes)
            app.openapi_schema = found
        return app.openapi_schema

    # FastAPI documents this assignment as the way to extend the description.
    setattr(app, "openapi", openapi)  # noqa: B010 - mypy forbids to assign a method


def _content(shape: type[Struct], text: str) -> dict[str, Any]:
    schema = {"$ref": _SCHEMAS.format(name=shape.__name__)}
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _schema_of(kind: type) -> dict[str, Any]:
    """What msgspec does not describe by itself: any JSON value, as in a trainer's config."""
    if kind is object:
        return {"description": "Any JSON value."}
    raise NotImplementedError(kind)
