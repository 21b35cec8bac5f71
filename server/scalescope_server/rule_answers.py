"""The answers' shapes about rules and what became of trying them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from scalescope_server.answers import single
from scalescope_server.rules.backtest import Firing
from scalescope_server.rules.compiled import compile_rule
from scalescope_server.rules.faults import Fault
from scalescope_server.rules.names import CODES, COMPARED, MEASURES, SERIES, Quantity, Rows
from scalescope_server.rules.seen import SeenUnit, unit_seen
from scalescope_server.rules.spec import Rule
from scalescope_server.store.alert_records import RuleRow
from scalescope_server.store.records import RunId, Single
from scalescope_server.watching.book import rule_of
from scalescope_server.watching.trials import Trial

# Of a rule that fires all the time: more than anybody looks at, and all of them are counted.
MOST_FIRINGS = 500


class RuleLine(Struct, frozen=True, kw_only=True):
    """A rule. ``built_in``: of the pack that comes with the server; ``edited``: that somebody has changed since.

    ``revision``: grows with each change of it. ``error``: why it cannot be evaluated, null where it can. Times are
    seconds since the epoch.
    """

    id: int
    revision: int
    name: str
    when: str
    severity: Literal["info", "warning", "critical"]
    keep_firing: str
    project: str
    run: str
    tag: str
    text: str
    channels: tuple[str, ...]
    cooldown: str
    reason: str
    source: str
    enabled: bool
    built_in: bool
    edited: bool
    created_at: float
    changed_at: float
    error: str | None


class RulesAnswer(Struct, frozen=True):
    items: list[RuleLine]
    next: str | None


class ImportAnswer(Struct, frozen=True):
    """How many rules are new, and how many were put in the place of one with their name."""

    added: int
    changed: int


class FaultLine(Struct, frozen=True, kw_only=True):
    """What is wrong with a field of a rule, and where in its text: ``line`` and ``column`` from 1, ``start`` and
    ``end`` as offsets; null where the whole field is meant.
    """

    field: str
    message: str
    line: int | None
    column: int | None
    start: int | None
    end: int | None


class CheckAnswer(Struct, frozen=True):
    """All that is wrong with a rule; nothing where it can be used."""

    faults: list[FaultLine]


class SeriesName(Struct, frozen=True):
    """A series of every run. ``quantity``: what it is told in, "any" where that is not known."""

    name: str
    quantity: Quantity


class MeasureName(Struct, frozen=True):
    """A measure of layers or modules."""

    name: str
    quantity: Quantity
    rows: Rows


class NamesAnswer(Struct, frozen=True):
    """``compared``: the series in which ranks can be compared; ``findings``: the codes of findings."""

    series: list[SeriesName]
    measures: list[MeasureName]
    compared: tuple[str, ...]
    findings: tuple[str, ...]


class FiringLine(Struct, frozen=True, kw_only=True):
    """One time that a rule would have fired: at update ``step`` (null: when only time had passed), until
    ``until_step``, for ``steps`` updates and ``seconds``; null where it still fires at the last update.

    ``held_step``: since which update the condition had held. ``value``, ``culprit``: as it fired.
    """

    number: int
    step: int | None
    at: float
    held_step: int | None
    until_step: int | None
    until_at: float | None
    steps: int | None
    seconds: float | None
    value: Single
    culprit: str | None


class TrialLine(Struct, frozen=True, kw_only=True):
    """A rule tried on a run: over ``updates`` of it, the last of which is ``last_step``.

    ``count``: how often it would have fired, of which ``firings`` are the first, with values in the ``unit`` of an
    alert; ``state``: as it ends. ``error``: why it cannot be evaluated.
    """

    run: RunId
    name: str
    project: str
    healthy: bool | None
    updates: int
    first_step: int | None
    last_step: int | None
    count: int
    unit: SeenUnit
    firings: list[FiringLine]
    state: str
    error: str | None


class BacktestAnswer(Struct, frozen=True, kw_only=True):
    """``count``: firings on all runs; ``healthy_runs``, ``healthy_count``: of those that are marked healthy."""

    runs: list[TrialLine]
    updates: int
    count: int
    healthy_runs: int
    healthy_count: int


# What the description of the API (OpenAPI) names.
SHAPES = (RuleLine, RulesAnswer, ImportAnswer, CheckAnswer, NamesAnswer, BacktestAnswer)


def rule_line(row: RuleRow) -> RuleLine:
    rule = rule_of(row)
    return RuleLine(
        id=row.id,
        revision=row.revision,
        **{name: getattr(rule, name) for name in rule.__struct_fields__},
        built_in=row.pack is not None,
        edited=row.edited,
        created_at=row.created_at,
        changed_at=row.changed_at,
        error=compile_rule(rule).error or None,
    )


def fault_line(fault: Fault) -> FaultLine:
    place = fault.place
    if place is None:
        return FaultLine(field=fault.field, message=fault.message, line=None, column=None, start=None, end=None)
    return FaultLine(field=fault.field, message=fault.message, **place._asdict())


def names_answer() -> NamesAnswer:
    return NamesAnswer(
        series=[SeriesName(name, quantity) for name, quantity in SERIES.items()],
        measures=[MeasureName(name, measure.quantity, measure.rows) for name, measure in MEASURES.items()],
        compared=COMPARED,
        findings=CODES,
    )


def backtest_answer(rule: Rule, trials: list[Trial]) -> BacktestAnswer:
    """The answer for ``rule``, tried."""
    unit = unit_seen(rule.when)
    healthy = [trial for trial in trials if trial.vigil.healthy]
    return BacktestAnswer(
        runs=[_trial_line(trial, unit) for trial in trials],
        updates=sum(trial.found.updates for trial in trials),
        count=sum(len(trial.found.firings) for trial in trials),
        healthy_runs=len(healthy),
        healthy_count=sum(len(trial.found.firings) for trial in healthy),
    )


def _trial_line(trial: Trial, unit: SeenUnit) -> TrialLine:
    found = trial.found
    return TrialLine(
        run=trial.vigil.run,
        name=trial.vigil.name,
        project=trial.vigil.project,
        healthy=trial.vigil.healthy,
        updates=found.updates,
        first_step=trial.first_step,
        last_step=found.last_step,
        count=len(found.firings),
        unit=unit,
        firings=[_firing_line(firing) for firing in found.firings[:MOST_FIRINGS]],
        state=found.alert.state.value,
        error=found.error or None,
    )


def _firing_line(firing: Firing) -> FiringLine:
    over = firing.until_step is not None and firing.step is not None
    return FiringLine(
        number=firing.number,
        step=firing.step,
        at=firing.at,
        held_step=firing.held_step,
        until_step=firing.until_step,
        until_at=firing.until_at,
        steps=(firing.until_step or 0) - (firing.step or 0) if over else None,
        seconds=None if firing.until_at is None else firing.until_at - firing.at,
        value=single(firing.value),
        culprit=None if firing.culprit is None else str(firing.culprit),
    )
