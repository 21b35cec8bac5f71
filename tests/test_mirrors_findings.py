"""Findings asked of a real server, and what of them is news."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scalescope.mirrors.findings import News, ask
from scalescope.mirrors.mirror import Finding

from tests.serving import Served
from tests.small_server import free_port

THRASH = Finding("SCALE_THRASH", "", "warning", "Each doubling is rejected.", "Nothing.", 100, None)


def test_what_is_new_is_told_once() -> None:
    news = News()
    assert news.of([THRASH]) == [THRASH]
    assert news.of([THRASH]) == []


def test_a_sentence_that_counts_up_is_told_anew_at_the_last() -> None:
    news = News()
    news.of([THRASH])
    later = replace(THRASH, sentence="Each of 14 doublings was rejected.")
    assert news.of([later]) == []
    assert news.of([later], last=True) == [later]


def test_another_severity_is_news() -> None:
    news = News()
    news.of([THRASH])
    worse = replace(THRASH, severity="critical")
    assert news.of([worse]) == [worse]
    assert news.of([worse], last=True) == []


def test_what_is_gone_is_withdrawn_once() -> None:
    news = News()
    news.of([THRASH])
    assert news.of([]) == [replace(THRASH, withdrawn=True)]
    assert news.of([]) == []


def test_two_episodes_are_two_findings() -> None:
    again = replace(THRASH, first_step=900)
    assert News().of([THRASH, again]) == [THRASH, again]


def test_a_server_that_is_away_or_does_not_know_the_run_is_an_error_of_the_connection(served: Served) -> None:
    with pytest.raises(OSError, match="HTTP 404"):
        ask(served.url, None, "nobody")
    with pytest.raises(OSError, match="refused"):
        ask(f"http://127.0.0.1:{free_port()}", None, "nobody")
