"""Detectors on timelines: simulated ones for every shape, and real GradScaler loops for the benign cases."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scalescope_server.findings.catalogue import Case, findings, fold, recall, remember
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.store.judging import StepRow
from scalescope_server.store.records import FindingRow

torch.set_num_threads(1)


def timeline(
    updates: int,
    *,
    interval: int,
    start: float,
    ceiling: Callable[[int], float],
    backoff: float = 0.5,
    segment: int = 0,
    first: int = 0,
) -> list[StepRow]:
    """What GradScaler's rule does when every scale above ``ceiling(step)`` overflows."""
    rows, scale, tracker = [], start, 0
    for step in range(first, first + updates):
        skipped = scale > ceiling(step)
        rows.append(StepRow(step, segment, scale, skipped, tracker, "head.weight" if skipped else None))
        tracker = 0 if skipped else tracker + 1
        if skipped:
            scale *= backoff
        elif tracker == interval:
            scale, tracker = scale * 2, 0
    return rows


def real(updates: int, *, interval: int, start: float = 65536.0) -> list[StepRow]:
    """A real loop: Linear(16, 16), summed loss, fp16 autocast, a real GradScaler."""
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", growth_interval=interval, init_scale=start)
    rows = []
    for step in range(updates):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(8, 16)).sum()
        scale, tracker = scaler.scale(loss), scaler._get_growth_tracker()
        before = scaler.get_scale()
        scale.backward()
        scaler.step(optimizer)
        scaler.update()
        rows.append(StepRow(step, 0, before, scaler.get_scale() < before, tracker, None))
    return rows


def judged(rows: list[StepRow], interval: int) -> dict[str, FindingRow]:
    rules = ScalerRules(interval)
    return {finding.code: finding for finding in findings(fold(Case(), rows, rules), rules)}


def codes_over_time(rows: list[StepRow], interval: int, every: int) -> Iterator[set[str]]:
    rules, case = ScalerRules(interval), Case()
    for start in range(0, len(rows), every):
        case = fold(case, rows[start : start + every], rules)
        yield {f"{finding.code}{'' if finding.last_step is None else ' ended'}" for finding in findings(case, rules)}


def test_the_first_skips_are_calibration_and_nothing_else() -> None:
    found = judged(timeline(300, interval=2000, start=2.0**16, ceiling=lambda _: 2.0**13), 2000)
    assert set(found) == {"CALIBRATION"}
    assert found["CALIBRATION"].severity == "info"
    assert found["CALIBRATION"].sentence == (
        "3 updates were skipped while the scale settled from 2^16 to 2^13. This is normal."
    )
    assert found["CALIBRATION"].advice == "Nothing to do."
    assert (found["CALIBRATION"].first_step, found["CALIBRATION"].last_step) == (0, 2)


def test_a_far_too_high_start_tells_how_many_updates_a_better_one_saves() -> None:
    found = judged(timeline(300, interval=2000, start=2.0**24, ceiling=lambda _: 2.0**17), 2000)["CALIBRATION"]
    assert "GradScaler(init_scale=2.0**17) would save these 7 updates" in found.advice


def test_calibration_tells_the_scale_that_followed_whatever_the_backoff() -> None:
    rows = timeline(100, interval=2000, start=2.0**16, ceiling=lambda _: 2.0**11, backoff=0.25)
    assert "settled from 2^16 to 2^10" in judged(rows, 2000)["CALIBRATION"].sentence


def test_a_crash_in_the_middle_of_calibration_and_a_resume_are_two_calibrations() -> None:
    rows = timeline(3, interval=2000, start=2.0**16, ceiling=lambda _: 2.0**10)
    rows += timeline(30, interval=2000, start=2.0**16, ceiling=lambda _: 2.0**13, segment=1, first=3)
    rules = ScalerRules(2000)
    found = findings(fold(Case(), rows, rules), rules)
    assert [(f.first_step, f.last_step, f.evidence["skips"]) for f in found] == [(0, 2, 3), (3, 5, 3)]


def test_probing_keeps_its_first_step_over_a_resume() -> None:
    rows = timeline(500, interval=200, start=2.0**15, ceiling=lambda _: 2.0**15)
    rows += timeline(500, interval=200, start=2.0**15, ceiling=lambda _: 2.0**15, segment=1, first=500)
    rules, case, seen = ScalerRules(200), Case(), set()
    for start in range(0, 1000, 10):
        case = fold(case, rows[start : start + 10], rules)
        seen |= {f.first_step for f in findings(case, rules) if f.code == "HEALTHY_PROBING"}
    assert seen == {200}


