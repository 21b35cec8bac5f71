"""What may be wrong in a window: how it shows in its facts, and how it is said.

What a window tells is from a trainer, so a fact of another shape than expected is no fact, and never an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from scalescope_server.figures.chart import amount
from scalescope_server.figures.windows import Facts, plain_value

Severity = Literal["critical", "warning", "info"]

# Of an optimizer's name, and how many of them, a sentence has room for.
_NAME_ROOM, _NAMES_ROOM = 60, 4


@dataclass(frozen=True, slots=True)
class Kind:
    """What to look for in the facts of a window: ``read`` answers what it found (one tuple a finding), or nothing;
    ``tell`` makes one sentence of all that was found.
    """

    name: str
    severity: Severity
    title: str
    read: Callable[[Facts], Iterable[tuple[object, ...]]]
    tell: Callable[[Sequence[tuple[object, ...]]], str]


def spread(values: Iterable[object]) -> str:
    """One value as it is, several as "0.25 to 4"; what is not finite by its name."""
    given = list(values)
    numbers = [float(value) for value in given if isinstance(value, int | float)]
    told = [amount(value) for value in ({min(numbers): 0, max(numbers): 0} if numbers else ())]
    return ", ".join(filter(None, [" to ".join(dict.fromkeys(told)), *dict.fromkeys(_texts(given))])) or "not known"


def _texts(values: Iterable[object]) -> Iterator[str]:
    return (value for value in values if isinstance(value, str))


def _names(found: Iterable[tuple[object, ...]]) -> str:
    names = [str(name)[:_NAME_ROOM] for name in dict.fromkeys(name for names in found for name in names)]
    rest = f" and {len(names) - _NAMES_ROOM} more" if len(names) > _NAMES_ROOM else ""
    return ", ".join(names[:_NAMES_ROOM]) + rest


def _part(facts: Facts, name: str) -> Facts:
    found = facts.get(name)
    return {key: plain_value(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _scales(facts: Facts) -> Iterable[tuple[object, ...]]:
    factors = facts.get("factors")
    return [(plain_value(factor),) for factor in factors if factor != 1] if isinstance(factors, list) else []


def _tell_scales(found: Sequence[tuple[object, ...]]) -> str:
    return (
        "Backward passes of one window ran under different scales, and all were divided by one: some gradients "
        f"count {spread(factor for (factor,) in found)} times what they should."
    )


def _late(facts: Facts) -> Iterable[tuple[object, ...]]:
    told = _part(facts, "backward_after_unscale")
    return [(told.get("backwards"), told.get("factor"))] if told else []


def _tell_late(found: Sequence[tuple[object, ...]]) -> str:
    return (
        f"Backward passes ({spread(n for n, _ in found)} a window) ran after unscale_(): what they added to the "
        f"gradients is {spread(factor for _, factor in found)} times too large."
    )


def _clips(facts: Facts) -> Iterable[tuple[object, ...]]:
    told = _part(facts, "clip_while_scaled")
    if told:
        return [(told.get("coefficient"), told.get("intended"), told.get("factor"), told.get("scale"))]
    clip = _part(facts, "clip")
    return [(None, None, None, None)] if clip.get("when") == "scaled" else []


def _tell_clips(found: Sequence[tuple[object, ...]]) -> str:
    known = [each for each in found if each[0] is not None]
    if not known:
        return "Gradients were clipped before they were unscaled: the limit was held against scaled values."
    taken, meant, factor, scale = (spread(each[i] for each in known) for i in range(4))
    return (
        f"Gradients were clipped while multiplied by {scale}: they were multiplied by {taken} where the limit "
        f"meant {meant}, so {factor} of the intended update is left."
    )


def _nonfinite(facts: Facts) -> Iterable[tuple[object, ...]]:
    told = _part(facts, "nonfinite_after_unscale")
    return [(str(told.get("where")), told.get("parameters", told.get("norm")))] if told else []


def _tell_nonfinite(found: Sequence[tuple[object, ...]]) -> str:
    where = {
        "clip": "the norm that was clipped was not finite",
        "step": "gradients were not finite when the optimizer stepped",
        "found later": "weights were found to be not finite at a later skip",
    }
    places = [where.get(str(place), str(place)) for place in dict.fromkeys(place for place, _ in found)]
    return f"The scaler had found all finite, and non-finite values were applied: {'; '.join(places)}."


def _outside(facts: Facts) -> Iterable[tuple[object, ...]]:
    told = facts.get("stepped_outside")
    return [tuple(map(str, told))] if isinstance(told, list) and told else []


def _tell_outside(found: Sequence[tuple[object, ...]]) -> str:
    return (
        f"{_names(found)} stepped without the scaler: its gradients were applied unchecked, scaled ones as they were."
    )


def _idle(facts: Facts) -> Iterable[tuple[object, ...]]:
    told = facts.get("not_stepped")
    return [tuple(map(str, told))] if isinstance(told, list) and told else []


def _stale(facts: Facts) -> Iterable[tuple[object, ...]]:
    return [(plain_value(facts["stale_nonfinite"]),)] if facts.get("stale_nonfinite") else []


def _early(facts: Facts) -> Iterable[tuple[object, ...]]:
    after = _part(facts, "clip").get("backwards_after")
    return [(after,)] if after else []


def _where(name: str, value: object) -> Callable[[Facts], Iterable[tuple[object, ...]]]:
    return lambda facts: [()] if facts.get(name) is value else []


def _not_unscaled(facts: Facts) -> Iterable[tuple[object, ...]]:
    return [()] if facts.get("unscale") == "none" and not facts.get("stepped_outside") else []


def _always(sentence: str) -> Callable[[Sequence[tuple[object, ...]]], str]:
    return lambda _: sentence


KINDS: tuple[Kind, ...] = (
    Kind("mixed_scales", "critical", "Mixed scales in one window", _scales, _tell_scales),
    Kind("backward_after_unscale", "critical", "Backward after unscale_()", _late, _tell_late),
    Kind("clip_while_scaled", "critical", "Clipped while scaled", _clips, _tell_clips),
    Kind(
        "loss_not_scaled",
        "critical",
        "Loss not scaled",
        _where("loss_scaled", False),
        _always(
            "A backward pass ran under the scaler although its loss had not been multiplied by the scale: what it "
            "added was divided all the same, and is too small by the scale."
        ),
    ),
    Kind("stepped_outside", "critical", "Stepped outside the scaler", _outside, _tell_outside),
    Kind(
        "not_unscaled",
        "critical",
        "Stepped without unscaling",
        _not_unscaled,
        _always("An optimizer stepped while a scaler was in use, and nothing had unscaled its gradients."),
    ),
    Kind(
        "closure_with_scaler",
        "critical",
        "Closure with a scaler",
        _where("closure_with_scaler", True),
        _always("scaler.step() was given a closure, which torch refuses: what the closure computes is not unscaled."),
    ),
    Kind(
        "stale_nonfinite",
        "critical",
        "Stale non-finite gradients",
        _stale,
        lambda found: (
            f"Gradients of {spread(n for (n,) in found)} parameters were not finite before the window's first "
            "backward: they were not cleared after a skip, so every following update is skipped too."
        ),
    ),
    Kind("nonfinite_after_unscale", "critical", "Non-finite after unscaling", _nonfinite, _tell_nonfinite),
    Kind(
        "scaler_recreated",
        "warning",
        "Scaler made anew",
        _where("scaler_recreated", True),
        _always(
            "Another scaler took over: it begins at its own scale, and knows nothing of what the one before it "
            "skipped and learnt."
        ),
    ),
    Kind(
        "early_clip",
        "warning",
        "Clipped before the last backward",
        _early,
        lambda found: (
            f"{spread(n for (n,) in found)} backward passes came after the clip: the limit was held against a part "
            "of the gradient."
        ),
    ),
    Kind(
        "gradients_kept",
        "warning",
        "Gradients not cleared",
        _where("zero_grad", False),
        _always("Gradients of the window before were still there at the first backward, and were added to."),
    ),
    Kind(
        "not_stepped",
        "warning",
        "Unscaled and never stepped",
        _idle,
        lambda found: f"{_names(found)} had its gradients unscaled and did not step.",
    ),
    Kind(
        "skipped_in_kernel",
        "info",
        "Skipped inside a fused kernel",
        _where("skipped_in_kernel", True),
        _always("A fused optimizer skipped by itself: its step hooks ran although nothing was applied."),
    ),
)
