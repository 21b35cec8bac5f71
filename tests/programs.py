"""Programs that run and end as those of ``python -c`` do, each in a fork of one process that has imported torch.

To import it takes seconds, and most of what is run here a few hundredths of one. ``programs`` is such a process;
``python -m tests.programs`` is how it is run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class Programs:
    """Runs one program at a time, in this process's environment as it is then."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """How ``program`` ended, and all that it wrote."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            files = [str(out), str(err)]
            asked = {"program": program, "arguments": arguments, "files": files, "environ": {**os.environ}}
            print(json.dumps(asked), file=self._process.stdin, flush=True)
            status = int(self._process.stdout.readline())
            return subprocess.CompletedProcess(program, status, out.read_text(), err.read_text())


@contextmanager
def programs() -> Iterator[Programs]:
    """Programs can be run here."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "tests.programs"]
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        yield Programs(process)


def _asked() -> str:
    """The next program, in the process that was forked for it; the other one does not return from here."""
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            return _prepared(asked)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    raise SystemExit


def _prepared(asked: dict[str, Any]) -> str:
    for number, path in ((0, os.devnull), *enumerate(asked["files"], 1)):
        file = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0)  # noqa: SIM115  the program's own, to its end
    sys.argv[:] = ["-c", *asked["arguments"]]
    os.environ.clear()
    os.environ.update(asked["environ"])
    program: str = asked["program"]
    return program


if __name__ == "__main__":
    import gc

    import torch

    # With its first optimizer torch imports its compiler, which takes longer than all the rest.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    import scalescope.watching  # noqa: F401  what ``watch`` imports when it is asked for

    # Forks share what none of them looks through for garbage.
    gc.freeze()

    # Here and not in a function: it ends as the main module of a process ends.
    exec(compile(_asked(), "<string>", "exec"), {"__name__": "__main__"})
