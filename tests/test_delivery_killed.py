"""``kill -9`` of a server between firing and delivery."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.killing_deliveries import WAITING, play


@pytest.mark.timeout(120)
def test_each_alert_is_told_at_least_once_under_one_key_and_none_is_invented(tmp_path: Path) -> None:
    found = play(tmp_path, rounds=2, seed=1)
    found.check()
    assert len(found.keys) == 2 * (WAITING + 1)
