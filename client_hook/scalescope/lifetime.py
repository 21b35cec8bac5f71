"""How long a training is recorded: until its scope is closed, its process ends, or nothing is left of it.

What ends a recording must not keep alive what is recorded: the taps hang on the optimizers and the scaler, and
here they are only known by weak references.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Collection, Iterator, Sequence

import torch

from scalescope.link import Link
from scalescope.mirrors.echo import Echo
from scalescope.recorder import Recorder
from scalescope.taps.edge import Edge
from scalescope.taps.process import FINISHED, Ending, ProcessTap


class Lifetime:
    """One recording, from here until :meth:`end`; ``edge`` is where its taps run."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        edge: Edge,
        recorder: Recorder,
        link: Link,
        echo: Echo | None = None,
    ) -> None:
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._edge = weakref.ref(edge)
        self._recorder = recorder
        self._link = link
        self._echo = echo
        self._process = ProcessTap(self.end)
        # At exit the tap on the process ends it, which also waits.
        self._left = weakref.finalize(edge, self._leave)
        self._left.atexit = False
        _heed_forks()
        _LIVING.add(self)

    @property
    def run_id(self) -> str:
        return self._link.run_id

    def records(self, optimizers: Collection[torch.optim.Optimizer]) -> bool:
        """Whether any of ``optimizers`` is recorded here."""
        return any(reference() is optimizer for reference in self._optimizers for optimizer in optimizers)

    def end(self, ending: Ending) -> None:
        """Take the taps off and deliver what is left. Again: only a wait for the delivery."""
        edge = self._edge()
        if edge is not None:
            edge.detach()
        self._left.detach()
        self._process.remove()
        _LIVING.discard(self)
        self._link.close(*ending)
        if self._echo is not None:
            self._echo.close()

    def fall_silent(self) -> None:
        """In a forked child: it has our memory, not our thread. The recording goes on in the parent alone."""
        edge = self._edge()
        if edge is not None:
            edge.silent = True
        self._link.release()

    def _leave(self) -> None:
        """The training was collected, at any point of any thread: nothing here may wait."""
        self._recorder.finish_all()
        self._link.finish(*FINISHED)


_LIVING: set[Lifetime] = set()


def living() -> Iterator[Lifetime]:
    """The recordings that go on in this process."""
    yield from list(_LIVING)


@functools.cache
def _heed_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    for lifetime in living():
        lifetime.fall_silent()
    _LIVING.clear()
