"""The greeting. What it tells of a training is tested with ``watch``."""

from __future__ import annotations

from scalescope.greeting import new_id


def test_ids_are_short_random_and_fit_a_url() -> None:
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(one) == 12 and set(one) <= set("abcdefghijklmnopqrstuvwxyz0123456789") for one in ids)
