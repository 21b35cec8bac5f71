"""Which measures the heat map of layers shows, and how each is told: its heading, its numbers, its colours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scalescope_server.layer_rows import LayerMeasure

# share: from nothing to most. count, log2: by their logarithm. ratio: pale where a step is of a usual size.
# octaves: little headroom is what matters.
Scale = Literal["share", "count", "log2", "ratio", "octaves"]

Group = Literal["Gradients", "Updates", "Modules", "Reference probe"]


@dataclass(frozen=True, slots=True)
class MeasurePlan:
    """``meaning``: what a number is; ``rows``: what a row is called; ``low``: the lowest value is the one to name."""

    title: str
    meaning: str
    scale: Scale
    group: Group = "Gradients"
    rows: Literal["layer", "module"] = "layer"

    @property
    def low(self) -> bool:
        return self.scale == "octaves"


MEASURES: dict[LayerMeasure, MeasurePlan] = {
    "subnormal_share": MeasurePlan(
        "Gradients below the smallest normal number", "share of all elements, as they stood scaled", "share"
    ),
    "zero_share": MeasurePlan("Gradients that are exactly zero", "share of all elements", "share"),
    "nonfinite": MeasurePlan("Infinite and NaN gradients", "count of elements", "count"),
    "flush_share": MeasurePlan(
        "Gradients that a cast to fp16 would flush", "lower bound, share of the non-zeros, at their scale", "share"
    ),
    "subnormal_energy": MeasurePlan(
        "Gradient energy below the smallest normal number", "upper bound, share of the sum of squares", "share"
    ),
    "flush_energy": MeasurePlan(
        "Gradient energy that a cast to fp16 would flush", "upper bound, share of the sum of squares", "share"
    ),
    "amax": MeasurePlan("Largest gradient", "magnitude divided by the scale", "log2"),
    "norm": MeasurePlan("Gradient norm", "root mean square over the samples, divided by the scale", "log2"),
    "update_ratio": MeasurePlan(
        "Update ratio",
        "norm of the update over norm of the weights; green from 1/10,000 to 1/100, where most trainings are",
        "ratio",
        "Updates",
    ),
    "absorbed_share": MeasurePlan(
        "Updates that the weights' format absorbs",
        "share of the intended updates that round to nothing; for fp32 weights, in a bf16 copy",
        "share",
        "Updates",
    ),
    "unchanged_share": MeasurePlan(
        "Weights that did not change", "share of the elements with a non-zero gradient", "share", "Updates"
    ),
    "forward_headroom": MeasurePlan(
        "Headroom of outputs",
        "octaves from the largest output to the format's largest number",
        "octaves",
        "Modules",
        "module",
    ),
    "grad_output_headroom": MeasurePlan(
        "Headroom of output gradients",
        "octaves from the largest scaled gradient of an output to the format's largest number",
        "octaves",
        "Modules",
        "module",
    ),
    "forward_amax": MeasurePlan("Largest output", "magnitude", "log2", "Modules", "module"),
    "grad_output_amax": MeasurePlan(
        "Largest output gradient", "magnitude divided by the scale", "log2", "Modules", "module"
    ),
    "true_underflow": MeasurePlan(
        "True underflow",
        "zero in the training's precision, share of the non-zeros of the fp32 reference",
        "share",
        "Reference probe",
    ),
}
