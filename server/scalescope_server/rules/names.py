"""The names a sentence may use: the series and measures of every run, what they are told in, and findings' codes."""

from __future__ import annotations

from typing import Literal, NamedTuple

# "flag": 0 or 1; "any": not known, so it fits every unit (a series of the user's own).
Quantity = Literal["number", "share", "ms", "flag", "any"]
Rows = Literal["layer", "module"]


class Named(NamedTuple):
    """A measure of layers: what its values are, and whether its rows are parameters or modules."""

    quantity: Quantity
    rows: Rows = "layer"


SERIES: dict[str, Quantity] = {
    "scale": "number",
    "skipped": "flag",
    "applied": "flag",
    "attempted": "flag",
    "growth_tracker": "number",
    "loss": "number",
    "grad_norm": "number",
    "learning_rate": "number",
    "amax": "number",
    "zero_share": "share",
    "subnormal_share": "share",
    "flush_share": "share",
    # A ratio of norms, which people write either way: 1e-3 or 0.1%.
    "update_ratio": "any",
    "clip_coefficient": "any",
    "tokens": "number",
    "scheduler_steps": "number",
    "step_ms": "ms",
    "forward_ms": "ms",
    "backward_ms": "ms",
    "optimizer_ms": "ms",
    "hook_ms": "ms",
    # Records that the hook says it dropped at this update; 0 at any other.
    "dropped": "number",
}

MEASURES: dict[str, Named] = {
    "zero_share": Named("share"),
    "subnormal_share": Named("share"),
    "flush_share": Named("share"),
    "subnormal_energy": Named("share"),
    "flush_energy": Named("share"),
    "nonfinite": Named("number"),
    "amax": Named("number"),
    "norm": Named("number"),
    "update_ratio": Named("any"),
    "absorbed_share": Named("share"),
    "unchanged_share": Named("share"),
    "true_underflow": Named("share"),
    "forward_amax": Named("number", "module"),
    "forward_headroom": Named("number", "module"),
    "grad_output_amax": Named("number", "module"),
    "grad_output_headroom": Named("number", "module"),
}

# Each rank tells them of each update; other series are rank 0's.
RANKED = ("scale", "skipped", "applied")
# What ranks are compared in.
COMPARED = ("scale", "skipped")

CODES = (
    "CALIBRATION",
    "HEALTHY_PROBING",
    "SCALE_THRASH",
    "SCALE_DRIFT_DOWN",
    "SCALE_COLLAPSE",
    "SCALE_ZERO",
    "SCALE_RUNAWAY",
    "SCALER_USELESS",
    "SCALER_RECREATED",
    "RESUME_SCALE_MISMATCH",
    "NO_STEP_APPLIED",
    "SKIP_PERIODIC",
)

# Words that stand for themselves at the place of a name: a series that is called so is written in quotes.
RESERVED = frozenset({"when", "and", "or", "not", "no", "in", "is", "of", "by", "for", "keep", "firing"})
