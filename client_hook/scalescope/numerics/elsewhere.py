"""Compilers run in a process of their own: in this one they would hold Python's lock, and the training with it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

# They take seconds; on a machine where every processor is busy, minutes.
_PATIENCE_S = 900.0
# A tenth of a busy processor. At the lowest priority, 19, two seconds of work took minutes.
_NICENESS = 10
_LOOK_S = 1.0
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


def step_back() -> None:
    """For the programs: let the training go first, and end when it ends."""
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()


def _follow(parent: int) -> None:
    # Who loses its parent gets another one.
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)
