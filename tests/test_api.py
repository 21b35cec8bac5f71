"""The HTTP API over a real server: the contract's shapes, exact figures, errors as sentences."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import msgspec
import pytest
from scalescope_server.edge import MAX_BODY_BYTES

from tests.serving import Served, bye, error, hello, layout, ok, sample, skip, steps

Serve = Callable[..., AbstractContextManager[Served]]


def fill(served: Served) -> Served:
    """With a run of 20 updates: a NaN and an infinite loss, a skip at 3, samples at 0 (two scales) and 10."""
    loss = [math.nan, *[1.0] * 18, math.inf]
    skipped = [float(step == 3) for step in range(20)]
    with served.trainer(hello()) as trainer:
        trainer.deliver(
            layout(0),
            steps(1, 0, 20, loss=loss, skipped=skipped),
            sample(2, 0),
            sample(3, 0, scale=32768.0, exponent=5),
            sample(4, 10),
            skip(5, 3),
        )
    return served


@pytest.fixture(scope="module")
def stored(shared: Served) -> Served:
    return fill(shared)


def test_the_runs_list_has_the_contracts_fields(served: Served) -> None:
    fill(served)
    answer = ok(served, "/api/runs")
    line = answer["items"][0]
    assert answer["next"] is None
    assert (line["id"], line["project"], line["name"], line["state"]) == ("run-1", "tests", "a run", "running")
    assert (line["attempted"], line["applied"], line["skipped"], line["scale"]) == (20, 19, 1, 65536.0)
    assert {"started_at", "last_seen_at", "findings", "firing"} <= set(line)


def test_the_runs_list_is_filtered_and_paged(served: Served) -> None:
    for number in range(5):
        with served.trainer(hello(f"r{number}", project=f"p{number % 2}", started_at=float(number))) as trainer:
            trainer.deliver(layout(0), bye(1))
    first = ok(served, "/api/runs?limit=2")
    second = ok(served, f"/api/runs?limit=2&cursor={first['next']}")
    assert [line["id"] for line in first["items"] + second["items"]] == ["r4", "r3", "r2", "r1"]
    assert [line["id"] for line in ok(served, "/api/runs?project=p1")["items"]] == ["r3", "r1"]
    assert ok(served, "/api/runs?state=running")["items"] == []
    assert len(ok(served, "/api/runs?limit=-7")["items"]) == 1
    assert error(served, "/api/runs?cursor=none", 422)["field"] == "cursor"
    assert error(served, "/api/runs?state=sleeping", 422)["field"] == "state"


def test_a_run_tells_everything_but_its_numbers(stored: Served) -> None:
    run = ok(stored, "/api/runs/run-1")
    assert run["config"] == {"width": 64}
    assert run["environment"] == {"torch": "2.13"}
    assert [(p["name"], p["shape"], p["compute_format"]) for p in run["parameters"]] == [
        ("block.weight", [4, 4], "fp16"),
        ("block.bias", [4, 4], "fp16"),
    ]
    assert run["modules"] == [{"name": "block", "kind": None, "parameters": 2, "numel": 32}]
    assert (run["ranks"], run["segments"][0]["id"], run["ledger"][0]["received"]) == ([0], "seg-1", 6)


def test_a_series_is_exact_where_points_allow_and_holds_no_nan(stored: Served) -> None:
    answer = ok(stored, "/api/runs/run-1/series?name=loss&name=skipped&name=unheard-of")
    assert answer["bucket"] == 1
    loss, skipped = answer["series"]["loss"], answer["series"]["skipped"]
    assert loss["step"] == list(range(20))
    assert loss["last"] == [None, *[1.0] * 18, None]
    assert loss["n"] == [0, *[1] * 18, 0]
    assert (sum(loss["nan"]), sum(loss["inf"])) == (1, 1)
    assert skipped["sum"] == [float(step == 3) for step in range(20)]
    assert answer["series"]["unheard-of"]["step"] == []


def test_a_coarse_series_keeps_the_single_skip_and_says_its_bucket(stored: Served) -> None:
    answer = ok(stored, "/api/runs/run-1/series?name=skipped&name=loss&points=3")
    assert answer["bucket"] == 8
    assert answer["series"]["skipped"]["max"] == [1.0, 0.0, 0.0]
    assert answer["series"]["loss"]["nan"] == [1, 0, 0]


def test_from_is_inclusive_to_exclusive_and_points_are_clamped(stored: Served) -> None:
    answer = ok(stored, "/api/runs/run-1/series?name=scale&from=5&to=8")
    assert answer["series"]["scale"]["step"] == [5, 6, 7]
    for points in ("0", "-3", "1000000000000"):
        assert ok(stored, f"/api/runs/run-1/series?name=scale&points={points}")["series"]["scale"]["step"]
    assert ok(stored, "/api/runs/run-1/series?name=scale&from=9&to=3")["series"]["scale"]["step"] == []
    assert error(stored, "/api/runs/run-1/series?name=scale&from=-1", 422)["field"] == "from"


def test_without_a_name_every_series_is_answered(stored: Served) -> None:
    assert {"scale", "skipped", "applied", "loss", "zero_share"} <= set(ok(stored, "/api/runs/run-1/series")["series"])


@pytest.mark.parametrize("position", [(2**63, 0), (0, 2**64 - 1), (-(2**63), -1)])
def test_a_cursor_of_numbers_that_no_database_holds_is_told(stored: Served, position: tuple[int, int]) -> None:
    cursor = base64.urlsafe_b64encode(msgspec.msgpack.encode(position)).decode().rstrip("=")
    assert error(stored, f"/api/runs/run-1/events?cursor={cursor}", 422)["field"] == "cursor"
    forever = base64.urlsafe_b64encode(msgspec.msgpack.encode((math.nan, 0))).decode().rstrip("=")
    assert error(stored, f"/api/runs?cursor={forever}", 422)["field"] == "cursor"


def test_events_are_exact(stored: Served) -> None:
    event = ok(stored, "/api/runs/run-1/events?kind=skip")["items"][0]
    assert (event["kind"], event["step"], event["rank"]) == ("skip", 3, 0)
    assert event["data"]["parameter"] == "block.bias"
    assert event["data"]["nonfinite"] == {"block.bias": 3}
    assert ok(stored, "/api/runs/run-1/events?kind=growth")["items"] == []
    assert ok(stored, "/api/runs/run-1/events?from=4")["items"] == []
    told = error(stored, "/api/runs/run-1/events?kind=skips", 422)
    assert told["field"] == "kind"
    assert "'growth'" in told["message"]


@pytest.mark.parametrize(
    ("measure", "first", "second"),
    [
        ("zero_share", 0.25, 0.25),
        ("subnormal_share", 0.0, 0.0),
        ("flush_share", 0.0, 0.0),
        ("nonfinite", 4.0, 2.0),
        ("amax", 2.0**5 / 32768, 2.0**-3 / 65536),
        ("norm", math.sqrt((10 * 4.0**-3 / 65536**2 + 10 * 4.0**5 / 32768**2) / 2), math.sqrt(10) * 2.0**-3 / 65536),
    ],
)
def test_a_measure_is_read_at_each_samples_own_scale(stored: Served, measure: str, first: float, second: float) -> None:
    answer = ok(stored, f"/api/runs/run-1/layers?measure={measure}")
    assert (answer["measure"], answer["bucket"], answer["step"]) == (measure, 1, [0, 10])
    assert answer["parameters"] == ["block.weight", "block.bias"]
    assert answer["samples"] == [2, 1]
    assert answer["values"] == [[pytest.approx(first), pytest.approx(second)]] * 2


def test_an_unknown_measure_is_answered_with_the_known_ones(stored: Served) -> None:
    told = error(stored, "/api/runs/run-1/layers?measure=zeal", 422)
    assert told["field"] == "measure"
    assert all(name in told["message"] for name in ("zero_share", "subnormal_share", "flush_share", "norm"))


def test_a_measure_that_needs_a_format_is_null_without_one(served: Served) -> None:
    plain = layout(0)
    for parameter in plain.parameters:
        assert parameter.compute_format == "fp16"
    unknown = [type(p)(p.name, p.module, p.shape, p.dtype, p.numel, None) for p in plain.parameters]
    with served.trainer(hello()) as trainer:
        trainer.deliver(
            type(plain)(sequence=0, parameters=unknown, order="unknown", backward=[]), steps(1, 0), sample(2, 0)
        )
    assert ok(served, "/api/runs/run-1/layers?measure=subnormal_share")["values"] == [[None], [None]]
    assert ok(served, "/api/runs/run-1/layers?measure=zero_share")["values"] == [[0.25], [0.25]]


def test_a_histogram_has_a_row_for_each_bucket_and_scale(stored: Served) -> None:
    answer = ok(stored, "/api/runs/run-1/histogram?parameter=block.bias")
    assert answer["exponents"] == list(range(-3, 6))
    rows = dict(zip(zip(answer["step"], answer["scale"], strict=True), answer["counts"], strict=True))
    low, high = [10, *[0] * 8], [*[0] * 8, 10]
    assert rows == {(0, 65536.0): low, (0, 32768.0): high, (10, 65536.0): low}
    assert (answer["zero"], answer["inf"], answer["nan"]) == ([4] * 3, [1] * 3, [1] * 3)
    assert answer["samples"] == [1, 1, 1]


def test_samples_of_one_bucket_are_added_only_at_one_scale(stored: Served) -> None:
    answer = ok(stored, "/api/runs/run-1/histogram?parameter=block.bias&points=1")
    assert (answer["bucket"], set(answer["step"])) == (64, {0})
    of_scale = dict(zip(answer["scale"], answer["samples"], strict=True))
    assert of_scale == {65536.0: 2, 32768.0: 1}


def test_a_run_without_samples_has_empty_layers_and_histograms(served: Served) -> None:
    with served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), steps(1, 0))
    answer = ok(served, "/api/runs/run-1/layers?measure=amax")
    assert (answer["parameters"], answer["step"], answer["values"]) == (["block.weight", "block.bias"], [], [[], []])
    assert ok(served, "/api/runs/run-1/histogram?parameter=block.bias")["counts"] == []


def test_findings_are_a_list(stored: Served) -> None:
    assert set(ok(stored, "/api/runs/run-1/findings")) == {"items", "next"}


def test_an_unknown_run_is_not_found(shared: Served) -> None:
    for run in ("unheard-of", "x" * 65, "%00", "..", "a%2Fb", "%F0%9F%92%A9"):
        for rest in ("", "/series", "/events", "/layers", "/histogram?parameter=p", "/findings"):
            assert error(shared, f"/api/runs/{run}{rest}", 404)["code"] == "not_found"


def test_an_unknown_parameter_is_not_found(stored: Served) -> None:
    assert error(stored, "/api/runs/run-1/histogram?parameter=nope", 404)["field"] == "parameter"


def test_what_is_not_there_or_not_allowed_is_told_in_the_same_shape(shared: Served) -> None:
    assert error(shared, "/api/nothing", 404)["code"] == "not_found"
    assert error(shared, "/api/runs", 405, "PUT")["code"] == "method_not_allowed"
    assert error(shared, "/api/runs/x/series?points=many", 422)["field"] == "points"
    assert error(shared, "/api/runs/x/series?rank=-1", 422)["field"] == "rank"
    assert error(shared, "/api/runs/x/histogram", 422)["field"] == "parameter"


def test_people_can_name_a_run_and_say_that_it_was_healthy(served: Served) -> None:
    fill(served)
    answer = served.call("PATCH", "/api/runs/run-1", body={"name": "<b>baseline</b>", "healthy": True})
    assert (answer.status, answer.json()["name"], answer.json()["healthy"]) == (200, "<b>baseline</b>", True)
    assert served.call("PATCH", "/api/runs/run-1", body={"tags": ["a", "b"], "note": "n"}).json()["tags"] == ["a", "b"]
    assert ok(served, "/api/runs/run-1")["name"] == "<b>baseline</b>"
    assert served.call("PATCH", "/api/runs/run-1", body={"healthy": None}).json()["healthy"] is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"nmae": "typo"}, "nmae"),
        ({"name": ""}, "name"),
        ({"name": None}, "name"),
        ({"tags": ["t"] * 65}, "tags"),
        ({"healthy": "perhaps"}, "healthy"),
        (b"{", None),
    ],
)
def test_a_patch_that_makes_no_sense_changes_nothing(stored: Served, body: object, field: str | None) -> None:
    told = error(stored, "/api/runs/run-1", 422, "PATCH", body)
    assert told["field"] == field
    assert told["message"].startswith(f"{field or 'body'}: ")
    assert ok(stored, "/api/runs/run-1")["name"] == "a run"


def test_a_body_above_the_limit_is_refused_stated_or_not(stored: Served) -> None:
    large = b'{"note": "' + b"x" * MAX_BODY_BYTES + b'"}'
    assert error(stored, "/api/runs/run-1", 413, "PATCH", large)["code"] == "too_large"
    chunked = stored.call("PATCH", "/api/runs/run-1", chunks=[large])
    assert (chunked.status, chunked.json()["error"]["code"]) == (413, "too_large")


def test_a_deleted_run_is_gone(served: Served) -> None:
    fill(served)
    assert served.call("DELETE", "/api/runs/run-1").status == 204
    assert error(served, "/api/runs/run-1", 404)["field"] == "run"
    assert error(served, "/api/runs/run-1", 404, "DELETE")["field"] == "run"


def test_the_description_names_every_shape(shared: Served) -> None:
    described = ok(shared, "/openapi.json")
    content = described["paths"]["/api/runs/{run}/series"]["get"]["responses"]["200"]["content"]
    assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/SeriesAnswer"}
    schemas = described["components"]["schemas"]
    assert set(schemas["SeriesColumns"]["properties"]) == {"step", "n", "min", "max", "last", "sum", "nan", "inf"}
    assert set(schemas["ErrorBody"]["properties"]) == {"code", "message", "field"}
    references = {ref for ref in _references(described) if ref.startswith("#/components/schemas/")}
    assert {ref.rpartition("/")[2] for ref in references} <= set(schemas)
    assert "HTTPValidationError" not in schemas


def _references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)
