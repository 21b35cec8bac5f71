"""The progress line: rewritten on a terminal, plain and rare on a pipe."""

from __future__ import annotations

import io
from dataclasses import dataclass

from scalescope.progress import ProgressLine, Stages


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_terminal_sees_a_bar_with_a_rate() -> None:
    out, clock = Terminal(), Clock()
    line = ProgressLine(out, 100, "updates", clock)
    line.show(0)
    clock.now += 2.0
    line.show(50, "loss 2.5")
    line.finish("Done.")
    assert out.getvalue().split("\r\x1b[K") == [
        "",
        "[                    ] 0/100 updates, 0/s",
        "[##########          ] 50/100 updates, 25/s, loss 2.5",
        "Done.\n",
    ]


def test_a_terminal_is_written_to_at_most_ten_times_a_second() -> None:
    out, clock = Terminal(), Clock()
    line = ProgressLine(out, 100, "updates", clock)
    for done in range(100):
        line.show(done)
        clock.now += 0.01
    assert 9 <= out.getvalue().count("\r") <= 11


def test_a_pipe_gets_plain_lines_now_and_then() -> None:
    out, clock = io.StringIO(), Clock()
    line = ProgressLine(out, 12, "updates", clock)
    for done in range(13):
        line.show(done)
        clock.now += 1.0
    line.finish("Done.")
    assert out.getvalue() == "5/12 updates, 1/s\n10/12 updates, 1/s\nDone.\n"


def test_short_work_on_a_pipe_shows_only_its_result() -> None:
    out = io.StringIO()
    line = ProgressLine(out, 0, "records")
    line.show(0)
    line.finish("Done.")
    assert out.getvalue() == "Done.\n"


def test_work_whose_end_is_not_known_has_no_bar() -> None:
    out, clock = Terminal(), Clock()
    line = ProgressLine(out, None, "kB", clock)
    line.show(0)
    clock.now += 2.0
    line.show(3000, "updates.csv")
    assert out.getvalue().split("\r\x1b[K")[1:] == ["0 kB, 0/s", "3000 kB, 1500/s, updates.csv"]


def test_work_of_several_sorts_has_a_bar_for_each() -> None:
    out = Terminal()
    stages = Stages(out)
    stages.show("pages copied", 4, 8)
    stages.show("revisions", 1, 2)
    stages.finish("Done.")
    assert out.getvalue().split("\r\x1b[K")[1:] == [
        "[##########          ] 4/8 pages copied, 4000/s",
        "[##########          ] 1/2 revisions, 1000/s",
        "Done.\n",
    ]
