"""Programs that compile in a process of their own."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from scalescope.numerics import elsewhere
from scalescope.numerics.elsewhere import CompileError, printed_by


def program(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / "program.py").write_text(text)
    monkeypatch.setattr(elsewhere, "_ROOM", folder)
    return "program.py"


def test_what_it_prints_is_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = program(tmp_path, "import sys, scalescope\nprint(sys.argv[1:])", monkeypatch)
    assert printed_by(name, "a", "b", needs="json") == "['a', 'b']\n"


def test_one_that_fails_is_told_by_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = program(tmp_path, "raise RuntimeError('no such processor')", monkeypatch)
    with pytest.raises(CompileError, match="RuntimeError: no such processor"):
        printed_by(name, needs="json")


def test_one_that_says_nothing_is_told_by_its_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = program(tmp_path, "import os; os._exit(3)", monkeypatch)
    with pytest.raises(CompileError, match="exit status 3"):
        printed_by(name, needs="json")


def test_files_beside_it_are_no_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = program(tmp_path, "import json; print(json.dumps(1))", monkeypatch)
    (tmp_path / "json.py").write_text("raise RuntimeError")
    assert printed_by(name, needs="json") == "1\n"


def test_without_what_it_needs_it_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(CompileError, match="not installed"):
        printed_by("nowhere.py", needs="numba")


PARENT = """
import subprocess, sys
child = "import threading, scalescope.numerics.elsewhere as e; e.step_back(); print(1); threading.Event().wait()"
process = subprocess.Popen([sys.executable, "-uc", child], stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux to look")
def test_a_program_ends_with_the_training_that_asked_for_it() -> None:
    parent = subprocess.run([sys.executable, "-W", "ignore", "-c", PARENT], capture_output=True, text=True, check=True)
    child, deadline = int(parent.stdout), time.monotonic() + 60
    while Path(f"/proc/{child}/stat").exists() and not _is_gone(child):
        assert time.monotonic() < deadline


def _is_gone(process: int) -> bool:
    """Dead, or a zombie whose new parent has not looked."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
