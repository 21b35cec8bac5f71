"""What a tally counts, and how two of them become one: sums add, maxima take the larger.

Every column is a sum or a maximum over elements, so shards, ranks and time at one scale merge exactly; shares,
ratios and norms are made when they are read.

Of a parameter, at an update (``numerics.md`` section 4):

- ``looked``: elements that the others rest on: all of them, or runs of 16 at equal distances.
- ``update_squares``, ``weight_squares``: of d = after - before and of the weights before, summed; where not all were
  looked at, the sum over those times numel / looked.
- ``with_gradient``, ``unchanged``: elements with a non-zero gradient, and those of them that did not change.
- ``intended``: elements whose intended update d* is finite and not zero (d itself in fp32 and float64, else
  recomputed); ``absorbed_fp16``, ``absorbed_bf16``: those of them that a weight in that format would not have felt.

Of a module, in the sampled micro-batch: ``forward_*`` over its outputs, ``grad_output_*`` over the gradients of
its outputs, as they stood, scaled: ``amax`` of the finite values, ``nonfinite`` and ``numel``.

Of a parameter in a reference probe (section 8), gradients unscaled in float64: ``reference_nonzero``, ``lost``
(non-zero in the reference, zero in the training's precision), and the sums of squares and products that the
relative error and the cosine are made of. ``own_nonfinite``, ``reference_nonfinite``: elements that are infinite
or NaN in either; all other columns leave them out.
"""

from __future__ import annotations

from typing import Literal

Fold = Literal["sum", "max"]

PARAMETER_TALLIES: dict[str, Fold] = {
    "update_squares": "sum",
    "weight_squares": "sum",
    "looked": "sum",
    "with_gradient": "sum",
    "unchanged": "sum",
    "intended": "sum",
    "absorbed_fp16": "sum",
    "absorbed_bf16": "sum",
}
MODULE_TALLIES: dict[str, Fold] = {
    "forward_amax": "max",
    "forward_nonfinite": "sum",
    "forward_numel": "sum",
    "grad_output_amax": "max",
    "grad_output_nonfinite": "sum",
    "grad_output_numel": "sum",
}
PROBE_TALLIES: dict[str, Fold] = {
    "reference_nonzero": "sum",
    "lost": "sum",
    "error_squares": "sum",
    "reference_squares": "sum",
    "own_squares": "sum",
    "products": "sum",
    "own_nonfinite": "sum",
    "reference_nonfinite": "sum",
}
