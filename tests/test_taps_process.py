"""The end of the process is heard once, whatever ends it, and not in a forked child."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable

import pytest
from scalescope.taps.process import FINISHED, Ending, ProcessTap, crash_text, ending_by
from scalescope.wire import ByeReason

from tests.programs import Programs

PRELUDE = """
import os, sys
from scalescope.taps.process import ProcessTap
def heard(ending):
    reason, detail = ending
    print(reason, detail.strip().rpartition(chr(10))[2], flush=True)
"""


Run = Callable[[str], tuple[int, list[str], str]]


@pytest.fixture
def run(programs: Programs) -> Run:
    """Runs a program: its exit code, the lines that were heard, and standard error."""

    def run(program: str) -> tuple[int, list[str], str]:
        done = programs.run(PRELUDE + program)
        return done.returncode, done.stdout.splitlines(), done.stderr

    return run


def test_an_ordinary_end_is_finished(run: Run) -> None:
    assert run("tap = ProcessTap(heard)") == (0, ["finished "], "")


def test_an_exception_is_told_first_to_the_user_and_then_to_the_scope(run: Run) -> None:
    code, heard, error = run(
        "def heard(ending):\n"
        "    reason, detail = ending\n"
        "    print(reason, detail.strip().rpartition(chr(10))[2])\n"
        "    tap.remove()\n"
        "    print('heard', file=sys.stderr)\n"
        "tap = ProcessTap(heard)\n"
        "raise RuntimeError('out of memory')"
    )
    assert code == 1
    assert heard == ["crashed RuntimeError: out of memory"]
    assert error.splitlines()[-2:] == ["RuntimeError: out of memory", "heard"]


def test_the_previous_hook_is_still_called(run: Run) -> None:
    _, heard, error = run(
        "sys.excepthook = lambda *error: print('the users hook', flush=True)\n"
        "tap = ProcessTap(lambda *told: (heard(*told), tap.remove()))\n"
        "raise ValueError('bad')"
    )
    assert heard == ["the users hook", "crashed ValueError: bad"]
    assert error == ""


def test_a_removed_tap_hears_nothing(run: Run) -> None:
    assert run("tap = ProcessTap(heard); tap.remove(); tap.remove(); sys.exit(3)") == (3, [], "")


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_child_does_not_count_as_the_end(run: Run) -> None:
    program = """
tap = ProcessTap(lambda _: (heard((os.getpid() == parent, '')), tap.remove()))
parent = os.getpid()
child = os.fork()
if not child:
    raise SystemExit(0)
os.waitpid(child, 0)
child = os.fork()
if not child:
    raise RuntimeError("in the child")
os.waitpid(child, 0)
"""
    code, heard, _ = run(program)
    assert (code, heard) == (0, ["True "])


def test_a_hook_that_was_put_over_ours_stays() -> None:
    heard: list[Ending] = []
    before = sys.excepthook
    try:
        tap = ProcessTap(heard.append)
        ours = sys.excepthook

        def over(*error: object) -> None:
            ours(*error)  # type: ignore[arg-type]

        sys.excepthook = over
        tap.remove()
        assert sys.excepthook is over
    finally:
        sys.excepthook = before


@pytest.mark.parametrize("first", [0, 1])
def test_taps_that_leave_in_any_order_leave_the_hook_as_it_was(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # A scope that nobody closed may still listen.
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    before = sys.excepthook
    taps = [ProcessTap(lambda *_: None), ProcessTap(lambda *_: None)]
    taps[first].remove()
    assert sys.excepthook is not before
    taps[1 - first].remove()
    assert sys.excepthook is before


def test_a_crash_is_told_to_every_tap_and_to_the_user_once(run: Run) -> None:
    _, heard, error = run("one, other = ProcessTap(heard), ProcessTap(heard)\nraise ValueError('bad')")
    assert heard[:2] == ["crashed ValueError: bad"] * 2
    assert error.count("ValueError: bad") == 1


def test_a_removed_tap_lets_go_of_what_it_called() -> None:
    class Training:
        def close(self, *_: object) -> None: ...

    training = Training()
    tap, gone = ProcessTap(training.close), weakref.ref(training)
    held = threading.Thread(target=tap.remove)  # a thread keeps the hook that stood when it was made
    held.start()
    held.join()
    del training
    assert gone() is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "finished"),
        (SystemExit(), "finished"),
        (SystemExit(0), "finished"),
        (SystemExit(3), "crashed"),
        (SystemExit("no data"), "crashed"),
        (GeneratorExit(), "finished"),
        (KeyboardInterrupt(), "crashed"),
        (ValueError("x"), "crashed"),
    ],
)
def test_what_leaves_a_training_says_how_it_ended(error: BaseException | None, reason: ByeReason) -> None:
    assert ending_by(error).reason == reason
    assert (ending_by(error) == FINISHED) is (reason == "finished")


def test_a_crash_whose_text_has_no_utf_8_can_be_told() -> None:
    assert crash_text(FileNotFoundError("caf\udce9.pt")).endswith("caf\\udce9.pt\n")


def test_a_long_traceback_keeps_its_end() -> None:
    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        raise ValueError("x" * 20_000 + "the end")

    with pytest.raises(ValueError, match="the end") as caught:
        deep(3)
    text = crash_text(caught.value)
    assert len(text) <= 16_000
    assert text.endswith("the end\n")
