"""Runs pytest, and the few tests that failed once more without neighbours: ``python -m tests.second_chance -n 2 ...``.

Beside others on a busy machine real time can spoil a test that is not broken. One that then passes alone is told of
at the very end, so that it is mended; one that fails twice has failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

# Where more fail, something is broken.
AT_MOST = 3


def main(arguments: Sequence[str]) -> int:
    """Pytest's exit status, that of the second run where there was one."""
    # A folder of this run's own: it holds what failed now, and nothing of other days.
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "pytest", *arguments, "-o", f"cache_dir={cache}"]
        status = subprocess.run(command, check=False).returncode
        at_first = failed(Path(cache))
        if status != pytest.ExitCode.TESTS_FAILED or not 0 < len(at_first) <= AT_MOST:
            return status
        _say(f"{len(at_first)} failed: once more, without neighbours", at_first)
        status = subprocess.run([*command, "-n", "0", "--last-failed"], check=False).returncode
        twice = failed(Path(cache))
        _say("FAILED AT FIRST AND PASSED ALONE: mend what depends on the machine's speed", at_first - twice)
        _say("FAILED TWICE", at_first & twice)
        return status


def failed(cache: Path) -> set[str]:
    """The tests that failed when they were last run, by pytest's own notes in its ``cache`` folder."""
    noted = cache / "v" / "cache" / "lastfailed"
    return set(json.loads(noted.read_text())) if noted.exists() else set()


def _say(what: str, tests: set[str]) -> None:
    if tests:
        print(f"\n{f' {what} ':=^120}", *sorted(tests), sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
