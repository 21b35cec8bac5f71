"""Compilers run in a process of their own: in this one they would hold Python's lock, and the training with it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

# They take seconds of a processor that nobody else wants.
_PATIENCE_S = 300.0
_ROOM = Path(__file__).parent
# Where the package itself is, should the path to it be this process's alone.
_ROOT = _ROOM.parent.parent


class CompileError(Exception):
    """There is no compiled kernel; the text says why."""


def printed_by(program: str, *arguments: str, needs: str) -> str:
    """What a ``program`` of this room prints. Waits for it.

    Args:
        needs: the package that it is no use without.

    Raises:
        CompileError: if it is not installed, or the program fails.
        OSError, subprocess.SubprocessError: if it cannot be run, or does not end.
    """
    if importlib.util.find_spec(needs) is None:
        raise CompileError("not installed")
    paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(_ROOT))))
    # -P: what lies beside the program is no module of its own.
    ended = subprocess.run(  # noqa: S603  # our own file
        [sys.executable, "-P", str(_ROOM / program), *arguments],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
        raise CompileError(lines[-1])
    return ended.stdout
