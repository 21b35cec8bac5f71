"""``scalescope demo``: a server, a training, a progress line and a summary."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TextIO

import torch

from scalescope.demo.scenarios import Scenario
from scalescope.demo.server import is_ready, serving
from scalescope.demo.training import Moment, train
from scalescope.errors import CommandError
from scalescope.progress import ProgressLine
from scalescope.settings import read_settings


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    scenario: Scenario
    steps: int
    url: str | None
    port: int | None
    database: str | None
    exit_when_stored: bool


def run_demo(options: Options, out: TextIO) -> int:
    """Train and show; the answer is the exit code. Ctrl-C at any time ends in order.

    Raises:
        CommandError: if there is no server to send to, or not everything was stored.
    """
    if read_settings(os.environ).off:
        raise CommandError("SCALESCOPE_OFF is set, so nothing would be recorded: unset it")
    # So small a model is as fast on one thread, and a second one would fight the server for the other core.
    torch.set_num_threads(1)
    with _terminated_as_interrupted(), _server(options) as (url, ours):
        last, interrupted = _train(options, url, out)
        _summarise(last, options.scenario, out)
        if ours and not (interrupted or options.exit_when_stored):
            _stay_up(url, out)
    return 0


@contextmanager
def _server(options: Options) -> Iterator[tuple[str, bool]]:
    if options.url is None:
        with serving(options.port, options.database) as found:
            yield found
        return
    if not is_ready(options.url):
        raise CommandError(f"no scalescope server is ready at {options.url}: start one with scalescope serve")
    yield options.url, False


def _train(options: Options, url: str, out: TextIO) -> tuple[Moment, bool]:
    """The last moment of the training, and whether it was interrupted."""
    line = ProgressLine(out, options.steps, "updates")
    last: Moment | None = None

    def report(moment: Moment) -> None:
        nonlocal last
        if last is None:
            print(f"Dashboard: {moment.scope.url}", file=out, flush=True)
        last = moment
        line.show(moment.attempted, _state(moment))

    try:
        train(options.scenario, steps=options.steps, url=url, report=report)
    except KeyboardInterrupt:
        if last is None:
            raise
    assert last is not None  # the training reports before its first update
    interrupted = last.attempted < options.steps
    line.finish("Interrupted." if interrupted else "Trained.")
    return last, interrupted


def _summarise(last: Moment, scenario: Scenario, out: TextIO) -> None:
    stats, applied = last.scope.stats, last.attempted - last.skipped
    print(f"{scenario.name}: {scenario.reason}.", file=out)
    print(f"{last.attempted} updates attempted, {applied} applied, {_state(last)}.", file=out)
    if stats.pending or stats.dropped:
        raise CommandError(f"{stats.pending} records are not stored and {stats.dropped} were dropped; see above")
    print(f"All of it is stored: {last.scope.url}", file=out, flush=True)


def _state(moment: Moment) -> str:
    loss = "" if math.isnan(moment.loss) else f"loss {moment.loss:.2f}, "
    return f"{loss}scale 2^{math.log2(moment.scale):.0f}, {moment.skipped} skipped"


def _stay_up(url: str, out: TextIO) -> None:
    with suppress(KeyboardInterrupt):
        print(f"The server stays up at {url} (Ctrl-C stops it)", file=out, flush=True)
        threading.Event().wait()


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Whoever ends us with SIGTERM gets the same orderly end as Ctrl-C: the server must not stay behind."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
