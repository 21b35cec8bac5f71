"""Layers, modules and probes over a real server: every measure on its rows, in the format it asks about."""

from __future__ import annotations

import math

import msgspec
import pytest
from scalescope.numerics.formats import BF16
from scalescope.wire import Layout

from tests.batches import Dictation, histograms
from tests.serving import Served, error, hello, layout, ok

MODULES = (("", "Net"), ("block", "Linear"), ("act", "GELU"))


def stored_as(told: Layout, *dtypes: str) -> Layout:
    listed = [msgspec.structs.replace(p, dtype=dtype) for p, dtype in zip(told.parameters, dtypes, strict=True)]
    return msgspec.structs.replace(told, parameters=listed)


@pytest.fixture(scope="module")
def told(shared: Served) -> Served:
    """A parameter stored in fp16 and one in fp32; tallies at updates 0, 8 and 9, and a probe before 4."""
    say = Dictation(1)
    with shared.trainer(hello()) as trainer:
        trainer.deliver(
            stored_as(layout(0, *MODULES), "float16", "float32"),
            say.setup(0, modules={"": "float32", "act": "torch.bfloat16"}),
            say.steps(0, 10),
            say.tally(0, intended=[8.0, 16.0], absorbed_fp16=[2.0, 4.0], absorbed_bf16=[4.0, 16.0]),
            say.tally(
                8, update_squares=[4.0, 0.0], weight_squares=[16.0, 0.0], unchanged=[1.0, 2], with_gradient=[4, 4]
            ),
            say.tally(9, subject="module", scale=1024.0, forward_amax=[2.0, 65504 / 4, 1.0]),
            say.tally(9, subject="module", scale=1024.0, indexes=[1], grad_output_amax=[65504 / 2]),
            say.sample(0, histograms([1], [2], [3]), kind="forward", scale=None),
            say.sample(0, histograms([9], [9]), kind="weight", scale=None),
            say.probe(
                4,
                {"loss": 1.5, "reference_loss": 1.25},
                indexes=[1],
                lost=[3.0],
                reference_nonzero=[12.0],
                error_squares=[1.0],
                reference_squares=[4.0],
                own_squares=[0.0],
                products=[0.0],
            ),
        )
    return shared


def layers(served: Served, measure: str, more: str = "") -> dict[str, object]:
    found: dict[str, object] = ok(served, f"/api/runs/run-1/layers?measure={measure}{more}")
    assert found["measure"] == measure
    return found


@pytest.mark.parametrize(
    ("measure", "step", "values"),
    [
        # Asked about the format that each is stored in; of fp32 a copy would be in bf16.
        ("absorbed_share", 0, [0.25, 1.0]),
        ("absorbed_share&format=fp16", 0, [0.25, 0.25]),
        ("absorbed_share&format=bf16", 0, [0.5, 1.0]),
        ("update_ratio", 8, [0.5, None]),
        ("unchanged_share", 8, [0.25, 0.5]),
        ("true_underflow", 4, [None, 0.25]),
    ],
)
def test_measures_of_updates_have_a_row_for_each_parameter(
    told: Served, measure: str, step: int, values: list[float | None]
) -> None:
    found = ok(told, f"/api/runs/run-1/layers?measure={measure}")
    assert found["parameters"] == ["block.weight", "block.bias"]
    assert [row[found["step"].index(step)] for row in found["values"]] == values


@pytest.mark.parametrize(
    ("measure", "values"),
    [
        ("forward_amax", [2.0, 65504 / 4, 1.0]),
        # The set-up tells the format of "act", the parameters that of "block".
        ("forward_headroom", [127.0, 2.0, math.log2(BF16.max_finite)]),
        ("forward_headroom&format=fp16", [math.log2(65504 / 2), 2.0, math.log2(65504)]),
        ("grad_output_amax", [None, 65504 / 2 / 1024, None]),
        ("grad_output_headroom", [None, 1.0, None]),
    ],
)
def test_measures_of_modules_have_a_row_for_each_module(told: Served, measure: str, values: list[float | None]) -> None:
    found = ok(told, f"/api/runs/run-1/layers?measure={measure}")
    assert (found["parameters"], found["step"], found["kind"]) == (["", "block", "act"], [9], "module")
    assert [row[0] for row in found["values"]] == [value if value is None else pytest.approx(value) for value in values]


def test_tallies_far_apart_are_shown_one_by_one_and_else_in_buckets(told: Served) -> None:
    assert layers(told, "update_ratio")["bucket"] == 1
    coarse = layers(told, "update_ratio", "&points=1")
    assert (coarse["bucket"], coarse["step"], coarse["values"], coarse["samples"]) == (64, [0], [[0.5], [None]], [2])


def test_samples_of_modules_have_a_row_for_each_module(told: Served) -> None:
    assert layers(told, "amax", "&kind=forward")["values"] == [[2.0], [4.0], [8.0]]
    assert layers(told, "amax", "&kind=weight")["values"] == [[512.0], [512.0]]
    assert layers(told, "amax")["step"] == []


def test_histograms_of_outputs_are_of_modules_and_those_of_weights_of_parameters(told: Served) -> None:
    forward = ok(told, "/api/runs/run-1/histogram?parameter=act&kind=forward")
    assert (forward["parameter"], forward["kind"], forward["exponents"], forward["counts"]) == (
        "act",
        "forward",
        [3],
        [[1]],
    )
    assert ok(told, "/api/runs/run-1/histogram?parameter=&kind=forward")["exponents"] == [1]
    assert ok(told, "/api/runs/run-1/histogram?parameter=block.bias&kind=weight")["exponents"] == [9]
    assert error(told, "/api/runs/run-1/histogram?parameter=block.bias&kind=grad_output", 404)["field"] == "parameter"


def test_a_probe_tells_of_each_parameter_what_was_lost(told: Served) -> None:
    answer = ok(told, "/api/runs/run-1/probes")
    assert answer == {
        "items": [
            {
                "step": 4,
                "rank": 0,
                "at": 4.0,
                "data": {"loss": 1.5, "reference_loss": 1.25},
                "parameters": ["block.bias"],
                "true_underflow": [0.25],
                "relative_error": [0.5],
                "cosine": [None],
            }
        ],
        "next": None,
    }
    assert ok(told, "/api/runs/run-1/probes?from=5")["items"] == []
    assert error(told, "/api/runs/run-1/probes?cursor=none", 422)["field"] == "cursor"


def test_an_unknown_measure_or_format_is_answered_with_the_known_ones(told: Served) -> None:
    refused = error(told, "/api/runs/run-1/layers?measure=zeal", 422)
    assert refused["field"] == "measure"
    assert all(name in refused["message"] for name in ("zero_share", "update_ratio", "forward_headroom"))
    assert error(told, "/api/runs/run-1/layers?measure=absorbed_share&format=fp32", 422)["field"] == "format"


def test_a_run_that_tallies_nothing_has_rows_without_columns(served: Served) -> None:
    with served.trainer(hello()) as trainer:
        trainer.deliver(layout(0))
    assert layers(served, "update_ratio")["values"] == [[], []]
    assert layers(served, "forward_amax")["values"] == []
    assert ok(served, "/api/runs/run-1/probes") == {"items": [], "next": None}
