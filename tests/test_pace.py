"""How soon the link's thread looks for news again."""

from __future__ import annotations

import pytest
from scalescope.pace import AWAY_S, LATEST_S, SHARE, SOONEST_S, Pace


@pytest.mark.parametrize(("batch_s", "wait_s"), [(0.00001, SOONEST_S), (0.00015, 0.05), (0.02, LATEST_S)])
def test_a_batch_is_followed_by_the_wait_that_makes_it_a_share_of_the_time(batch_s: float, wait_s: float) -> None:
    pace = Pace()
    waits = [pace.wait_s(found=True, away=False, cpu_s=3.0 + number * batch_s) for number in range(5)]
    assert waits[0] == SOONEST_S
    assert waits[1:] == pytest.approx([wait_s] * 4)


def test_what_looks_in_vain_took_counts_with_the_batch_after_them() -> None:
    pace = Pace()
    pace.wait_s(found=True, away=False, cpu_s=1.0)
    pace.wait_s(found=False, away=False, cpu_s=1.0002)
    assert pace.wait_s(found=True, away=False, cpu_s=1.0003) == pytest.approx(0.0003 / SHARE)


def test_a_look_in_vain_doubles_the_wait_up_to_the_latest() -> None:
    pace = Pace()
    pace.wait_s(found=True, away=False, cpu_s=None)
    waits = [pace.wait_s(found=False, away=False, cpu_s=None) for _ in range(4)]
    assert waits == [2 * SOONEST_S, 4 * SOONEST_S, 8 * SOONEST_S, LATEST_S]
    assert pace.wait_s(found=True, away=False, cpu_s=None) == SOONEST_S


def test_while_the_server_is_away_batches_are_large() -> None:
    assert Pace().wait_s(found=True, away=True, cpu_s=1.0) == AWAY_S
