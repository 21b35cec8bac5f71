"""The HTTP API about rules: those of the server, whether one can be used, and what one would have done."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from scalescope_server.answers import json_answer
from scalescope_server.errors import InvalidError
from scalescope_server.inputs import run_of
from scalescope_server.leaving import Left, while_attended
from scalescope_server.openapi import answers
from scalescope_server.rooms import RoomsHere
from scalescope_server.rule_answers import (
    BacktestAnswer,
    CheckAnswer,
    ImportAnswer,
    NamesAnswer,
    RuleLine,
    RulesAnswer,
    backtest_answer,
    fault_line,
    names_answer,
    rule_line,
)
from scalescope_server.rules.faults import faults
from scalescope_server.rules.files import RulesFileError
from scalescope_server.rules.spec import PACK_PREFIX, Rule
from scalescope_server.store.alert_records import RuleRow
from scalescope_server.watching.book import spec_of
from scalescope_server.watching.files import read_file, store_file, written_file
from scalescope_server.watching.notices import ended
from scalescope_server.watching.trials import Trial, try_rule

MAX_TRIED = 50
# As some servers log it: nobody reads this answer.
NOBODY_THERE = 499

router = APIRouter(prefix="/api/rules", tags=["rules"])

Line = Annotated[str, Field(max_length=512)]
Text = Annotated[str, Field(max_length=4096)]
RuleId = Annotated[int, Path(ge=1, lt=2**63)]
Seen = Annotated[int | None, Query(alias="revision", ge=0, lt=2**63)]


class RuleGiven(BaseModel):
    """A rule: a sentence, where it applies, and what is told when it fires."""

    model_config = ConfigDict(extra="forbid")

    name: Line
    when: Text
    severity: Literal["info", "warning", "critical"] = "warning"
    keep_firing: Line = ""
    project: Line = "*"
    run: Line = "*"
    tag: Line = "*"
    text: Text = ""
    channels: Annotated[list[Line], Field(max_length=32)] = []
    cooldown: Line = ""
    reason: Text = ""
    source: Text = ""
    enabled: bool = True


class RulePatch(BaseModel):
    """Whether a rule is evaluated."""

    model_config = ConfigDict(extra="forbid")

    enabled: bool


class BacktestGiven(BaseModel):
    """What is tried on which runs: without ``runs`` on the newest that the rule applies to, and on those of them that
    are marked healthy. ``last``: over so many of their last updates, else over all.
    """

    model_config = ConfigDict(extra="forbid")

    rule: RuleGiven
    runs: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=MAX_TRIED)] | None = None
    last: Annotated[int, Field(ge=1, lt=2**31)] | None = None


class ImportGiven(BaseModel):
    """``text``: a file of rules in YAML. Of a built-in rule it need only say what is to be otherwise."""

    model_config = ConfigDict(extra="forbid")

    text: str


@router.get("", responses=answers(RulesAnswer, "All rules by name."))
async def list_rules(rooms: RoomsHere) -> Response:
    """All rules, built-in ones among them."""

    def read() -> RulesAnswer:
        return RulesAnswer([rule_line(row) for row in rooms.store.reader.rule_book().rules], None)

    return json_answer(await rooms.reading.read(read))


@router.post("", status_code=201, responses={201: answers(RuleLine, "The rule as it is now.")[200]})
async def add_rule(rooms: RoomsHere, given: RuleGiven) -> Response:
    """Add a rule. It watches every run that it applies to from then on."""
    rule = _checked(_rule(given), built_in=False)
    row = await asyncio.wrap_future(rooms.store.writer.add_rule(spec_of(rule), rooms.clock()))
    return json_answer(rule_line(row), 201)


@router.get("/export", responses={200: {"content": {"application/yaml": {}}, "description": "A file of rules."}})
async def export_rules(rooms: RoomsHere, built_in: bool = False) -> Response:
    """The rules as a file that can be imported again: those of your own, and of the ones that come with the server what
    you have changed. ``built_in``: these in full too.
    """
    book = await rooms.reading.read(rooms.store.reader.rule_book)
    headers = {"content-disposition": 'attachment; filename="rules.yaml"'}
    text = await rooms.reading.read(written_file, book.rules, whole=built_in)
    return Response(text, headers=headers, media_type="application/yaml")


@router.post("/import", responses=answers(ImportAnswer, "What has changed."))
async def import_rules(rooms: RoomsHere, given: ImportGiven) -> Response:
    """Add the rules of a file; one whose name is there is put in its place. Either all of them, or none."""
    try:
        # A large file takes seconds.
        rules = await rooms.reading.read(read_file, given.text)
    except RulesFileError as error:
        raise InvalidError(str(error), field="text") from None
    added, changed = await asyncio.wrap_future(store_file(rooms.store.writer, rules, rooms.clock()))
    return json_answer(ImportAnswer(added, changed))


@router.post("/check", responses=answers(CheckAnswer, "All that is wrong with it."))
async def check_rule(given: RuleGiven) -> Response:
    """Whether a rule could be used; nothing is stored."""
    found = faults(_rule(given), built_in=given.name.startswith(PACK_PREFIX))
    return json_answer(CheckAnswer([fault_line(fault) for fault in found]))


@router.post("/backtest", responses=answers(BacktestAnswer, "Each time that it would have fired."))
async def backtest_rule(request: Request, rooms: RoomsHere, given: BacktestGiven) -> Response:
    """Try a rule on stored runs; nothing is stored. It ends when the connection does."""
    rule = _checked(_rule(given.rule), built_in=given.rule.name.startswith(PACK_PREFIX))
    runs = None if given.runs is None else [run_of(run) for run in given.runs]

    async def tried(left: Left) -> list[Trial]:
        return await rooms.trying.read(try_rule, rooms.store.reader, rule, runs, given.last, rooms.clock, left)

    trials = await while_attended(request, tried)
    return Response(status_code=NOBODY_THERE) if trials is None else json_answer(backtest_answer(rule, trials))


@router.get("/names", responses=answers(NamesAnswer, "The names that a sentence may use."))
async def list_names() -> Response:
    """What sentences may name beside the series of a run's own."""
    return json_answer(names_answer())


