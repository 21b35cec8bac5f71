"""The Triton kernels: interpreted on the CPU, and compiled for processors that are not at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("capability", [80, 90])
def test_they_compile_for_processors_that_are_not_at_hand(capability: int, tmp_path: Path) -> None:
    run("-m", "scalescope.numerics.compile_kernels", str(capability), TRITON_CACHE_DIR=str(tmp_path))
    assert {found.stem for found in tmp_path.rglob("*.cubin")} == {"measure", "count_if"}
