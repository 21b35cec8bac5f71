"""The facts of a window, as JSON can hold them. In an ordinary loop they are the same from update to update.

What does not apply is left out, and nothing is told that varies where all is well: such numbers are columns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from scalescope.readback import Value, number
from scalescope.taps.windows.window import Clips, Run, Window

Told = dict[str, object]

# What a window of many scales spells out of them.
_MAX_TOLD = 256


def told_of(windows: Mapping[str, Window]) -> Told:
    """The facts of an update's windows, by the optimizer's name.

    What all have in common is told once. What differs stands under ``of``, by name; passes as well, so that one
    loop's are a number and those of several optimizers a number each.
    """
    parts = {name: _told(window) for name, window in windows.items()}
    if len(parts) == 1:
        return next(iter(parts.values()))
    common = _common(list(parts.values()))
    told: Told = dict(common)
    if parts:
        told["micro_batches"] = {name: part["micro_batches"] for name, part in parts.items()}
    rest = {name: own for name, part in parts.items() if (own := _rest(part, told))}
    return told | ({"of": rest} if rest else {})


def plain(value: float) -> float | str:
    """JSON has no NaN or Infinity: they are told as "nan", "inf", "-inf"."""
    return value if math.isfinite(value) else str(value)


def overflowed(found: Sequence[Value]) -> bool:
    return any(number(value) > 0 for value in found)


def _told(window: Window) -> Told:
    told: Told = {"micro_batches": window.micro_batches, "zero_grad": window.fresh}
    if window.unscale is not None:
        told["unscale"] = window.unscale
        told |= _scales(window)
    if window.late:
        told |= _late(window)
    # What was clipped while scaled comes last, and is what is told where both happened.
    for clips in sorted(window.clips, key=lambda clips: clips.when, reverse=True):
        told |= _clip(clips, window)
    # Gradients that were thrown away after they were looked at are not in this window.
    if not window.fresh and (stale := _sum(window.stale)):
        told["stale_nonfinite"] = stale
    if not window.loss_scaled:
        told["loss_scaled"] = False
    if window.no_sync:
        told["no_sync"] = True
    if window.hooked and overflowed(window.found):
        told["skipped_in_kernel"] = True
    return told | _nonfinite(window)


def _scales(window: Window) -> Told:
    """The scales, where the window's passes are not all in the units that they were divided by."""
    if all(scale is window.unscaled_by for scale, _ in window.runs):
        return {}
    scales = _spelled(window.runs)
    by = None if window.unscaled_by is None else number(window.unscaled_by)
    if len(set(scales) | ({by} - {None})) < 2:
        return {}
    told: Told = {"scales": [plain(scale) for scale in scales[:_MAX_TOLD]]}
    if by is not None:
        told["unscaled_by"] = plain(by)
        told["factors"] = [plain(scale / by) if by else "nan" for scale in scales[:_MAX_TOLD]]
    return told


def _late(window: Window) -> Told:
    """Passes after ``unscale_``: their gradients are the scale times larger than what they were added to."""
    backwards, last = sum(count for _, count in window.late), window.late[-1][0]
    factor = None if last is None else plain(number(last))
    return {"backward_after_unscale": {"backwards": backwards, "factor": factor}}


def _clip(clips: Clips, window: Window) -> Told:
    limit = None if clips.limit is None else plain(clips.limit)
    told: Told = {"kind": clips.kind, "limit": limit, "when": clips.when, "calls": clips.calls}
    after = window.backwards + sum(count for _, count in window.late) - clips.backwards
    told |= {"backwards_after": after} if after > 0 else {}
    return {"clip": told} | _clip_while_scaled(clips)


def _clip_while_scaled(clips: Clips) -> Told:
    """The one of the calls that took most, beside what it would have taken of the true gradients."""
    scale = 1.0 if clips.scale is None else number(clips.scale)
    applied = clips.factors()
    if clips.scale is None or not scale or not applied:
        return {}
    pairs = zip(applied, clips.factors(scale), strict=True)
    taken, intended = min(pairs, key=lambda pair: (not math.isnan(pair[0]), pair[0]))
    factor = taken / intended if intended else math.nan
    return {
        "clip_while_scaled": {
            "coefficient": plain(taken),
            "intended": plain(intended),
            "factor": plain(factor),
            "scale": plain(scale),
        }
    }


def _nonfinite(window: Window) -> Told:
    """Where values turned non-finite after the scaler had looked and found all finite, so that they were applied."""
    if window.unscaled_by is None:
        return {}
    if not overflowed(window.found):
        norms = [number(norm) for clips in window.clips if clips.when == "unscaled" for norm in clips.norms]
        bad = [norm for norm in norms if not math.isfinite(norm)]
        if bad:
            return {"nonfinite_after_unscale": {"where": "clip", "norm": plain(bad[0])}}
        count = _sum(window.at_step)
        return {"nonfinite_after_unscale": {"where": "step", "parameters": count}} if count else {}
    count = _sum(window.in_weights)
    found = {"where": "found later", "parameters": count, "last_finite": window.last_clean}
    return {"nonfinite_after_unscale": found} if count else {}


def _spelled(runs: Sequence[Run]) -> list[float]:
    """One scale for each pass, of as many as are told."""
    each = ((number(scale), count) for scale, count in runs if scale is not None)
    spelled = itertools.chain.from_iterable(itertools.repeat(scale, count) for scale, count in each)
    return list(itertools.islice(spelled, _MAX_TOLD))


def _sum(counts: Sequence[Value]) -> int:
    return sum(int(number(count)) for count in counts)


def _common(parts: Sequence[Told]) -> Told:
    first = parts[0] if parts else {}
    return {name: fact for name, fact in first.items() if all(part.get(name, part) == fact for part in parts)}


def _rest(part: Told, told: Told) -> Told:
    return {name: fact for name, fact in part.items() if name not in told}
