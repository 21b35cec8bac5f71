"""What the log says about delivery, by the moments at which it is told."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from scalescope.notices import SILENT_S, Notices
from scalescope.outbox import Outbox
from scalescope.session import Frame

from tests.small_server import hello

URL = "http://127.0.0.1:8765"


def test_a_trouble_and_its_end_are_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    notices = Notices(URL)
    for _ in range(3):
        notices.trouble(ConnectionRefusedError(errno.ECONNREFUSED, "refused"))
    for _ in range(3):
        notices.answered()
    lost, back = caplog.messages
    assert f"no connection to {URL} (connection refused)" in lost
    assert "answers again" in back


def test_a_server_that_acknowledges_nothing_for_half_a_minute_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    notices = Notices(URL)
    for second in range(0, 200, 5):
        notices.look(acknowledged=7, pending=1, now=1_000.0 + second)
    (line,) = caplog.messages
    assert f"{URL} has acknowledged nothing of what it was sent for {SILENT_S:.0f} s" in line
    notices.answered()
    assert "answers again" in caplog.messages[-1]


def test_one_that_acknowledges_something_now_and_then_is_only_slow(caplog: pytest.LogCaptureFixture) -> None:
    notices = Notices(URL)
    for second in range(0, 600, 5):
        notices.look(acknowledged=second // 25, pending=1_000, now=float(second))
    assert caplog.messages == []


def test_where_nothing_waits_nothing_is_missed(caplog: pytest.LogCaptureFixture) -> None:
    notices = Notices(URL)
    for second in range(0, 600, 5):
        notices.look(acknowledged=3, pending=0, now=float(second))
    notices.look(acknowledged=3, pending=1, now=600.0)
    assert caplog.messages == []


def test_what_is_left_is_told_with_the_reason_why_it_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    box = Outbox(hello(), URL, blocked / "spool")
    box.put(Frame(0, b"-"), "steps")
    box.spill()
    Notices(URL).left(1, box)
    (line,) = caplog.messages
    assert line.endswith(
        f"not delivered to {URL}: nothing is kept (1 had no room and are lost: not a directory); "
        "the server will show the run as silent, since it knows of no end"
    )