@router.get("/{rule}", responses=answers(RuleLine, "The rule."))
async def get_rule(rule: RuleId, rooms: RoomsHere) -> Response:
    """One rule by its id."""
    return json_answer(rule_line(await rooms.reading.read(rooms.store.reader.rule, rule)))


@router.put("/{rule}", responses=answers(RuleLine, "The rule as it is now."))
async def put_rule(rule: RuleId, rooms: RoomsHere, given: RuleGiven, seen: Seen = None) -> Response:
    """Put a rule in the place of another. Where it says something else now, its alerts end and begin anew.

    ``revision``: of the one that was read. Where somebody has changed it since, nothing is changed (409).
    """
    before = await rooms.reading.read(rooms.store.reader.rule, rule)
    new = _checked(_rule(given), built_in=before.pack is not None)
    if before.pack is not None and new.name != before.name:
        raise InvalidError(f"name: a built-in rule keeps its name, {before.name!r}", field="name")
    row = await asyncio.wrap_future(rooms.store.writer.change_rule(rule, spec_of(new), rooms.clock(), ended, seen))
    return json_answer(rule_line(row))


@router.patch("/{rule}", responses=answers(RuleLine, "The rule as it is now."))
async def patch_rule(rule: RuleId, rooms: RoomsHere, patch: RulePatch) -> Response:
    """Switch a rule off, or on again; what else it says stays as it is. Off, its alerts end."""
    switching = rooms.store.writer.switch_rule(rule, enabled=patch.enabled, at=rooms.clock(), ending=ended)
    return json_answer(rule_line(await asyncio.wrap_future(switching)))


@router.delete("/{rule}", status_code=204)
async def delete_rule(rule: RuleId, rooms: RoomsHere) -> Response:
    """Delete a rule. What its alerts have been through stays."""
    before: RuleRow = await rooms.reading.read(rooms.store.reader.rule, rule)
    if before.pack is not None:
        raise InvalidError("a built-in rule comes back with the next start: switch it off instead", field="rule")
    await asyncio.wrap_future(rooms.store.writer.delete_rule(rule, rooms.clock(), ended))
    return Response(status_code=204)


def _rule(given: RuleGiven) -> Rule:
    return msgspec.convert(given.model_dump(), Rule)


def _checked(rule: Rule, *, built_in: bool) -> Rule:
    """Raises :class:`InvalidError` with the first thing that is wrong with it."""
    for fault in faults(rule, built_in=built_in):
        raise InvalidError(f"{fault.field}: {fault.message}", field=fault.field)
    return rule
