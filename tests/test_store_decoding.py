"""Records that contradict themselves never reach the database."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scalescope.wire import Column, Record
from scalescope_server.store.decoding import decode
from scalescope_server.store.errors import BadRecord
from scalescope_server.store.json_text import json_object
from scalescope_server.store.levels import MAX_STEP
from scalescope_server.store.values import flags, nullable, restored, scale_key, scale_of

from tests.batches import Dictation, histograms


def changed(record: Record, **fields: Any) -> Record:
    return msgspec.structs.replace(record, **fields)


SAY = Dictation(5)
STEPS, SAMPLE = SAY.steps(0, 2, loss=[1.0, 2.0]), SAY.sample(0, histograms([0]))
EVENT, BYE, SETUP, TALLY = SAY.event(0), SAY.bye(), SAY.setup(0), SAY.tally(0, looked=[1.0])

BAD: list[tuple[Record, str]] = [
    (changed(STEPS, at=b"\0" * 8), "expected 2 finite times, got 1"),
    (changed(STEPS, at=np.array([1.0, math.nan]).tobytes()), "expected 2 finite times"),
    (changed(STEPS, at=b"\0" * 9), "expected whole"),
    (changed(STEPS, first=MAX_STEP - 1), f"expected steps below {MAX_STEP}"),
    (changed(STEPS, columns={"loss": Column(b"\5\0\0\0", b"\0" * 8)}), "expected a column of rising rows below 2"),
    (SAY.steps(0, 2, skipped=[0.0, 0.5]), "expected 0 or 1 in the column skipped"),
    (SAY.steps(0, 2, skipped=[0.0, math.nan]), "expected 0 or 1 in the column skipped"),
    (SAY.steps(0, 2, growth_tracker=[0.0, 1.5]), "expected whole numbers in the column growth_tracker"),
    (changed(SAMPLE, step=MAX_STEP), f"expected a step below {MAX_STEP}"),
    (changed(SAMPLE, at=math.inf), "expected seconds since the epoch, got inf"),
    (changed(SAMPLE, parameters=b"\0" * 8), "expected 1 different indexes, got 2"),
    (changed(SAMPLE, table=msgspec.structs.replace(SAMPLE.table, rows=-1)), "expected at most"),
    (changed(SAMPLE, table=msgspec.structs.replace(SAMPLE.table, rows=2**62)), "expected at most"),
    (changed(EVENT, data="[1]"), "data: expected a JSON object, got list"),
    (changed(EVENT, data="{"), "data: "),
    (changed(EVENT, data="[" * 16_000), "data: "),
    (changed(SETUP, data="[1]"), "data: expected a JSON object, got list"),
    (changed(SETUP, at=math.inf), "expected seconds since the epoch, got inf"),
    (changed(TALLY, indexes=bytes(8)), "expected 1 different indexes, got 2"),
    (changed(TALLY, columns={"looked": bytes(7)}), "expected whole <f8 values"),
    (changed(TALLY, columns={"looked": np.array([-1.0]).tobytes()}), "at least 0 in the column looked"),
    (changed(BYE, at=math.nan), "expected seconds since the epoch, got nan"),
]


@pytest.mark.parametrize(("record", "message"), BAD)
def test_a_record_that_cannot_be_true_is_refused_by_name(record: Record, message: str) -> None:
    with pytest.raises(BadRecord) as caught:
        decode(record)
    assert message in str(caught.value)
    assert caught.value.sequence == record.sequence
    assert caught.value.record == type(record).__name__.lower()


def test_a_growth_tracker_that_is_not_known_is_no_mistake() -> None:
    decode(SAY.steps(0, 2, growth_tracker=[math.nan, 3.0]))


@given(st.text(alphabet=st.characters(), max_size=30))
def test_any_text_is_either_an_object_or_refused(text: str) -> None:
    for given_text in (text, '{"a": ' + text + "}"):
        try:
            found = json_object(given_text)
        except ValueError:
            continue
        assert msgspec.json.decode(msgspec.json.encode(found)) == found


@given(st.lists(st.floats()))
def test_a_value_beside_its_flag_is_the_value(values: list[float]) -> None:
    given_values = np.array(values, np.float64)
    stored = nullable(given_values)
    assert all(value is None or math.isfinite(value) for value in stored)
    np.testing.assert_array_equal(restored(stored, flags(given_values).tolist()), given_values)


@given(st.none() | st.floats())
def test_a_scale_comes_back_from_its_key(scale: float | None) -> None:
    value, flag = scale_key(scale)
    assert math.isfinite(value)
    np.testing.assert_equal(scale_of(value, flag), scale)