def test_calibration_is_open_until_the_scale_has_settled() -> None:
    rows = timeline(60, interval=2000, start=2.0**20, ceiling=lambda _: 2.0**14)
    assert list(codes_over_time(rows, 2000, every=20)) == [
        {"CALIBRATION"},
        {"CALIBRATION ended"},
        {"CALIBRATION ended"},
    ]


def test_one_skipped_update_of_one_is_told_as_calibration_in_progress() -> None:
    found = judged(timeline(1, interval=2000, start=2.0**16, ceiling=lambda _: 2.0**15), 2000)["CALIBRATION"]
    assert found.sentence == "1 update was skipped while the scale comes down from 2^16. This is normal."
    assert found.last_step is None


def test_a_scale_that_never_stops_falling_is_not_called_calibration() -> None:
    found = judged(timeline(100, interval=2000, start=2.0**16, ceiling=lambda _: 0.0), 2000)
    assert set(found) == {"SCALE_COLLAPSE"}


@pytest.mark.parametrize("interval", [100, 200, 256, 2000])
def test_a_scaler_that_probes_its_ceiling_is_healthy_at_any_usual_interval(interval: int) -> None:
    rows = timeline(12 * interval, interval=interval, start=2.0**16, ceiling=lambda _: 2.0**15)
    for codes in codes_over_time(rows, interval, every=25):
        assert "SCALE_THRASH" not in codes
    found = judged(rows, interval)
    assert set(found) == {"CALIBRATION", "HEALTHY_PROBING"}
    assert found["HEALTHY_PROBING"].severity == "info"
    assert "doubled to 2^16: the scaler probes its ceiling. This is normal." in found["HEALTHY_PROBING"].sentence


@pytest.mark.parametrize(("interval", "share"), [(5, "16"), (20, "4"), (50, "1.8")])
def test_a_growth_interval_far_too_small_is_thrashing(interval: int, share: str) -> None:
    found = judged(timeline(600, interval=interval, start=2.0**20, ceiling=lambda _: 2.0**19), interval)["SCALE_THRASH"]
    assert found.severity == "warning"
    assert f"({share}" in found.sentence
    assert "The lowest scale that overflowed is 2^20; head.weight overflows first in backward order" in found.sentence
    assert f"all of them within one growth interval ({interval} updates) of a doubling" in found.sentence
    assert "GradScaler(init_scale=2.0**19, growth_interval=2000)" in found.advice
    assert found.last_step is None


def test_two_skips_in_a_row_are_one_rejected_doubling() -> None:
    """A ceiling that has moved two octaves down costs two updates at each doubling; the interval is the cause."""
    rows, scale, tracker, depth = [], 2.0**20, 0, 0
    for step in range(400):
        skipped = depth > 0
        rows.append(StepRow(step, 0, scale, skipped, tracker, None))
        tracker = 0 if skipped else tracker + 1
        if skipped:
            scale, depth = scale / 2, depth - 1
        elif tracker == 20:
            scale, tracker, depth = scale * 2, 0, 2
    found = judged(rows, 20)
    assert "growth_interval=2000" in found["SCALE_THRASH"].advice


@pytest.mark.parametrize("interval", [2, 4])
def test_a_very_short_interval_is_thrashing_within_a_hundred_updates(interval: int) -> None:
    rows = timeline(100, interval=interval, start=2.0**20, ceiling=lambda step: 2.0 ** (18 + step % 2))
    assert "SCALE_THRASH" in judged(rows, interval)
    for codes in codes_over_time(rows, interval, every=5):
        assert "HEALTHY_PROBING" not in codes


def test_thrashing_needs_four_occasions_so_one_bad_batch_is_none() -> None:
    def spike(step: int) -> float:
        return 2.0**10 if 300 <= step < 309 else 2.0**40

    rows = timeline(700, interval=2000, start=2.0**20, ceiling=spike)
    assert sum(row.skipped for row in rows) == 9
    assert judged(rows, 2000) == {}


