"""What the loop of a run was heard to do, in words: an ordinary window, unusual ones, first non-finite values."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from scalescope_server.figures.origins import origins
from scalescope_server.figures.unusual import MOST_STRETCHES, Unusual, told_apart
from scalescope_server.figures.windows import FactLine, micro_batches_of, ordinary, scheduler_of
from scalescope_server.store.records import FactsRow, RunDetail, RunSummary

from tests.figure_inputs import event

PLAIN: dict[str, object] = {
    "micro_batches": 2,
    "zero_grad": True,
    "unscale": "explicit",
    "clip": {"kind": "norm", "limit": 1.0, "when": "unscaled", "calls": 1},
}


def facts(first: int, last: int, **more: object) -> FactsRow:
    return FactsRow(first_step=first, last_step=last, segment="s", rank=0, facts=PLAIN | more)


def found(**more: object) -> Unusual:
    """The only unusual thing of updates 3 to 5."""
    (told,) = unusual([facts(0, 2), facts(3, 5, **more), facts(6, 9)])
    assert (told.updates, told.first, told.last, told.stretches) == (3, 3, 5, [(3, 5)])
    return told


def unusual(items: Sequence[FactsRow]) -> list[Unusual]:
    return told_apart(items)[0]


def detail(scaler: dict[str, object] | None = None) -> RunDetail:
    summary = RunSummary(
        id="run-1",
        project="p",
        name="run",
        state="running",
        tags=[],
        started_at=0.0,
        last_seen_at=0.0,
        attempted=10,
        applied=10,
        skipped=0,
        last_step=9,
        scale=None,
        findings={},
        worst=None,
        firing=0,
        sparkline=[],
    )
    return RunDetail(
        summary=summary,
        config={},
        environment={},
        scaler=scaler,
        optimizers=[{"name": "AdamW"}],
        parameters=[],
        modules=[],
        segments=[],
        world_size=1,
        ranks=[0],
        rank_states=[],
        disagreements=[],
        ledger=[],
        note="",
        healthy=None,
        pruned_below=0,
        every=10,
    )


def lines(*items: FactsRow, scaler: dict[str, object] | None = None, **setup: object) -> dict[str, FactLine]:
    _, usual = told_apart(items)
    told = ordinary(items, detail(scaler), setup, usual)
    return {line.label: line for line in told}


def test_an_ordinary_window_is_told_in_words() -> None:
    told = lines(facts(0, 9), scaler={"name": "GradScaler"}, autocast={"cuda": "fp16", "cpu": None})
    assert {label: line.text for label, line in told.items()} == {
        "micro-batches": "2",
        "gradients": "cleared before the first backward",
        "unscaled": "by unscale_(), called by the loop",
        "clipped": "by norm at 1, after unscaling",
        "optimizers": "AdamW",
        "scheduler": "none was heard",
        "autocast": "fp16 on cuda, off on cpu",
    }
    assert {line.beside for line in told.values()} == {""}


def test_what_a_few_windows_had_instead_is_told_beside() -> None:
    told = lines(facts(0, 8), facts(9, 9, micro_batches=1))
    assert told["micro-batches"] == FactLine("micro-batches", "2", "1 in 1 update")


def test_windows_in_which_something_was_wrong_do_not_count_as_ordinary() -> None:
    clipped = {"kind": "norm", "limit": 1.0, "when": "scaled", "calls": 1}
    assert lines(facts(0, 1), facts(2, 9, clip=clipped))["clipped"].beside == ""
    only = lines(facts(2, 9, clip=clipped))
    assert only["clipped"].text == "by norm at 1, while scaled"


def test_a_run_without_a_scaler_is_told_no_unscaling() -> None:
    assert "unscaled" not in lines(facts(0, 9))


def test_each_optimizer_of_several_has_its_own_lines() -> None:
    own = {"SGD": {"zero_grad": True}, "Adam": {"zero_grad": None}}
    told = lines(facts(0, 9, micro_batches={"SGD": 1, "Adam": None}, of=own))
    assert told["micro-batches"].text == "SGD 1, Adam not known"
    assert told["gradients of SGD"].text == "cleared before the first backward"
    assert told["gradients of Adam"].text == "not known whether cleared"


def test_the_scheduler_is_that_of_the_last_window() -> None:
    items = [facts(0, 4, scheduler={"class": "A", "steps": 1, "follows": "unknown"}), facts(5, 9)]
    told = scheduler_of([*items, facts(10, 12, scheduler={"class": "B", "steps": 1, "follows": "attempted"})])
    assert told is not None
    assert (told.name, told.follows) == ("B", "attempted")
    assert scheduler_of([facts(0, 4)]) is None


def test_micro_batches_add_up_only_where_all_are_known() -> None:
    assert micro_batches_of([facts(0, 4), facts(5, 5, micro_batches=1)]) == 11
    assert micro_batches_of([facts(0, 4), facts(5, 5, micro_batches=None)]) is None


def test_an_ordinary_loop_has_nothing_unusual() -> None:
    assert unusual([facts(0, 9), facts(10, 11, micro_batches=1)]) == []


@pytest.mark.parametrize(
    ("told", "kind", "words"),
    [
        ({"scales": [8.0, 16.0], "unscaled_by": 16.0, "factors": [0.5, 1.0]}, "mixed_scales", "count 0.5 times"),
        ({"backward_after_unscale": {"backwards": 1, "factor": 65536.0}}, "backward_after_unscale", "2^16 times"),
        (
            {"clip_while_scaled": {"coefficient": 2e-6, "intended": 0.5, "factor": 4e-6, "scale": 2.0**18}},
            "clip_while_scaled",
            "multiplied by 2^18: they were multiplied by 2e-06 where the limit meant 0.5, so 4e-06",
        ),
        ({"clip": {"kind": "value", "limit": 1.0, "when": "scaled"}}, "clip_while_scaled", "before they were unscaled"),
        ({"loss_scaled": False}, "loss_not_scaled", "had not been multiplied"),
        ({"stepped_outside": ["SGD"]}, "stepped_outside", "SGD stepped without the scaler"),
        ({"unscale": "none"}, "not_unscaled", "nothing had unscaled"),
        ({"closure_with_scaler": True}, "closure_with_scaler", "closure"),
        ({"scaler_recreated": True}, "scaler_recreated", "Another scaler took over"),
        ({"stale_nonfinite": 7}, "stale_nonfinite", "7 parameters"),
        ({"nonfinite_after_unscale": {"where": "clip", "norm": "inf"}}, "nonfinite_after_unscale", "the norm"),
        ({"clip": {"kind": "norm", "backwards_after": 1}}, "early_clip", "1 backward passes came after"),
        ({"zero_grad": False}, "gradients_kept", "still there"),
        ({"not_stepped": ["G", "D"]}, "not_stepped", "G, D had its gradients"),
        ({"skipped_in_kernel": True}, "skipped_in_kernel", "fused"),
    ],
)
def test_what_was_wrong_is_named_with_its_updates_and_its_factor(
    told: dict[str, object], kind: str, words: str
) -> None:
    one = found(**told)
    assert one.kind == kind
    assert words in one.sentence


def test_what_is_wrong_of_one_optimizer_of_several_is_found() -> None:
    (told,) = unusual([facts(0, 0, of={"A": {"loss_scaled": False}, "B": {}})])
    assert told.kind == "loss_not_scaled"


def test_values_that_differ_from_update_to_update_are_told_by_their_ends() -> None:
    items = [facts(step, step, backward_after_unscale={"backwards": 1, "factor": 2.0**step}) for step in range(1, 4)]
    (told,) = unusual(items)
    assert "is 2 to 8 times too large" in told.sentence
    assert told.stretches == [(1, 3)]


def test_stretches_beyond_a_list_are_counted_and_not_listed() -> None:
    items = [facts(2 * i, 2 * i, loss_scaled=False) for i in range(MOST_STRETCHES + 10)]
    (told,) = unusual(items)
    assert (told.updates, len(told.stretches)) == (MOST_STRETCHES + 10, MOST_STRETCHES)
    assert told.last == 2 * (MOST_STRETCHES + 9)


def test_the_first_place_to_turn_non_finite_is_told_once_with_how_often() -> None:
    events = [
        event(4, "nonfinite", where="backward", name="head", count=3),
        event(7, "nonfinite", where="forward", name="block.1.norm", count=896),
        event(9, "nonfinite", where="forward", name="block.1.norm", count=1),
    ]
    forward, backward = origins(events)
    assert forward.sentence == (
        "The forward of block.1.norm (896 values) was the first to turn non-finite at update 7, "
        "and 1 more time up to update 9."
    )
    assert (forward.severity, backward.severity) == ("warning", "info")


def test_the_model_itself_has_a_name() -> None:
    (told,) = origins([event(4, "nonfinite", where="forward", name="", count=1)])
    assert told.sentence.startswith("The forward of the model (1 value) ")


def test_a_name_with_braces_is_only_a_name() -> None:
    (told,) = origins([event(4, "nonfinite", where="forward", name="{name.x}", count=1)])
    assert "{name.x}" in told.sentence


@pytest.mark.parametrize(
    "odd",
    [None, [], {}, [[1]], {"a": {"b": 1}}, "<b>", True, -1, 10**400, float("nan")],
    ids=["null", "list", "object", "nested", "deep", "text", "flag", "negative", "huge", "nan"],
)
def test_facts_of_any_shape_are_told_without_an_error(odd: object) -> None:
    inside = dict.fromkeys(["coefficient", "intended", "factor", "scale", "backwards", "where", "kind", "limit"], odd)
    names = ["micro_batches", "zero_grad", "unscale", "scales", "factors", "backward_after_unscale", "clip"]
    names += ["clip_while_scaled", "stale_nonfinite", "stepped_outside", "not_stepped", "scheduler", "of", "optimizers"]
    for item in (facts(0, 1, **dict.fromkeys(names, odd)), facts(0, 1, **dict.fromkeys(names, inside))):
        told, usual = told_apart([item])
        assert all(each.sentence for each in told)
        assert ordinary([item], detail({}), {"autocast": odd}, usual)
        scheduler_of([item])
        micro_batches_of([item])
