"""Updates told as records: who is to blame, in words that fit, and numbers that JSON can hold."""

from __future__ import annotations

import json
import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scalescope.events import events_of
from scalescope.numerics.measure import measure
from scalescope.rows import column_arrays, indexes, times
from scalescope.updates import Measured, OptimizerVerdict, Update, sample_of, steps_of, table_of
from scalescope.wire import Layout, Parameter


def layout(names: list[str], backward: list[int]) -> Layout:
    parameters = [Parameter(name, "", [1], "float32", 1, None) for name in names]
    return Layout(sequence=0, parameters=parameters, order="observed", backward=backward)


def skip(bad: list[int], names: list[str], backward: list[int], *, good: int = 0) -> dict[str, object]:
    """The data of a skip at which the gradients of ``bad`` were non-finite."""
    order = [*bad, *range(len(names), len(names) + good)]
    gradients = [torch.tensor([math.inf, 1.0])] * len(bad)
    update = Update(
        5,
        5.0,
        scale=4.0,
        next_scale=2.0,
        verdicts=(OptimizerVerdict("SGD", (0.0, 1.0)), OptimizerVerdict("Adam", (0.0,))),
        measured=(Measured(tuple(order), measure(gradients)),),
    )
    found = events_of(update, None, layout(names, backward), table_of(update.measured))
    assert [event.kind for event in found] == ["skip", "backoff"]
    data: dict[str, object] = json.loads(found[0].data)
    return data


def test_the_culprit_is_the_first_in_backward_order_not_in_forward_order() -> None:
    assert skip([0, 1, 2], ["a", "b", "c"], [1, 2, 0]) == {
        "scale": 4.0,
        "next_scale": 2.0,
        "parameter": "b",
        "nonfinite": {"b": 1, "c": 1, "a": 1},
        "order": "observed",
        "optimizers": ["SGD"],
    }


def test_where_the_order_is_not_known_several_bad_gradients_have_no_culprit() -> None:
    data = skip([0, 1, 2, 3], ["a", "b", "c", "d"], [1])
    assert data["parameter"] is None
    assert "order" in str(data["reason"])
    found = data["nonfinite"]
    assert isinstance(found, dict)
    assert list(found) == ["b", "d", "c", "a"]


def test_a_skip_without_a_bad_gradient_says_why_it_names_nobody() -> None:
    data = skip([], ["a"], [0])
    assert data["parameter"] is None
    assert data["nonfinite"] == {}
    assert data["reason"]


def test_a_skip_that_spread_to_thousands_keeps_the_first_and_says_how_many_were_left_out() -> None:
    names = [f"blocks.{place}.attention.projection.weight" for place in range(3000)]
    data = skip(list(range(3000)), names, list(reversed(range(3000))))
    found, left_out = data["nonfinite"], data["left_out"]
    assert isinstance(found, dict)
    assert isinstance(left_out, int)
    assert data["parameter"] == next(iter(found)) == names[-1]
    assert len(found) + left_out == 3000
    assert len(json.dumps(data)) <= 16_384


def test_names_outside_ascii_fit_as_well() -> None:
    data = skip(list(range(900)), [f"层{'é' * 500}{place}" for place in range(900)], [])
    assert len(json.dumps(data)) <= 16_384


@given(st.floats(), st.floats(), st.floats())
def test_any_scale_makes_json(before: float, scale: float, after: float) -> None:
    update = Update(0, 0.0, scale=scale, next_scale=after, verdicts=(OptimizerVerdict("SGD", (1.0,)),))
    for event in events_of(update, before, layout([], []), table_of(())):
        json.loads(event.data, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_a_sample_holds_the_rows_of_all_optimizers() -> None:
    parts = (
        Measured((4, 2), measure([torch.ones(3), torch.zeros(2)])),
        Measured((7,), measure([torch.full((5,), 2.0)])),
    )
    update = Update(3, 1.0, periodic=True, scale=2.0, measured=parts, micro_batches=2)
    sample = sample_of(update, table_of(parts))
    assert indexes(sample).tolist() == [4, 2, 7]
    assert table_of(parts).numel.tolist() == [3, 2, 5]
    assert (sample.reason, sample.scale, sample.micro_batches) == ("periodic", 2.0, 2)


def test_a_value_that_is_missing_is_absent_and_nan_is_nan() -> None:
    updates = [
        Update(4, 1.0, values={"loss": math.nan}),
        Update(5, 2.0, values={"norm": 3.0}, tokens=[2.0, 3.0]),
    ]
    batch = steps_of(updates)
    assert (batch.first, batch.count) == (4, 2)
    assert times(batch).tolist() == [1.0, 2.0]
    found = {name: column_arrays(packed, batch.count) for name, packed in batch.columns.items()}
    assert {name: rows.tolist() for name, (rows, _) in found.items()} == {
        "loss": [0],
        "norm": [1],
        "tokens": [1],
        "skipped": [0, 1],
    }
    assert np.isnan(found["loss"][1]).all()
    assert found["tokens"][1].tolist() == [5.0]
