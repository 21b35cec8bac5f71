"""The Triton kernels: interpreted on the CPU, and compiled for processors that are not at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from scalescope.numerics.launches import Launches

from tests.programs import Programs

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
TESTS = Path(__file__).parent


COMPILE = "import runpy; runpy.run_module('scalescope.numerics.compile_kernels', run_name='__main__')"


def test_interpreted_they_pass_every_test_of_theirs() -> None:
    tests = str(TESTS / "interpreted_kernels.py")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "skipped" not in ended.stdout


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Triton keeps what it compiles."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return tmp_path


def run(programs: Programs, program: str, *arguments: str) -> None:
    """In a process of its own, which has to end well."""
    ended = programs.run(program, *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def compiled(programs: Programs, capability: int, cache: Path) -> list[Path]:
    """What Triton has in its cache once the kernels were compiled for a processor that is not at hand."""
    run(programs, COMPILE, str(capability))
    found = sorted(cache.rglob("*.cubin"))
    assert {each.stem for each in found} == {"measure", "count_if"}
    return found


def test_they_compile_for_a_processor_of_2020(programs: Programs, cache: Path) -> None:
    compiled(programs, 80, cache)


def test_what_is_ready_is_loaded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    grids: list[object] = []

    class Compiled:
        """As Triton's: with a grid it is loaded, and called it would be launched."""

        def __getitem__(self, grid: object) -> None:
            grids.append(grid)

    monkeypatch.setattr("scalescope.numerics.launches.compile_both", lambda _: (Compiled(), Compiled()))
    Launches(torch.device("cpu")).find()
    assert grids == [(1, 1, 1)] * 2


LAUNCH = """
import torch
from triton.runtime import driver
from scalescope.numerics import kernels
from scalescope.numerics.compile_kernels import Device
from scalescope.numerics.launches import TILE, WARPS
driver.set_active(Device(90))
words = torch.zeros(100, dtype=torch.int64)
options = {"tile": TILE, "num_warps": WARPS, "grid": (7,)}
for rows, tiles, factor in ((148, 3, 1.0), (1, 1, 65536.0), (16, 16, 0.1)):
    kernels.measure.warmup(words[1:], rows, 16 * rows, tiles, factor, words[3:], **options)
    kernels.count_if.warmup(torch.zeros(()), words, rows, 16, tiles, words[1:], **options)
"""


def test_what_is_compiled_ahead_is_what_every_launch_finds(programs: Programs, cache: Path) -> None:
    before = compiled(programs, 90, cache)
    run(programs, LAUNCH)
    assert sorted(cache.rglob("*.cubin")) == before
