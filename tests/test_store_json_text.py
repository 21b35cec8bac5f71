"""JSON from trainers: strict, and never deeper than whoever reads it later can follow."""

from __future__ import annotations

import pytest
from scalescope_server.store.json_text import MAX_DEPTH, dumps, json_object


def nested(depth: int, opening: str = '{"a":', closing: str = "}") -> str:
    return opening * (depth - 1) + "{}" + closing * (depth - 1)


def test_what_is_no_json_number_becomes_text() -> None:
    assert json_object('{"a": NaN, "b": [Infinity, -Infinity, 1e999], "c": 1}') == {
        "a": "nan",
        "b": ["inf", "-inf", "inf"],
        "c": 1,
    }
    assert dumps(json_object('{"a": NaN}')) == '{"a": "nan"}'


def test_a_lone_surrogate_becomes_a_question_mark() -> None:
    assert json_object('{"a": "\\ud800"}') == {"a": "?"}


@pytest.mark.parametrize("text", ["", "[1]", "1", "null", "{", '"text"'])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|expected a JSON object"):
        json_object(text)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 500, 970, 979, 1_000, 50_000])
def test_json_deeper_than_the_limit_is_refused(depth: int) -> None:
    assert json_object(nested(MAX_DEPTH))
    with pytest.raises(ValueError, match="at most 64 levels"):
        json_object(nested(depth))
    with pytest.raises(ValueError, match="at most 64 levels"):
        json_object('{"a":' + nested(depth, "[", "]").replace("{}", "[]") + "}")
