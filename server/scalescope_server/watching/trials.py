"""A rule tried on stored runs: the evaluator and the states that judge live, over what was told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.rules.backtest import Backtest, backtest
from scalescope_server.rules.compiled import Compiled, compile_rule
from scalescope_server.rules.course import Start
from scalescope_server.rules.spec import Rule
from scalescope_server.rules.stretch import Stretch
from scalescope_server.store.judging import BEFORE_ALL, Position
from scalescope_server.store.reader import Reader
from scalescope_server.store.records import RunId
from scalescope_server.store.starts import StartRow
from scalescope_server.store.vigil import Vigil
from scalescope_server.watching.book import in_scope
from scalescope_server.watching.clock import Clock
from scalescope_server.watching.openings import Opening, fold_openings, openings_at, remembered
from scalescope_server.watching.stretches import PIECE, all_stretches

# Where no run is named: so many of the newest that the rule applies to, and so many that are marked healthy.
NEWEST_RUNS = 3
HEALTHY_RUNS = 10
# Looked at for them.
LOOKED_AT = 200


class Trial(NamedTuple):
    """What a rule would have done on a run. ``first_step``: of the updates that it was tried on."""

    vigil: Vigil
    first_step: int | None
    found: Backtest


class TrialAbandonedError(Exception):
    """Nobody waits for it any more."""


def _attended() -> bool:
    return False


def try_rule(
    reader: Reader,
    rule: Rule,
    runs: Sequence[RunId] | None,
    last: int | None,
    now: Callable[[], float],
    left: Callable[[], bool] = _attended,
) -> list[Trial]:
    """``rule`` on each of ``runs``, or where there are none named on those that it applies to.

    ``last``: over so many of their last updates, None: over all. ``now``: seconds since the epoch. ``left``: whether
    nobody waits for it any more; asked again and again.

    Raises:
        NotFound: if one is gone.
        TrialAbandonedError: once nobody waits for it.
    """
    compiled = compile_rule(rule)
    chosen = _applicable(reader, rule) if runs is None else [reader.vigil(run) for run in runs]

    def go_on() -> None:
        if left():
            raise TrialAbandonedError

    return [_try_on(reader, compiled, vigil, last, now, go_on) for vigil in chosen]


def _applicable(reader: Reader, rule: Rule) -> list[Vigil]:
    """Those in the rule's scope: the newest, and behind them those that are marked healthy."""
    within = [vigil for vigil in reader.newest_vigils(LOOKED_AT) if in_scope(rule, vigil)]
    healthy = [vigil for vigil in within if vigil.healthy][:HEALTHY_RUNS]
    return [*within[:NEWEST_RUNS], *(vigil for vigil in healthy if vigil not in within[:NEWEST_RUNS])]


def _try_on(
    reader: Reader,
    compiled: Compiled,
    vigil: Vigil,
    last: int | None,
    now: Callable[[], float],
    go_on: Callable[[], None],
) -> Trial:
    run, until, opened = vigil.run, reader.newest_update(vigil.run), None
    clock = Clock()
    if compiled.needs.findings:
        # Findings of what has come since wait, and so do rules.
        until, changes = _all_openings(reader, run, go_on)
        opened = openings_at(changes)
    begin = BEFORE_ALL if last is None else reader.look_back(run, until, last, 0.0)
    first: list[int] = []

    def past() -> Iterator[Stretch]:
        for stretch in all_stretches(reader, run, compiled.needs, begin, until, opened):
            go_on()
            first[:] = first or [int(stretch.step[0])]
            yield clock.forward(stretch)

    rows = reader.starts(run)
    found = backtest(
        compiled,
        past(),
        starts=_starts(rows, begin.segment, is_whole=begin == BEFORE_ALL),
        silent_after_s=reader.silent_after_s,
        until=_by_updates(rows, now()),
        shift_after=clock.shift_after,
    )
    return Trial(vigil, first[0] if first else None, found)


def _starts(rows: Sequence[StartRow], begin: int, *, is_whole: bool) -> list[Start]:
    """Those from ``begin`` on; of time before the first update nothing is asked unless ``is_whole``."""
    return [
        Start(
            segment=row.segment,
            began_at=row.began_at if is_whole or row.segment > begin else None,
            heard_at=row.placed(row.seen_at),
            ending=row.ending,
            ended_at=row.began_at if row.over_at is None else row.over_at,
        )
        for row in rows
        if row.segment >= begin
    ]


def _by_updates(rows: Sequence[StartRow], at: float) -> float | None:
    """``at``, by the clock of the run's last updates; None before the first."""
    told = [row for row in rows if row.updated_at is not None]
    return told[-1].placed(at) if told else None


def _all_openings(reader: Reader, run: RunId, go_on: Callable[[], None]) -> tuple[Position, list[Opening]]:
    """Which findings were open at which updates, and up to which: as judging them found, and what is not judged yet."""
    (case, judged), changes = remembered(reader.judgement(run)[1]), list[Opening]()
    rules, setting = ScalerRules.of(reader.scaler(run)), reader.setting(run)
    while steps := reader.steps_after(run, case.position, PIECE)[0]:
        go_on()
        case, some = fold_openings(case, steps, rules, setting)
        changes += some
    return case.position, [*judged, *changes]
