"""What a loop of the catalogue is, and how it is judged: bare, counted and watched must agree."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TypeVar

import pytest
import torch

from tests.loops.bits import differing
from tests.loops.comparing import compare
from tests.loops.running import CountedRun, HookedRun, Run

Loop = Callable[[Run], None]
Judge = Callable[[], Sequence[str]]


@dataclass(frozen=True)
class Entry:
    """One loop. ``judge`` answers with what was compared, in words, or raises AssertionError.

    ``runs``: whether torch runs it on this machine; if not, that is what its judge has shown.
    """

    family: str
    name: str
    what: str
    judge: Callable[[], Sequence[str]]
    runs: bool = True


@dataclass
class Family:
    """Loops of one kind. Functions join by :meth:`loop`; their docstring says what they are."""

    title: str
    entries: list[Entry] = field(default_factory=list)

    def loop(self, name: str) -> Callable[[Loop], Loop]:
        def add(loop: Loop) -> Loop:
            self.add(name, _sentence(loop), loop)
            return loop

        return add

    def refused(self, name: str, error: type[BaseException], text: str) -> Callable[[Loop], Loop]:
        """A loop that torch refuses to run on this machine, with the hook and without it."""

        def add(loop: Loop) -> Loop:
            self.entries.append(Entry(self.title, name, _sentence(loop), partial(_refused, loop, error, text), False))
            return loop

        return add

    def judged(self, name: str) -> Callable[[Judge], Judge]:
        """A loop that runs in other processes, or with more than the hook: it judges itself."""

        def add(judge: Judge) -> Judge:
            self.entries.append(Entry(self.title, name, _sentence(judge), judge))
            return judge

        return add

    def add(self, name: str, what: str, loop: Loop) -> None:
        self.entries.append(Entry(self.title, name, what, partial(compared, loop)))


def _sentence(loop: Callable[..., object]) -> str:
    return " ".join((loop.__doc__ or "").split()).rstrip(".")


@cache
def outcome(entry: Entry) -> tuple[str, ...]:
    """What was compared, in words; each loop is judged once in a process.

    Raises:
        AssertionError: where anything differs.
    """
    return tuple(entry.judge())


def compared(loop: Loop) -> list[str]:
    """Runs ``loop`` bare, counted and watched: bits, records and everything that is put back."""
    bare, counted = _run(loop, Run()), _run(loop, CountedRun())
    assert not differing(bare.state(), counted.state()), "counting changed the training"
    with ExitStack() as stack:
        hooked = _run(loop, HookedRun(stack))
        assert hooked.close() == []
        assert not differing(bare.state(), hooked.state())
    watches = zip(hooked.watches, counted.watches, strict=True)
    words = ["; ".join(compare(watch.records, truth.counter.count)) for watch, truth in watches]
    assert all(hooked.checks.values()), hooked.checks
    return [" and ".join(words), *hooked.checks]


def _refused(loop: Loop, error: type[BaseException], text: str) -> list[str]:
    """Torch raises ``error``, whose text has ``text`` in it, with the hook and without."""
    for hooked in (False, True):
        with ExitStack() as stack, pytest.raises(error, match=re.escape(text)):
            _run(loop, HookedRun(stack) if hooked else Run())
    return [f"{error.__name__}: {text}"]


R = TypeVar("R", bound=Run)


def _run(loop: Loop, run: R) -> R:
    torch.manual_seed(0)
    random.seed(0)
    loop(run)
    return run
