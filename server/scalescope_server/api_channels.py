"""The HTTP API about channels: where alerts are told. What is secret of them goes in and never comes out.

A command is no channel that can be set up here: it is named in the server's settings file alone.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Depends, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from scalescope_server.answers import json_answer
from scalescope_server.channel_answers import ChannelLine, ChannelsAnswer, TrialAnswer
from scalescope_server.delivery.channels import (
    NAME,
    BadChannelError,
    Config,
    Service,
    Webhook,
    check_channel,
    config_of,
)
from scalescope_server.delivery.messages import message_of
from scalescope_server.delivery.notice import Notice
from scalescope_server.errors import ConflictError, InvalidError, NotFoundError
from scalescope_server.openapi import answers
from scalescope_server.rooms import Rooms, RoomsHere
from scalescope_server.store.channels import ChannelRow, Traffic

NOTHING_YET = Traffic()

router = APIRouter(prefix="/api/channels", tags=["channels"])

Text = Annotated[str, Field(max_length=4096)]


class WebhookGiven(BaseModel):
    """A signed webhook; ``secret``: "whsec_" and 24 to 64 random bytes in base64."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    kind: Literal["webhook"]
    url: Text
    secret: Text


class ServiceGiven(BaseModel):
    """A service of apprise by its address."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    kind: Literal["apprise"]
    url: Text


class ChannelGiven(BaseModel):
    """A channel to be set up."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, Field(max_length=64)]
    config: Annotated[WebhookGiven | ServiceGiven, Field(discriminator="kind")]


class ChannelPatch(BaseModel):
    """Whether a channel is told anything."""

    model_config = ConfigDict(extra="forbid")

    enabled: bool


def name_of(name: Annotated[str, Path(max_length=64)]) -> str:
    """The channel's name. What can be none is not looked for."""
    if NAME.fullmatch(name) is None:
        raise _none(name)
    return name


NameHere = Annotated[str, Depends(name_of)]


@router.get("", responses=answers(ChannelsAnswer, "All channels by name."))
async def list_channels(rooms: RoomsHere) -> Response:
    """All channels, those of the settings file among them, and what became of what they were told."""
    lines = await _lines(rooms)
    return json_answer(ChannelsAnswer(sorted(lines.values(), key=lambda line: line.name), None))


@router.post("", status_code=201, responses={201: answers(ChannelLine, "The channel as it is shown.")[200]})
async def add_channel(rooms: RoomsHere, given: ChannelGiven) -> Response:
    """Set up a channel. Its address and secret are kept and never shown again."""
    config = _config(given)
    try:
        check_channel(given.name, config, rooms.settings.delivery.commands)
    except BadChannelError as error:
        raise InvalidError(str(error), field=error.field) from None
    kept = msgspec.to_builtins(config)
    kind = kept.pop("kind")
    row = ChannelRow(name=given.name, kind=kind, config=kept, enabled=True, created_at=rooms.clock())
    if not await asyncio.wrap_future(rooms.store.writer.add_channel(row)):
        raise ConflictError(f"there is a channel called {given.name!r}, or there are too many", field="name")
    return json_answer(_line(row, NOTHING_YET), 201)


@router.patch("/{name}", responses=answers(ChannelLine, "The channel as it is now."))
async def patch_channel(name: NameHere, rooms: RoomsHere, patch: ChannelPatch) -> Response:
    """Switch a channel off, or on again. What was to be told while it was off is given up."""
    if not await asyncio.wrap_future(rooms.store.writer.switch_channel(name, enabled=patch.enabled)):
        raise _none(name)
    return json_answer((await _lines(rooms))[name])


@router.delete("/{name}", status_code=204)
async def delete_channel(name: NameHere, rooms: RoomsHere) -> Response:
    """Delete a channel. What waits to be told by it is given up."""
    if not await asyncio.wrap_future(rooms.store.writer.delete_channel(name)):
        raise _none(name)
    return Response(status_code=204)


@router.post("/{name}/test", responses=answers(TrialAnswer, "Whether it has arrived."))
async def try_channel(name: NameHere, rooms: RoomsHere) -> Response:
    """Send a test now, once. The answer comes when it has arrived, or failed to."""
    rows = {row.name: row for row in await rooms.reading.read(rooms.store.reader.channels)}
    if name not in rows and name not in rooms.settings.delivery.commands:
        raise _none(name)
    loop = asyncio.get_running_loop()
    notice = Notice(
        rule="",
        severity="info",
        run="",
        run_name="",
        project="",
        happened="test",
        firing=0,
        step=None,
        at=rooms.clock(),
    )
    key = secrets.token_hex(16)
    message = message_of(key, [notice], [key], rooms.settings.public_url)
    began = loop.time()
    outcome = await rooms.sender.send(name, rows, message)
    return json_answer(TrialAnswer(outcome.error is None, outcome.error, loop.time() - began))


async def _lines(rooms: Rooms) -> dict[str, ChannelLine]:
    rows = await rooms.reading.read(rooms.store.reader.channels)
    traffic = await rooms.reading.read(rooms.store.reader.traffic)
    commands = [
        ChannelRow(name=name, kind="command", config={}, enabled=True, created_at=0.0)
        for name in rooms.settings.delivery.commands
    ]
    # A command is called before a channel that has its name.
    return {row.name: _line(row, traffic.get(row.name, NOTHING_YET)) for row in [*rows, *commands]}


def _line(row: ChannelRow, traffic: Traffic) -> ChannelLine:
    return ChannelLine(
        name=row.name,
        kind=row.kind,
        target=_target(row),
        enabled=row.enabled,
        waiting=traffic.waiting,
        delivered=traffic.delivered,
        failed=traffic.failed,
        error=traffic.error,
        tried_at=traffic.tried_at,
        arrived=traffic.arrived,
    )


def _target(row: ChannelRow) -> str:
    if row.kind == "command":
        return "a command of the settings file"
    try:
        return config_of(row.kind, row.config).shown
    except BadChannelError as error:
        return str(error)


def _config(given: ChannelGiven) -> Config:
    if isinstance(given.config, WebhookGiven):
        return Webhook(given.config.url, given.config.secret)
    return Service(given.config.url)


def _none(name: str) -> NotFoundError:
    return NotFoundError(f"there is no channel {name[:64]!r}", field="name")
