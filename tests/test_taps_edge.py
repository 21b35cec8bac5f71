"""The edge: whatever fails in a tap stays there, and what a tap costs is known."""

from __future__ import annotations

import pytest
from scalescope.taps.edge import Edge


def test_a_result_passes() -> None:
    assert Edge().call(divmod, 7, 2) == (3, 1)


def test_a_failure_is_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    edge = Edge()
    assert edge.call(int, "seven") is None
    assert edge.call(int, "eight") is None
    assert edge.errors == 2
    assert len(caplog.records) == 1
    assert "seven" in caplog.text


def test_what_is_silent_does_nothing() -> None:
    edge = Edge()
    edge.silent = True
    assert edge.call(divmod, 7, 2) is None
    assert edge.call(int, "seven") is None
    assert edge.errors == 0


def test_what_stops_a_process_passes() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Edge().call(stop)


def test_costs_are_kept_apart_for_sampled_updates_and_others() -> None:
    edge = Edge()
    assert edge.cost(sampled=True).median_us is None
    for _ in range(3):
        edge.call(sum, range(1000))
        edge.charge(sampled=False)
    edge.call(sum, range(100_000))
    edge.charge(sampled=True)
    plain, sampled = edge.cost(sampled=False), edge.cost(sampled=True)
    assert (plain.updates, sampled.updates) == (3, 1)
    assert plain.median_us is not None
    assert sampled.last_us is not None
    assert 0 < plain.median_us < sampled.last_us


def test_failures_cost_too() -> None:
    edge = Edge()
    edge.call(int, "seven")
    edge.charge(sampled=False)
    assert (edge.cost(sampled=False).last_us or 0) > 0
