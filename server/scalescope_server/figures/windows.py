"""What an ordinary window of a run looks like, in words.

A line tells one fact: what most windows have in common, and what others had instead. Windows in which something
was wrong are told in :mod:`.unusual`, and count here only where there are no others.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from scalescope_server.figures.chart import amount
from scalescope_server.store.records import FactsRow, RunDetail

Facts = Mapping[str, object]

# What others had instead is told of so many.
_MOST_VARIANTS = 3
# What has no such size is no number of backward passes.
_MOST_PASSES = 2**40
_TEXT_ROOM = 60

_CLEARED = {
    True: "cleared before the first backward",
    False: "kept from the window before",
    None: "not known whether cleared",
}
_UNSCALE = {
    "explicit": "by unscale_(), called by the loop",
    "implicit": "inside scaler.step()",
    "none": "never: the scaler took no part",
}
_FOLLOWS = {
    "attempted": "follows attempted updates",
    "applied": "follows applied updates",
    "unknown": "no skip has told yet which updates it follows",
}


class FactLine(Struct, frozen=True):
    """``label``: what it is about; ``text``: how it is in most windows; ``beside``: how it was in others, or empty."""

    label: str
    text: str
    beside: str


class Scheduler(Struct, frozen=True):
    """The scheduler of the last window: its class, and the clock it follows (attempted, applied, unknown)."""

    name: str
    follows: str


def ordinary(items: Sequence[FactsRow], detail: RunDetail, setup: Facts, usual: Sequence[FactsRow]) -> list[FactLine]:
    """The facts of ``usual`` windows, or of all ``items`` where there is none such, and what holds of the set-up."""
    if not items:
        return []
    counted: dict[str, Counter[str]] = {}
    for item in usual or items:
        for label, text in _lines(item.facts, detail):
            counted.setdefault(label, Counter())[text] += length(item)
    lines = [_line(label, texts) for label, texts in counted.items()]
    return [*lines, *(FactLine(label, text, "") for label, text in _set_up(items[-1].facts, detail, setup))]


def scheduler_of(items: Sequence[FactsRow]) -> Scheduler | None:
    for item in reversed(items):
        told = item.facts.get("scheduler")
        if isinstance(told, dict):
            return Scheduler(str(told.get("class", "scheduler")), str(told.get("follows", "unknown")))
    return None


def micro_batches_of(items: Iterable[FactsRow]) -> int | None:
    """Backward passes of all windows; None where not all are known."""
    total = 0
    for item in items:
        told = item.facts.get("micro_batches")
        counts = list(told.values()) if isinstance(told, dict) else [told]
        if not all(isinstance(count, int) and 0 <= count < _MOST_PASSES for count in counts):
            return None
        total += max((count for count in counts if isinstance(count, int)), default=0) * length(item)
    return total


def length(item: FactsRow) -> int:
    """How many updates an item stands for."""
    return item.last_step - item.first_step + 1


def parts_of(facts: Facts) -> Iterator[tuple[str, Facts]]:
    """The facts of each optimizer's window by its name; those of the only one by ""."""
    own = facts.get("of")
    if not isinstance(own, dict) or not own:
        yield "", facts
        return
    common = {name: fact for name, fact in facts.items() if name != "of"}
    for name, part in own.items():
        yield str(name), common | (part if isinstance(part, dict) else {})


def _line(label: str, texts: Counter[str]) -> FactLine:
    (text, _), *others = texts.most_common(_MOST_VARIANTS + 1)
    beside = "; ".join(f"{other} in {updates(count)}" for other, count in others)
    return FactLine(label, text, beside)


def plain_value(value: object) -> object:
    """``value`` if it is None or a finite number, else its text: a trainer may tell anything."""
    is_number = isinstance(value, int | float) and abs(value) <= sys.float_info.max
    return value if value is None or is_number else str(value)[:_TEXT_ROOM]


def updates(count: int) -> str:
    return f"{count:,} update{'s' if count != 1 else ''}"


def _lines(facts: Facts, detail: RunDetail) -> Iterator[tuple[str, str]]:
    yield "micro-batches", _micro_batches(facts.get("micro_batches"))
    for name, part in parts_of(facts):
        of = f" of {name}" if name else ""
        yield f"gradients{of}", _CLEARED[_flag(part.get("zero_grad"))]
        if detail.scaler is not None:
            yield f"unscaled{of}", _UNSCALE.get(str(part.get("unscale")), "not known")
        yield f"clipped{of}", _clip(part)
    yield "optimizers", _optimizers(facts, detail)
    if facts.get("no_sync"):
        yield "ranks", "exchange held back under no_sync()"


def _set_up(newest: Facts, detail: RunDetail, setup: Facts) -> Iterator[tuple[str, str]]:
    told = newest.get("scheduler")
    if isinstance(told, dict):
        steps, follows = told.get("steps"), _FOLLOWS.get(str(told.get("follows")), "")
        yield "scheduler", f"{told.get('class')}, {steps} step{'s' if steps != 1 else ''} an update; {follows}"
    elif detail.summary.last_step is not None:
        yield "scheduler", "none was heard"
    autocast = setup.get("autocast")
    if isinstance(autocast, dict) and autocast:
        yield "autocast", ", ".join(f"{'off' if form is None else form} on {on}" for on, form in autocast.items())


def _micro_batches(told: object) -> str:
    if isinstance(told, dict):
        return ", ".join(f"{name} {'not known' if n is None else n}" for name, n in told.items())
    return "not known" if told is None else str(told)


def _flag(told: object) -> bool | None:
    return told if isinstance(told, bool) else None


def _clip(part: Facts) -> str:
    told = part.get("clip")
    if not isinstance(told, dict):
        return "not at all"
    limit = "" if told.get("limit") is None else f" at {amount(told['limit'])}"
    when = {"scaled": ", while scaled", "unscaled": ", after unscaling" if "unscale" in part else ""}
    calls = f", in {told['calls']} calls" if told.get("calls") not in (None, 1) else ""
    raises = ", raises if it is not finite" if part.get("error_if_nonfinite") else ""
    return f"by {told.get('kind')}{limit}{when.get(str(told.get('when')), '')}{calls}{raises}"


def _optimizers(facts: Facts, detail: RunDetail) -> str:
    stepped = facts.get("optimizers")
    if isinstance(stepped, list):
        return f"only {', '.join(map(str, stepped))}"
    return ", ".join(str(optimizer.get("name")) for optimizer in detail.optimizers) or "not known"
