"""What the hook recorded, held against the truth. Each part answers with the words for what it compared."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import pytest
import torch
from scalescope import wire
from scalescope.packing import unpack
from scalescope.rows import indexes, tallied

from tests.loops.counting import Count
from tests.loops.running import EVERY
from tests.loops.windowing import expected_windows, nearly
from tests.small_training import columns, events, layouts, samples, steps

# The lowest magnitude that is not counted as zero.
_TINY = 2.0**-126


def compare(records: Sequence[wire.Record], count: Count) -> list[str]:
    """What was compared, in words.

    Raises:
        AssertionError: where a recorded fact is not the counted one.
    """
    told = (_updates, _skips, _scales, _rates, _losses)
    measured = (_unmeasured,) if count.replica else (_gradients, _micro_batches, _formats, _weights)
    return [words for part in (*told, *measured, _windows) for words in part(records, count)]


def _updates(records: Sequence[wire.Record], count: Count) -> Iterator[str]:
    assert steps(records) == list(range(len(count.updates)))
    yield f"{len(count.updates)} updates"


def _skips(records: Sequence[wire.Record], count: Count) -> Iterator[str]:
    skipped = {step: float(update.skipped) for step, update in enumerate(count.updates)}
    assert columns(records)["skipped"] == skipped
    told, measured = events(records, "skip"), samples(records)
    truth = {step: update for step, update in enumerate(count.updates) if update.skipped}
    assert told.keys() == truth.keys()
    for step, update in truth.items():
        assert {key: told[step][key] for key in ("scale", "next_scale", "optimizers")} == {
            "scale": update.scale,
            "next_scale": update.next_scale,
            "optimizers": update.overflowed or update.idle,
        }
        if not update.overflowed or (count.unnamed and step not in measured):
            assert told[step]["parameter"] is None
            assert count.unnamed in str(told[step]["reason"])
        else:
            assert told[step]["parameter"] == update.culprit
            assert told[step]["nonfinite"] == update.nonfinite()
    if truth:
        unnamed = count.unnamed or any(not update.overflowed for update in truth.values())
        yield f"{len(truth)} skipped, each with its culprit{' or why none is named' if unnamed else ''}"


def _scales(records: Sequence[wire.Record], count: Count) -> Iterator[str]:
    found = columns(records)
    truth = {step: update.scale for step, update in enumerate(count.updates) if update.scale is not None}
    assert found.get("scale", {}) == truth
    if truth:
        trackers = {step: update.tracker for step, update in enumerate(count.updates) if update.tracker is not None}
        assert found["growth_tracker"] == trackers
        _scale_events(records, count)
        yield "scale and tracker"


def _scale_events(records: Sequence[wire.Record], count: Count) -> None:
    truth: dict[str, dict[int, dict[str, object]]] = {"growth": {}, "backoff": {}, "scale_set": {}}
    for step, (before, after) in count.set.items():
        truth["scale_set"][step] = {"scale": before, "next_scale": after}
    for step, update in enumerate(count.updates):
        if update.scale is not None and update.next_scale is not None and update.next_scale != update.scale:
            kind = "scale_set" if update.was_set else "growth" if update.next_scale > update.scale else "backoff"
            truth[kind][step] = {"scale": update.scale, "next_scale": update.next_scale}
    assert {kind: events(records, kind) for kind in truth} == truth


def _rates(records: Sequence[wire.Record], count: Count) -> Iterator[str]:
    assert columns(records)["learning_rate"] == {step: update.rate for step, update in enumerate(count.updates)}
    yield "learning rate"


def _losses(records: Sequence[wire.Record], count: Count) -> Iterator[str]:
    losses = {step: update.loss for step, update in enumerate(count.updates) if update.loss is not None}
    found = columns(records).get("loss", {})
    assert found.keys() == losses.keys()
    # A loss that is NaN has to be told as NaN, which equals nothing.
    np.testing.assert_array_equal(list(found.values()), list(losses.values()))
    yield from ["loss"] if losses else []


def _gradients(records: Sequence[wire.Record], count: Count) -> Iterator[str]:
    """Every gradient of every sample, class by class; and a sample wherever one was due."""
    names = [parameter.name for parameter in layouts(records)[-1].parameters]
    due = dict(_due(count))
    taken = samples([record for record in records if not isinstance(record, wire.Sample) or record.kind == "grad"])
    closer = {step for step in taken.keys() - due.keys() if taken[step].reason == _closer(count, step)}
    assert taken.keys() - closer == due.keys()
    measured: set[str] = set()
    for step, sample in taken.items():
        update = count.updates[step]
        found = [names[index] for index in indexes(sample)]
        assert sample.scale == update.scale
        if step in due:
            reason, owners = due[step]
            assert sample.reason == reason
            # What looks closer after trouble measures every optimizer; else those whose turn it is, or that overflowed.
            whole = [set(update.gradients), set(owners)]
            assert set(found) in [{name for owner in part for name in update.gradients[owner]} for part in whole]
        _alike(sample, {name: grad for grads in update.gradients.values() for name, grad in grads.items()}, found)
        measured.update(found)
    yield f"histograms of {len(measured)} gradients in {len(due)} samples"


def _unmeasured(records: Sequence[wire.Record], _: Count) -> Iterator[str]:
    assert not samples(records)
    assert not any(isinstance(record, wire.Tally) and record.subject == "parameter" for record in records)
    yield "gradients and weights left to the rank that reports them"


def _closer(count: Count, step: int) -> str:
    """The reason of a sample that the hook took because it looks closer for a while after trouble."""
    return "skip" if count.unnamed and count.updates[step].skipped else "request"


def _due(count: Count) -> Iterator[tuple[int, tuple[str, Collection[str]]]]:
    """Step -> the reason of its sample and the optimizers whose gradients are in it."""
    turns: dict[str, int] = {}
    for step, update in enumerate(count.updates):
        turn = [name for name in update.gradients if name not in turns or step - turns[name] >= EVERY]
        turns.update(dict.fromkeys(turn, step))
        owners = dict.fromkeys([*turn, *(() if count.unnamed else update.overflowed)])
        if any(update.gradients[name] for name in owners):
            yield step, ("periodic" if turn else "skip", list(owners))


def _alike(sample: wire.Sample, truth: dict[str, torch.Tensor], names: Sequence[str]) -> None:
    table = unpack(sample.table)
    for row, name in enumerate(names):
        values = truth[name].double().numpy()
        finite = np.abs(values[np.isfinite(values)])
        exponents = np.frexp(finite[finite >= _TINY])[1] - 1
        np.testing.assert_array_equal(table.counts[row], np.bincount(exponents + 126, minlength=254))
        assert table.zero[row] == (finite < _TINY).sum()
        assert (table.inf[row], table.nan[row]) == (np.isinf(values).sum(), np.isnan(values).sum())
        assert table.amax[row] == finite.max(initial=0.0)
        np.testing.assert_allclose(table.sum_squares[row], (finite**2).sum(), rtol=2e-5)


def _micro_batches(records: Sequence[wire.Record], count: Count) -> Iterator[str]:
    names = [parameter.name for parameter in layouts(records)[-1].parameters]
    seen: dict[object, None] = {}
    for step, sample in samples(records).items():
        update = count.updates[step]
        found = {names[index] for index in indexes(sample)}
        counts = {update.micro_batches[owner] for owner, held in update.gradients.items() if found & held.keys()}
        truth = counts.pop() if len(counts) == 1 else None
        assert sample.micro_batches == truth
        seen[truth] = None
    yield "micro-batches " + " ".join("unknown" if n is None else str(n) for n in seen)


def _formats(records: Sequence[wire.Record], count: Count) -> Iterator[str]:
    if count.formats:
        found = {parameter.name: parameter.compute_format for parameter in layouts(records)[-1].parameters}
        assert {name: found[name] for name in count.formats} == count.formats
        yield "compute formats"


def _weights(records: Sequence[wire.Record], count: Count) -> Iterator[str]:
    """What a sampled update did to each parameter."""
    names = [parameter.name for parameter in layouts(records)[-1].parameters]
    tallies = [record for record in records if isinstance(record, wire.Tally) and record.subject == "parameter"]
    for tally in tallies:
        update = count.updates[tally.step]
        gradients = {name: grad for grads in update.gradients.values() for name, grad in grads.items()}
        rows, found = tallied(tally)
        for row, name in enumerate(names[index] for index in rows):
            before, after = update.before[name], update.after[name]
            moved = gradients[name] != 0
            truth = {
                "update_squares": float((after - before).square().sum()),
                "weight_squares": float(before.square().sum()),
                "with_gradient": float(moved.sum()),
                "unchanged": float((moved & (before == after)).sum()),
            }
            if name in count.untold:
                truth |= {"with_gradient": np.nan, "unchanged": np.nan}
            assert {column: found[column][row] for column in truth} == pytest.approx(truth, rel=1e-4, nan_ok=True), name
    yield from [f"weights of {len(tallies)} updates"] if tallies else []


def _windows(records: Sequence[wire.Record], count: Count) -> Iterator[str]:
    """Every fact of every window: what is missing, and what is told and is not so."""
    told = [
        json.loads(window.data)
        for record in records
        if isinstance(record, wire.Steps)
        for window in record.windows
        for _ in range(window.count)
    ]
    truth = list(expected_windows(count))
    assert len(told) == len(truth)
    for facts, expected in zip(told, truth, strict=True):
        assert facts == nearly(expected)
    names = dict.fromkeys(name for facts in truth for name in facts)
    yield f"window: {', '.join(names)}"
