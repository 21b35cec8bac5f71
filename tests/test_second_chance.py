"""Failed tests run once more: what passes alone is told of, what fails twice or with many others fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import second_chance

# Fails where it is run for the first time, as one does that a busy machine spoils.
SPOILED = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("name", {names})
def test_spoiled(name):
    ran = Path(__file__).with_name(name.replace(" ", "_"))
    first = not ran.exists()
    ran.touch()
    assert not first
"""
BROKEN = """
def test_broken():
    assert False

def test_good():
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project of its own."""
    (tmp_path / "pytest.ini").touch()
    return tmp_path


def run(folder: Path) -> int:
    return second_chance.main(["-q", "-n", "1", "--rootdir", str(folder), str(folder)])


def test_one_that_passes_alone_passes_and_is_told_of(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "test_file.py").write_text(SPOILED.format(names=["a name"]))
    assert run(folder) == 0
    told = capfd.readouterr().out.splitlines()
    (at,) = (number for number, line in enumerate(told) if "FAILED AT FIRST AND PASSED ALONE" in line)
    assert told[at + 1 :] == ["test_file.py::test_spoiled[a name]"]


def test_one_that_fails_twice_fails(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "test_file.py").write_text(SPOILED.format(names=["a name"]) + BROKEN)
    assert run(folder) == 1
    told = capfd.readouterr().out.splitlines()
    (at,) = (number for number, line in enumerate(told) if "FAILED TWICE" in line)
    assert told[at + 1 :] == ["test_file.py::test_broken"]


def test_where_many_fail_none_is_run_again(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "test_file.py").write_text(SPOILED.format(names=["a", "b", "c", "d"]))
    assert run(folder) == 1
    assert "once more" not in capfd.readouterr().out
