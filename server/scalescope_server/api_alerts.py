"""The HTTP API about alerts: what rules say of runs, and what people ask of it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from scalescope_server.alert_answers import (
    AlertCountsAnswer,
    AlertLine,
    AlertsAnswer,
    DeliveriesAnswer,
    SilencesAnswer,
    TransitionsAnswer,
    alert_line,
    transition_line,
)
from scalescope_server.answers import json_answer
from scalescope_server.errors import InvalidError, NotFoundError
from scalescope_server.inputs import Cursor, clamped
from scalescope_server.openapi import answers
from scalescope_server.rooms import Rooms, RoomsHere
from scalescope_server.store.alert_past import MAX_PAST
from scalescope_server.store.alert_records import SilenceRow
from scalescope_server.store.alerts import MAX_ALERTS, SHOWN

router = APIRouter(prefix="/api", tags=["alerts"])

State = Literal["quiet", "pending", "firing", "recovering", "no data", "error"]
Id = Annotated[int, Path(ge=1, lt=2**63)]
At = Annotated[float, Field(ge=0, lt=2**40, allow_inf_nan=False)]


class MuteGiven(BaseModel):
    """``until``: seconds since the epoch; null: tell of it again."""

    model_config = ConfigDict(extra="forbid")

    until: At | None


class SilenceGiven(BaseModel):
    """Nothing is told of runs in projects that the glob ``project`` matches. Without ``starts_at``: from now on."""

    model_config = ConfigDict(extra="forbid")

    project: Annotated[str, Field(min_length=1, max_length=512)]
    ends_at: At
    starts_at: At | None = None
    reason: Annotated[str, Field(max_length=2000)] = ""


@router.get("/alerts", responses=answers(AlertsAnswer, "Alerts, those that moved last first."))
async def list_alerts(
    rooms: RoomsHere,
    state: Annotated[list[State], Query(max_length=6)] = [],  # noqa: B006 - FastAPI copies it
    run: Annotated[str | None, Query(max_length=64)] = None,
    is_open: Annotated[bool | None, Query(alias="open")] = None,
    limit: int = 50,
    cursor: Cursor = None,
    past: Annotated[int, Query(ge=0, le=SHOWN)] = SHOWN,
) -> Response:
    """Alerts in one of these states (``state`` may be repeated; without any: in all), of one ``run``.

    ``open``: those alone whose newest firing is not over, even where there is no data now or its rule has an error.
    One that is quiet and has never fired is not told of. ``past``: how many of the newest transitions and deliveries of
    each.
    """
    found, following = await rooms.reading.read(
        rooms.store.reader.alerts,
        states=state or None,
        run=run,
        is_open=is_open,
        limit=clamped(limit, MAX_ALERTS),
        cursor=cursor,
        past=past,
    )
    return json_answer(AlertsAnswer([alert_line(each) for each in found], following))


@router.get("/alerts/counts", responses=answers(AlertCountsAnswer, "How many alerts are how."))
async def count_alerts(rooms: RoomsHere) -> Response:
    """How the alerts of each rule stand, on all runs together."""
    found = await rooms.reading.read(rooms.store.reader.alert_counts)
    return json_answer(AlertCountsAnswer(sum(each.count for each in found if each.open), found))


@router.get("/alerts/{alert}/transitions", responses=answers(TransitionsAnswer, "The newest first."))
async def list_transitions(alert: Id, rooms: RoomsHere, limit: int = 50, cursor: Cursor = None) -> Response:
    """What an alert has been through."""
    read, most = rooms.store.reader.transitions, clamped(limit, MAX_PAST)
    found, following = await rooms.reading.read(read, alert, limit=most, cursor=cursor)
    return json_answer(TransitionsAnswer([transition_line(moved) for moved in found], following))


@router.get("/alerts/{alert}/deliveries", responses=answers(DeliveriesAnswer, "The newest first."))
async def list_deliveries(alert: Id, rooms: RoomsHere, limit: int = 50, cursor: Cursor = None) -> Response:
    """What was told of an alert on which channel, and whether it has arrived."""
    read, most = rooms.store.reader.deliveries, clamped(limit, MAX_PAST)
    return json_answer(DeliveriesAnswer(*await rooms.reading.read(read, alert, limit=most, cursor=cursor)))


@router.post("/alerts/{alert}/acknowledge", responses=answers(AlertLine, "The alert as it is now."))
async def acknowledge(alert: Id, rooms: RoomsHere) -> Response:
    """Say that somebody has taken up the firing that is on: no more is told of it than that it is over."""
    await asyncio.wrap_future(rooms.store.writer.acknowledge(alert, rooms.clock()))
    return await _answer(alert, rooms)


@router.post("/alerts/{alert}/mute", responses=answers(AlertLine, "The alert as it is now."))
async def mute(alert: Id, rooms: RoomsHere, given: MuteGiven) -> Response:
    """Tell nothing of an alert until then. Its state goes on."""
    await asyncio.wrap_future(rooms.store.writer.mute(alert, given.until))
    return await _answer(alert, rooms)


@router.get("/silences", responses=answers(SilencesAnswer, "Those that are not over."))
async def list_silences(rooms: RoomsHere) -> Response:
    """Projects of which nothing is told for a while, now or later."""
    return json_answer(SilencesAnswer(await rooms.reading.read(rooms.store.reader.silences, rooms.clock()), None))


@router.post("/silences", status_code=201, responses={201: answers(SilenceRow, "The silence.")[200]})
async def add_silence(rooms: RoomsHere, given: SilenceGiven) -> Response:
    """Tell nothing of some projects for a while. States go on, and what still fires is told of afterwards."""
    now = rooms.clock()
    starts_at = now if given.starts_at is None else given.starts_at
    if given.ends_at <= max(starts_at, now):
        raise InvalidError("ends_at: expected a time after its beginning and after now", field="ends_at")
    adding = rooms.store.writer.silence(given.project, starts_at, given.ends_at, given.reason, now)
    silence = await asyncio.wrap_future(adding)
    return json_answer(silence, 201)


@router.delete("/silences/{silence}", status_code=204)
async def end_silence(silence: Id, rooms: RoomsHere) -> Response:
    """End a silence now."""
    if not await asyncio.wrap_future(rooms.store.writer.end_silence(silence)):
        raise NotFoundError(f"there is no silence {silence}", field="silence")
    return Response(status_code=204)


async def _answer(alert: int, rooms: Rooms) -> Response:
    found = await rooms.reading.read(rooms.store.reader.alert, alert)
    rooms.hub.changed(found.alert.run)
    return json_answer(alert_line(found))
