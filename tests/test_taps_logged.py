"""Anything may be logged: numbers are taken, the rest is counted and told once."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from scalescope.taps.logged import MAX_NAMES, RESERVED, Intake, as_value


@pytest.mark.parametrize(
    ("thing", "number"),
    [
        (2, 2.0),
        (2.5, 2.5),
        (True, 1.0),
        (Fraction(1, 4), 0.25),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.bool_(True), 1.0),
        (np.array(1.5), 1.5),
        (np.array([1.5]), 1.5),
        (torch.tensor(1.5), 1.5),
        (torch.tensor([[2]]), 2.0),
        (torch.tensor(True), 1.0),
        (torch.tensor(0.1, dtype=torch.float16), 0.0999755859375),
        (torch.tensor(1.0, requires_grad=True), 1.0),
        (float("inf"), float("inf")),
    ],
)
def test_numbers_of_all_kinds_are_taken(thing: object, number: float) -> None:
    assert as_value(thing) == number


@pytest.mark.parametrize(
    "thing",
    [
        None,
        "0.5",
        1j,
        Decimal(1),
        10**400,
        [1.0],
        {"loss": 1.0},
        torch.ones(2),
        torch.empty(0),
        torch.tensor(1j),
        torch.empty((), device="meta"),
        np.ones(2),
        np.array("1"),
        object(),
    ],
)
def test_anything_else_is_no_number(thing: object) -> None:
    assert as_value(thing) is None


def test_refusals_are_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    intake = Intake()
    assert intake.take({"loss": 1.0, "text": "<b>bold</b>", "array": np.ones(3)}) == {"loss": 1.0}
    assert intake.take({"text": "again"}) == {}
    assert intake.refused == 3
    assert len(caplog.records) == 1
    assert "log(text=...)" in caplog.text


@pytest.mark.parametrize("name", ["", "x" * 513, pytest.param("\ud800", id="a lone surrogate"), *sorted(RESERVED)])
def test_a_name_must_fit_and_be_the_users_own(name: str) -> None:
    intake = Intake()
    assert intake.take({name: 1.0}) == {}
    assert intake.refused == 1


def test_the_number_of_names_is_bounded() -> None:
    intake = Intake()
    assert len(intake.take({f"name{place}": 1.0 for place in range(MAX_NAMES + 5)})) == MAX_NAMES
    assert intake.refused == 5
    assert intake.take({"name0": 2.0}) == {"name0": 2.0}
