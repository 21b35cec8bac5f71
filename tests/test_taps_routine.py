"""Routine updates: whatever a loop does, what is told of it is the same as if every update were heard in full."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scalescope import wire
from scalescope.taps import loop as loops
from scalescope.taps.routine import lane, step_lane
from scalescope.taps.routine import notes as routine
from scalescope.taps.routine import scaler_lane as lanes

from tests.moving_loop import PLAIN, Loop, Move
from tests.small_training import columns, watching, windows

torch.set_num_threads(1)

# What every update of the clock differs in, and which of them are dropped from a comparison.
_TIMES = {"step_ms", "hook_ms", "forward_ms", "backward_ms", "optimizer_ms"}
_NEVER = 10**9


class Told(NamedTuple):
    """All that is told of a loop but times, in an order of its own."""

    rows: dict[str, dict[int, float]]
    windows: dict[int, dict[str, object]]
    events: Sequence[object]
    samples: Sequence[object]


ORDINARY = {"micro_batches": 1, "zero_grad": True, "unscale": "implicit"}


def recorded(moves: Sequence[Move], optimizers: int, *, scaled: bool = True, calm: bool = False) -> Told:
    """``calm``: nothing is sampled after the first update, and the scale does not grow."""
    loop = Loop(optimizers, scaled, _NEVER if calm else 7)
    every = _NEVER if calm else 10
    with watching(loop.model, loop.optimizer, loop.scaler if scaled else None, every=every) as watched:
        loop.watched = watched
        for move in moves:
            loop.update(move)
        records = watched.end()
    rows = {name: column for name, column in columns(records).items() if name not in _TIMES}
    events = [
        (record.step, record.kind, json.loads(record.data)) for record in records if isinstance(record, wire.Event)
    ]
    samples = [(record.step, record.reason, record.table) for record in records if isinstance(record, wire.Sample)]
    return Told(rows, windows(records), events, samples)


def as_far_as_known(told: Told, noted: Told) -> Told:
    """Where several passes ran unheard, and are not all in the gradient, it is not known how many are."""
    windows = {step: dict(facts) for step, facts in told.windows.items()}
    for step, facts in noted.windows.items():
        windows[step] |= {name: None for name in ("micro_batches", "zero_grad") if facts.get(name, ...) is None}
    return told._replace(windows=windows)


def routine_updates(
    moves: Sequence[Move], patch: pytest.MonkeyPatch, optimizers: int = 1, *, scaled: bool = True
) -> list[int]:
    """The updates that were noted down and nothing else."""
    closed: list[int] = []
    close: Callable[..., int] = loops.Loop.close_routine

    def closing(self: loops.Loop, *args: object) -> int:
        closed.append(close(self, *args))
        return closed[-1]

    patch.setattr(loops.Loop, "close_routine", closing)
    recorded(moves, optimizers, scaled=scaled)
    return closed


def in_full(
    moves: Sequence[Move], patch: pytest.MonkeyPatch, optimizers: int = 1, *, scaled: bool = True, calm: bool = False
) -> Told:
    with patch.context() as patched:
        patched.setattr(routine, "_REHEARSALS", _NEVER)
        return recorded(moves, optimizers, scaled=scaled, calm=calm)


def in_a_step_lane(moves: Sequence[Move], patch: pytest.MonkeyPatch) -> tuple[int, Told]:
    """How many updates of a loop without a scaler closed in a lane, and what was told."""
    closed: list[bool] = []
    stepped = step_lane.StepLane.stepped

    def stepping(self: step_lane.StepLane, optimizer: torch.optim.Optimizer) -> bool:
        closed.append(stepped(self, optimizer))
        return closed[-1]

    with patch.context() as patched:
        patched.setattr(step_lane.StepLane, "stepped", stepping)
        told = recorded(moves, 1, scaled=False, calm=True)
    return sum(closed), told


def made_lanes(patch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Asks how many lanes were made from now on: one, where none was left before the end."""
    made: list[lane.Lane] = []
    init = lane.Lane.__init__

    def making(self: lane.Lane, *given: Any) -> None:
        made.append(self)
        init(self, *given)

    patch.setattr(lane.Lane, "__init__", making)
    return lambda: len(made)


