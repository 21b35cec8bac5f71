"""The runs list: newest first, in a few queries, with the state that the clock gives."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.errors import BadCursor, NotFound
from scalescope_server.store.judging import Judged
from scalescope_server.store.records import FindingRow, RunId, RunState
from scalescope_server.store.runs import SPARKLINE_POINTS
from sqlalchemy import event

from tests.batches import STARTED_AT, Dictation, batch, hello

pytestmark = pytest.mark.both_engines


class Clock:
    """Seconds since the epoch, as the test says."""

    now = STARTED_AT

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(database: str, clock: Clock) -> Iterator[Store]:
    opened = open_store(database, clock=clock, silent_after_s=60)
    yield opened
    opened.close()


def begin(store: Store, run: str, *, project: str = "project", at: float = STARTED_AT, updates: int = 1) -> None:
    caller = hello(run, project=project, started_at=at)
    scales = [2.0 ** (1 + step // 8) for step in range(updates)]
    store.writer.append(batch(caller, Dictation().steps(0, updates, scale=scales), at=at)).result()


def ids(store: Store, **chosen: str) -> list[str]:
    return [summary.id for summary in store.reader.runs(**chosen)[0]]  # type: ignore[arg-type]


def finding(severity: str, first_step: int = 0) -> FindingRow:
    return FindingRow(
        code=severity.upper(),
        subject="",
        severity=severity,  # type: ignore[arg-type]
        sentence="a sentence",
        evidence={"steps": [1, 2], "share": math.nan},
        advice="",
        first_step=first_step,
        last_step=None,
        seen_step=first_step,
    )


def test_the_last_step_is_the_last_stored_update_of_rank_0_whatever_is_missing_before_it(store: Store) -> None:
    say, other = Dictation(), Dictation()
    store.writer.append(batch(hello(), say.layout(("w", None)), say.event(70))).result()
    assert store.reader.latest("run").last_step is None
    store.writer.append(batch(hello(), say.steps(0, 10), say.steps(1000, 10))).result()
    store.writer.append(batch(hello(rank=1), other.steps(0, 2000))).result()
    latest = store.reader.latest("run")
    assert (latest.attempted, latest.last_step) == (20, 1009)


def test_the_states_of_all_runs_are_counted(store: Store, clock: Clock) -> None:
    assert store.reader.states() == {}
    for run in ("one", "two"):
        begin(store, run)
    for run, reason in (("three", "finished"), ("four", "crashed"), ("five", "crashed")):
        say = Dictation()
        store.writer.append(batch(hello(run, world_size=1), say.steps(0, 1), say.bye(reason))).result()  # type: ignore[arg-type]
    assert store.reader.states() == {"running": 2, "finished": 1, "crashed": 2}
    clock.now += 61
    assert store.reader.states() == {"silent": 2, "finished": 1, "crashed": 2}


def test_runs_come_newest_first_page_by_page(store: Store) -> None:
    for number in range(5):
        # Two of them began in the same second.
        begin(store, f"run{number}", at=STARTED_AT + number // 2)
    found: list[str] = []
    cursor: str | None = None
    pages = 0
    while pages == 0 or cursor:
        page, cursor = store.reader.runs(limit=2, cursor=cursor)
        found.extend(summary.id for summary in page)
        pages += 1
    assert (pages, found) == (3, ["run4", "run3", "run2", "run1", "run0"])


@pytest.mark.parametrize("cursor", ["", "x", "AAAA", "ö", "kgEC=" * 3])
def test_a_cursor_that_came_from_elsewhere_is_refused(store: Store, cursor: str) -> None:
    begin(store, "run")
    with pytest.raises(BadCursor):
        store.reader.runs(cursor=cursor)
    with pytest.raises(BadCursor):
        store.reader.events("run", cursor=cursor)


def test_a_run_is_silent_after_a_minute_without_a_sign_of_life(store: Store, clock: Clock) -> None:
    begin(store, "run")
    seen: list[RunState] = []
    for later in (60.0, 60.5):
        clock.now = STARTED_AT + later
        seen.append(store.reader.latest("run").state)
    store.writer.append(batch(hello("run"), Dictation(1).bye(), at=clock.now)).result()
    clock.now += 3600
    assert [*seen, store.reader.latest("run").state] == ["running", "silent", "finished"]


def test_runs_are_chosen_by_project_state_and_text(store: Store, clock: Clock) -> None:
    begin(store, "old", project="small")
    clock.now += 100
    for run, project in (("new", "small"), ("ended", "large"), ("fallen", "large")):
        begin(store, run, project=project, at=clock.now)
    store.writer.append(batch(hello("ended"), Dictation(1).bye(), at=clock.now)).result()
    store.writer.append(batch(hello("fallen"), Dictation(1).bye("crashed"), at=clock.now)).result()
    store.writer.patch_run(RunId("new"), name="100% Größe", tags=["lr_3"]).result()
    assert ids(store, project="small") == ["new", "old"]
    states = {state: ids(store, state=state) for state in ("running", "silent", "finished", "crashed")}
    assert states == {"running": ["new"], "silent": ["old"], "finished": ["ended"], "crashed": ["fallen"]}
    searched = {text: ids(store, text=text) for text in ("0% g", "größe", "LR_3", "l_3", "%", "fall", "small")}
    assert searched == {
        "0% g": ["new"],
        "größe": ["new"],
        "LR_3": ["new"],
        "l_3": [],
        "%": ["new"],
        "fall": ["fallen"],
        "small": ["new", "old"],
    }


def test_the_sparkline_is_log2_of_the_scale_exact_for_a_short_run(store: Store) -> None:
    begin(store, "run", updates=20)
    assert store.reader.latest("run").sparkline == [1.0] * 8 + [2.0] * 8 + [3.0] * 4
    assert store.reader.latest("run").scale == 8.0


def test_the_sparkline_of_a_long_run_has_the_extremes_of_at_most_60_buckets(store: Store) -> None:
    begin(store, "run", updates=300)
    begin(store, "other", updates=2)
    long, short = (store.reader.latest(run).sparkline for run in ("run", "other"))
    assert len(long) <= 2 * SPARKLINE_POINTS
    assert long == [float(1 + bucket) for bucket in range(38) for _ in range(2)]
    assert short == [1.0, 1.0]


def test_a_scale_that_thrashes_within_a_bucket_is_seen_and_the_line_ends_where_the_scale_is(store: Store) -> None:
    scales = [2.0**10, 2.0**11, 2.0**10, *([2.0**10] * 5)] * 16
    store.writer.append(batch(hello("run"), Dictation().steps(0, 128, scale=scales))).result()
    assert store.reader.latest("run").sparkline == [11.0, 10.0] * 16


def test_a_run_without_a_scaler_has_a_line_of_nothing(store: Store) -> None:
    store.writer.append(batch(hello("run"), Dictation().steps(0, 3, scale={1: 0.0, 2: math.inf}))).result()
    assert (store.reader.latest("run").scale, store.reader.latest("run").sparkline) == (math.inf, [None] * 3)
    store.writer.append(batch(hello("plain"), Dictation().steps(0, 3))).result()
    assert (store.reader.latest("plain").scale, store.reader.latest("plain").sparkline) == (None, [None] * 3)


def test_numbers_at_the_ends_of_the_range_of_floats_break_no_list(store: Store) -> None:
    extremes = [1.5e308, -1.5e308, 5e-324, 1.5e308] * 64
    told = Dictation().steps(0, 256, scale=extremes, step_ms=extremes)
    store.writer.append(batch(hello("run"), told)).result()
    assert set(store.reader.runs()[0][0].sparkline) == {None, math.log2(1.5e308)}
    assert [rank.attempted for rank in store.reader.run("run").rank_states][:1] == [256]


def test_the_worst_finding_and_the_number_of_each_are_told(store: Store) -> None:
    begin(store, "run")
    begin(store, "quiet")
    found = (finding("info"), finding("critical"), finding("warning"), finding("warning", 7))
    store.writer.commit_judgement(Judged(RunId("run"), 0, b"state", found)).result()
    summaries = {summary.id: summary for summary in store.reader.runs()[0]}
    assert (summaries["run"].findings, summaries["run"].worst) == ({"info": 1, "critical": 1, "warning": 2}, "critical")
    assert (summaries["quiet"].findings, summaries["quiet"].worst) == ({}, None)


def test_a_judgement_replaces_the_one_before_and_counts_its_updates(store: Store) -> None:
    begin(store, "run", updates=5)
    assert (store.reader.judgement("run"), store.reader.unjudged()) == ((0, b""), ["run"])
    for updates, severity in ((3, "info"), (5, "info")):
        judged = Judged(RunId("run"), updates, b"state", (finding(severity), finding("fatal")))
        store.writer.commit_judgement(judged).result()
    assert (store.reader.judgement("run"), store.reader.unjudged()) == ((5, b"state"), [])
    found = store.reader.findings("run")
    assert [row.severity for row in found] == ["fatal", "info"]
    assert found[0].evidence == {"steps": [1, 2], "share": None}


def test_the_list_takes_as_many_queries_for_many_runs_as_for_one(store: Store) -> None:
    counted = []
    for runs in (1, 12):
        for number in range(runs):
            begin(store, f"run{number}", updates=3 + 40 * (number % 3))
        queries: list[str] = []

        def note(*arguments: object, queries: list[str] = queries) -> None:
            queries.append(str(arguments[2]))

        event.listen(store._reading, "before_cursor_execute", note)
        store.reader.runs()
        event.remove(store._reading, "before_cursor_execute", note)
        counted.append(len(queries))
    assert counted[1] <= counted[0] + 1 <= 6


def test_a_run_that_is_not_there_is_named(store: Store) -> None:
    with pytest.raises(NotFound, match="'absent'"):
        store.reader.run("absent")
