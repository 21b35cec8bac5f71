"""When a server that is away is tried again. How the courier does it over sockets is tested with the link."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st
from scalescope.retrying import RETRY_CAP_S, retry_delay


def test_the_first_retry_is_fast() -> None:
    assert retry_delay(0, 0.0) == 0.1


def test_a_server_is_found_within_a_fifth_of_its_absence_and_never_later_than_the_cap() -> None:
    tried_at = [0.0, *accumulate(retry_delay(failures, 0.0) for failures in range(100))]
    for before, after in pairwise(tried_at):
        assert after - before <= min(0.2 * before + 0.1, RETRY_CAP_S) + 1e-9
    assert retry_delay(99, 0.0) == RETRY_CAP_S


@given(st.integers(0, 10**9), st.floats(0, 1, exclude_max=True))
def test_jitter_only_ever_shortens_a_wait_and_by_a_quarter_at_most(failures: int, jitter: float) -> None:
    plain = retry_delay(failures, 0.0)
    assert 0.75 * plain <= retry_delay(failures, jitter) <= plain
