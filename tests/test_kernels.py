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

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
TESTS = Path(__file__).parent


def run(*arguments: str, **environment: str) -> str:
    """What another Python prints, which has to end well."""
    ended = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_interpreted_they_pass_every_test_of_theirs() -> None:
    tests = str(TESTS / "interpreted_kernels.py")
    printed = run("-m", "pytest", "-q", "-p", "no:cacheprovider", tests, TRITON_INTERPRET="1")
    assert "skipped" not in printed


def compiled(capability: int, cache: Path) -> list[Path]:
    """What Triton has in its cache once the kernels were compiled for a processor that is not at hand."""
    run("-m", "scalescope.numerics.compile_kernels", str(capability), TRITON_CACHE_DIR=str(cache))
    found = sorted(cache.rglob("*.cubin"))
    assert {each.stem for each in found} == {"measure", "count_if"}
    return found


def test_they_compile_for_a_processor_of_2020(tmp_path: Path) -> None:
    compiled(80, tmp_path)


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


def test_what_is_compiled_ahead_is_what_every_launch_finds(tmp_path: Path) -> None:
    before = compiled(90, tmp_path)
    run("-c", LAUNCH, TRITON_CACHE_DIR=str(tmp_path))
    assert sorted(tmp_path.rglob("*.cubin")) == before