def test_skips_that_no_doubling_explains_are_thrashing_with_another_advice() -> None:
    skipped = {30 * n + n % 2 for n in range(1, 20)}
    rows = [
        StepRow(step, 0, 2.0**15, step in skipped, 0, "body.weight" if step in skipped else None) for step in range(600)
    ]
    thrash = judged(rows, 2000)["SCALE_THRASH"]
    assert "The skips do not follow doublings: look at body.weight first" in thrash.advice
    assert "of a doubling" not in thrash.sentence


def test_thrashing_closes_when_the_skips_stop_and_stays_in_the_record() -> None:
    rows = timeline(300, interval=20, start=2.0**20, ceiling=lambda _: 2.0**19)
    rows += [StepRow(step, 0, 2.0**18, False, 0, None) for step in range(300, 2600)]
    seen = list(codes_over_time(rows, 20, every=100))
    assert "SCALE_THRASH" in seen[2]
    assert "SCALE_THRASH ended" in seen[-1]
    last = [row.step for row in rows if row.skipped][-1]
    assert judged(rows, 20)["SCALE_THRASH"].last_step is not None
    assert judged(rows, 20)["SCALE_THRASH"].last_step == last


def test_a_loop_that_skips_every_few_updates_for_ever_is_thrashing_and_not_calibration() -> None:
    rows = [StepRow(step, 0, 2.0**15, step % 7 in (2, 5), 0, None) for step in range(300)]
    assert set(judged(rows, 2000)) == {"SCALE_THRASH"}


def test_a_resumed_segment_calibrates_anew_and_keeps_what_was_known() -> None:
    rows = timeline(200, interval=2000, start=2.0**16, ceiling=lambda _: 2.0**13)
    rows += timeline(200, interval=2000, start=2.0**16, ceiling=lambda _: 2.0**13, segment=1, first=200)
    rules = ScalerRules(2000)
    found = findings(fold(Case(), rows, rules), rules)
    calibrations = [finding.first_step for finding in found if finding.code == "CALIBRATION"]
    assert calibrations == [0, 200]


def test_updates_without_a_scaler_say_nothing() -> None:
    rows = [StepRow(step, 0, None, False, None, None) for step in range(100)]
    assert judged(rows, 2000) == {}


@settings(deadline=None, max_examples=40)
@given(cuts=st.lists(st.integers(0, 600), max_size=6), interval=st.sampled_from([3, 20, 100]))
def test_the_answer_does_not_depend_on_how_the_updates_are_cut_nor_on_a_restart(cuts: list[int], interval: int) -> None:
    rows, rules = (
        timeline(600, interval=interval, start=2.0**18, ceiling=lambda s: 2.0 ** (15 + s % 2)),
        ScalerRules(interval),
    )
    case = Case()
    edges = [0, *sorted(cuts), 600]
    for start, stop in itertools.pairwise(edges):
        restarted = recall(remember(fold(case, rows[start:stop], rules)))
        assert restarted is not None
        case = restarted
    assert findings(case, rules) == findings(fold(Case(), rows, rules), rules)


def test_a_state_of_another_version_or_no_state_is_forgotten() -> None:
    assert recall(b"") is None
    assert recall(remember(Case(version=0))) is None


@pytest.mark.parametrize("interval", [5, 2000, 10**9])
def test_the_memory_of_a_long_thrashing_run_stays_small(interval: int) -> None:
    rows = [
        StepRow(step, 0, 2.0**15, step % 5 in (1, 3), 0, "a.rather.long.name.of.a.layer.weight")
        for step in range(20_000)
    ]
    case = fold(Case(), rows, ScalerRules(interval))
    assert len(remember(case)) < 40_000
    assert "SCALE_THRASH" in judged(rows, interval)


def test_a_real_summed_loss_calibrates_and_probes_without_an_alarm() -> None:
    found = judged(real(1200, interval=200), 200)
    assert {finding.severity for finding in found.values()} == {"info"}


@pytest.mark.parametrize("interval", [5, 20])
def test_a_real_loop_with_a_short_interval_thrashes(interval: int) -> None:
    assert "SCALE_THRASH" in judged(real(400, interval=interval), interval)


def test_a_real_first_step_overflow_is_info_only() -> None:
    found = judged(real(3, interval=2000, start=2.0**17), 2000)
    assert set(found) == {"CALIBRATION"}