STYLES = {
    "implicit": PLAIN,
    "clipped": Move(clip="after"),
    "unscaled": Move(unscale=True),
    "accumulated": Move(micro_batches=3),
    "logged": Move(logs="after update"),
    "logged early": Move(logs="after backward"),
    "scheduled": Move(schedule="after update"),
    "scheduled early": Move(schedule="before update"),
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("optimizers", [1, 2])
def test_most_updates_of_a_usual_loop_are_routine_and_told_as_if_heard_in_full(
    style: str, optimizers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = [STYLES[style]] * 30
    told = in_full(moves, monkeypatch, optimizers)
    assert recorded(moves, optimizers) == told
    noted = routine_updates(moves, monkeypatch, optimizers)
    # Without the first, which are rehearsed, those that are sampled (0, 10, 20), and those after which the scale grows.
    assert len(noted) >= 17
    assert not {0, 10, 20} & set(noted)


@pytest.mark.parametrize("style", [style for style in STYLES if style not in ("unscaled", "accumulated")])
def test_ordinary_updates_go_in_a_lane_until_one_is_not(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    updated = lanes.ScalerLane.updated

    def updating(self: lanes.ScalerLane, scaler: torch.amp.GradScaler) -> bool:
        as_ever = updated(self, scaler)
        closed.append(self.updates)
        return as_ever

    monkeypatch.setattr(lanes.ScalerLane, "updated", updating)
    moves = [STYLES[style]] * 20
    told = recorded(moves, 1, calm=True)
    assert len(closed) >= 12
    assert not lanes.LANES
    assert told == in_full(moves, monkeypatch, calm=True)


@pytest.mark.parametrize("style", [style for style in STYLES if style not in ("unscaled", "accumulated")])
def test_so_do_they_without_a_scaler(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moves = [STYLES[style]] * 20
    closed, told = in_a_step_lane(moves, monkeypatch)
    assert closed >= 12
    assert told == in_full(moves, monkeypatch, scaled=False, calm=True)


@pytest.mark.parametrize("scaled", [True, False], ids=["with a scaler", "without"])
def test_a_closure_that_there_is_none_of_is_no_reason_to_leave_it(
    scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As libraries call a step."""

    def step(self: Loop, move: Move) -> None:
        assert move.steps
        self.scaler.step(self.optimizer[0], None)

    moves = [PLAIN] * 20
    as_torch_says = recorded(moves, 1, scaled=scaled, calm=True)
    monkeypatch.setattr(Loop, "step", step)
    made = made_lanes(monkeypatch)
    assert recorded(moves, 1, scaled=scaled, calm=True) == as_torch_says
    assert made() == 1


@pytest.mark.parametrize("style", [style for style in STYLES if style not in ("unscaled", "accumulated")])
def test_so_are_they_without_a_scaler_where_one_backward_follows_the_other(
    style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = [STYLES[style]] * 30
    told = in_full(moves, monkeypatch, scaled=False)
    assert recorded(moves, 1, scaled=False) == told
    noted = routine_updates(moves, monkeypatch, scaled=False)
    assert len(noted) >= 20
    assert not {0, 10, 20} & set(noted)


@pytest.mark.parametrize("style", ["manual", "zeroed in place", "twice"])
def test_a_loop_in_which_gradients_do_not_tell_enough_is_heard_in_full_for_good(
    style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = Move(zero="place") if style == "zeroed in place" else Move(twice=True)
    if style == "manual":
        halved = Loop.clip

        def clip(self: Loop, move: Move, place: str) -> None:
            if place == "before":
                for parameter in self.model.parameters():
                    assert parameter.grad is not None
                    parameter.grad.mul_(0.5)
            halved(self, move, place)

        monkeypatch.setattr(Loop, "clip", clip)
        move = Move(micro_batches=2)
    moves = [move] * 24
    assert recorded(moves, 1) == in_full(moves, monkeypatch)
    assert routine_updates(moves, monkeypatch) == []


def test_of_passes_that_nobody_stepped_with_it_is_not_known_how_many_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    moves = [PLAIN] * 6 + [Move(steps=False), Move(unscaled_before=True), PLAIN, PLAIN]
    told, noted = in_full(moves, monkeypatch), recorded(moves, 1)
    assert (told.windows[6]["micro_batches"], noted.windows[6]["micro_batches"]) == (2, None)
    assert noted == as_far_as_known(told, noted)


odd = st.sampled_from(
    [
        PLAIN,
        Move(micro_batches=2),
        Move(zero=""),
        Move(zero="place"),
        Move(clip="before"),
        Move(clip="after"),
        Move(clip="value"),
        Move(unscale=True),
        Move(overflow=True),
        Move(overflow=True, clip="after"),
        Move(overflow=True, micro_batches=2),
        Move(logs="before backward"),
        Move(logs="after backward"),
        Move(schedule="before update"),
        Move(schedule="after update"),
        Move(unscale=True, late=True),
        Move(unscaled_before=True),
        Move(between=True),
        Move(steps=False, unscale=True),
        Move(steps=False),
        Move(outside=True, steps=False),
        Move(outside=True),
        Move(sets=True),
        Move(micro_batches=0, zero=""),
    ]
)


@given(
    style=st.sampled_from(list(STYLES.values())),
    moves=st.lists(st.one_of(st.none(), st.none(), st.none(), odd), max_size=24),
    optimizers=st.sampled_from([1, 2]),
    calm=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_whatever_comes_in_between_is_told_as_if_every_update_were_heard_in_full(
    style: Move, moves: list[Move | None], optimizers: int, calm: bool
) -> None:
    course = [style] * 6 + [move or style for move in moves]
    with pytest.MonkeyPatch.context() as patch:
        # So that it is a routine again soon after an odd one.
        patch.setattr(routine, "REST", 1)
        patch.setattr(routine, "_REHEARSALS", 1)
        noted = recorded(course, optimizers, calm=calm)
        told = in_full(course, patch, optimizers, calm=calm)
    assert noted == as_far_as_known(told, noted)


plainly_odd = st.sampled_from(
    [
        PLAIN,
        Move(micro_batches=2),
        Move(zero=""),
        Move(zero="place"),
        Move(clip="after"),
        Move(clip="value"),
        Move(overflow=True),
        Move(overflow=True, clip="after"),
        Move(logs="before backward"),
        Move(logs="after backward"),
        Move(schedule="before update"),
        Move(schedule="after update"),
        Move(steps=False),
        Move(clip="after", steps=False),
        Move(outside=True),
        Move(closure=True, steps=False),
        Move(closure=True),
        Move(twice=True),
        Move(micro_batches=0, zero=""),
        Move(micro_batches=0),
    ]
)


@given(
    style=st.sampled_from([PLAIN, STYLES["clipped"], STYLES["logged"], STYLES["scheduled"]]),
    moves=st.lists(st.one_of(st.none(), st.none(), st.none(), plainly_odd), max_size=24),
    calm=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_so_is_it_without_a_scaler(style: Move, moves: list[Move | None], calm: bool) -> None:
    course = [style] * 6 + [move or style for move in moves]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routine, "REST", 1)
        patch.setattr(routine, "_REHEARSALS", 1)
        noted = recorded(course, 1, scaled=False, calm=calm)
        told = in_full(course, patch, scaled=False, calm=calm)
    assert noted == as_far_as_known(told, noted)


def test_what_changed_a_gradient_between_two_losses_is_told_though_no_hook_saw_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Left without a step, and set to zero in place before the next loss is scaled.
    moves = [PLAIN] * 6 + [Move(steps=False), Move(zero="place"), PLAIN]
    told = in_full(moves, monkeypatch)
    assert recorded(moves, 1) == told
    assert told.windows == {step: {**ORDINARY, "micro_batches": None if step == 6 else 1} for step in range(8)}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("odd", [Move(unscaled_before=True), Move(between=True)], ids=["unscaled before", "between"])
def test_a_pass_where_none_belongs_is_told_as_it_is(style: str, odd: Move, monkeypatch: pytest.MonkeyPatch) -> None:
    moves = [*[STYLES[style]] * 8, odd, STYLES[style]]
    assert recorded(moves, 1, calm=True) == in_full(moves, monkeypatch, calm=True)


def test_an_update_that_is_not_clipped_lends_its_facts_to_none_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    moves = [Move(clip="after")] * 7 + [Move(unscale=True), Move(clip="after")]
    assert recorded(moves, 1) == in_full(moves, monkeypatch)


def test_gradients_that_were_thrown_away_take_their_clip_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    # As where a norm too large makes a loop go on without a step.
    moves = [Move(clip="after")] * 6 + [Move(clip="after", steps=False), Move(clip="after")]
    told = recorded(moves, 1, scaled=False)
    assert told.windows[6]["clip"] == {"kind": "norm", "limit": 0.01, "when": "unscaled", "calls": 1}
    assert in_full(moves, monkeypatch, scaled=False).windows[6]["clip"] == told.windows[6]["clip"]


def test_a_loop_that_clips_and_never_steps_keeps_no_gradient() -> None:
    loop = Loop(scaled=False)
    last = loop.model.get_parameter("0.weight")
    kept: list[weakref.ref[torch.Tensor]] = []
    with watching(loop.model, loop.optimizer):
        for _ in range(6):
            loop.update(Move(clip="after"))
        for _ in range(600):
            loop.update(Move(clip="after", steps=False))
            assert last.grad is not None
            kept.append(weakref.ref(last.grad))
    assert sum(gradient() is not None for gradient in kept) < 300


def test_where_zeroing_is_forgotten_once_the_gradient_that_is_left_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    zeroed = Loop.step

    def step(self: Loop, move: Move) -> None:
        zeroed(self, move)
        if move.zero != "forgotten":
            self.optimizer[0].zero_grad()

    monkeypatch.setattr(Loop, "step", step)
    moves = [Move(zero="")] * 12 + [Move(zero="forgotten"), *[Move(zero="")] * 3]
    assert recorded(moves, 1) == in_full(moves, monkeypatch)


def test_no_gradient_is_kept_beyond_its_update() -> None:
    loop = Loop()
    last = loop.model.get_parameter("0.weight")
    with watching(loop.model, loop.optimizer, loop.scaler, every=2):
        for _ in range(12):
            loop.update(Move(clip="after"))
            gradient = weakref.ref(last.grad)
            loop.optimizer[0].zero_grad()
            assert gradient() is None
