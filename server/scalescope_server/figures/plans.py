"""Which charts over updates there are: their headings, their lines, and what their axes show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# What the axis shows of a value: itself, its logarithm, or its percentage.
Kind = Literal["linear", "log2", "log10", "share"]
Colour = Literal["ink", "quiet", "accent", "overflow", "flush", "warning", "good"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: the series it draws, what it is called, its colour's meaning and its dash."""

    series: str
    label: str
    colour: Colour = "accent"
    dash: Literal["solid", "dash", "dot"] = "solid"


@dataclass(frozen=True, slots=True)
class Level:
    """A value that is drawn across the chart, and what it is called."""

    value: float
    label: str
    colour: Colour
    dash: Literal["solid", "dash", "dot"] = "dash"


@dataclass(frozen=True, slots=True)
class Plan:
    """A chart over updates: its heading, its lines and its axis.

    ``sampled``: known of sampled updates only; ``lacking``: the series that counts how many ranks a point still lacks
    then. ``fold``: what a point tells of several; empty: the last value, in a
    band from the smallest to the largest.
    """

    name: str
    title: str
    lines: tuple[Line, ...]
    kind: Kind = "linear"
    unit: str = ""
    sampled: bool = False
    lacking: str = ""
    levels: tuple[Level, ...] = ()
    fold: str = ""


# Most trainings move their weights by so much an update: far less is lost in formats, far more throws them about.
USUAL_RATIO = (Level(1e-2, "1/100", "quiet", "dot"), Level(1e-4, "1/10,000", "quiet", "dot"))

# The whole, and the parts that :mod:`.times` stacks below it.
TIME_LINES = (
    Line("step_ms", "whole update", "ink"),
    Line("forward_ms", "forward"),
    Line("backward_ms", "backward"),
    Line("optimizer_ms", "optimizer"),
)
# Drawn by :mod:`.hook_cost`, of the share that it is of the whole update.
HOOK_COST = "hook_ms"
PLANS: tuple[Plan, ...] = (
    Plan("loss", "Loss", (Line("loss", "loss", "ink"),)),
    Plan(
        "grad_norm",
        "Gradient norm, unscaled",
        (Line("grad_norm", "norm", "ink"),),
        "log2",
        sampled=True,
        lacking="ranks_missing",
    ),
    Plan("learning_rate", "Learning rate", (Line("learning_rate", "learning rate", "ink"),)),
    Plan(
        "shares",
        "Zero, subnormal and flushed gradients",
        (
            Line("zero_share", "zero, of all", "ink", "dot"),
            Line("subnormal_share", "subnormal, of all", "warning"),
            Line("flush_share", "would flush in fp16, of non-zeros", "flush", "dash"),
        ),
        "share",
        sampled=True,
        lacking="ranks_missing",
    ),
    Plan("step_ms", "Time per update", TIME_LINES, unit=" ms"),
    Plan(HOOK_COST, "What the hook costs, of the time of an update", (Line("hook_ms", "hook", "ink"),), "share"),
    Plan(
        "clip_coefficient",
        "What the norm clip left of the gradient",
        (Line("clip_coefficient", "multiplied by", "ink"),),
        "log10",
    ),
    Plan(
        "update_ratio",
        "Update ratio: norm of the update over norm of the weights",
        (Line("update_ratio", "ratio", "ink"),),
        "log10",
        sampled=True,
        lacking="ranks_missing/update",
        levels=USUAL_RATIO,
    ),
)

# Told elsewhere: by the scale's chart, the tiles and the clocks.
_TOLD = {"scale", "skipped", "applied", "attempted", "growth_tracker", "tokens", "amax", "scheduler_steps"}
_TOLD |= {"ranks_missing", "ranks_missing/update"}


def plans_for(names: Sequence[str]) -> list[Plan]:
    """The charts that a run with these series has, the user's own series last."""
    present = set(names)
    known = [plan for plan in PLANS if present & {line.series for line in plan.lines}]
    shown = _TOLD | {line.series for plan in PLANS for line in plan.lines}
    own = [Plan(f"own:{name}", name, (Line(name, name, "ink"),)) for name in sorted(present - shown)]
    return known + own
