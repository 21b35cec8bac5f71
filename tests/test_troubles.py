"""A real training whose server is in trouble: the same loss and weights, one log line, everything counted."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
import scalescope
import torch
from scalescope.scope import Stats

from tests.small_server import Shelf, free_port
from tests.small_server import serving as small_server
from tests.small_training import Course

UPDATES = 40
SKIPS = {3, 17}


@contextmanager
def dead() -> Iterator[str]:
    yield f"http://127.0.0.1:{free_port()}"


@contextmanager
def silent() -> Iterator[str]:
    """The kernel takes the connection, and nobody looks after it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def hanging_up() -> Iterator[str]:
    with small_server(Shelf(), manner="hangs up") as server:
        yield server.url


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process may hold anything."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def course() -> Course:
    return Course(scaler=torch.amp.GradScaler("cpu"), overflows=SKIPS)


def watched_by(url: str, course: Course) -> Stats:
    with scalescope.watch(course.model, course.optimizer, course.scaler, url=url) as scope:
        course.run(UPDATES)
    return scope.stats


@pytest.mark.parametrize("trouble", [dead, silent, hanging_up])
@pytest.mark.parametrize("disk", [nullcontext, full_disk])
def test_a_trouble_changes_no_bit_and_is_told_once_in_the_training_and_once_at_its_end(
    trouble: Callable[[], AbstractContextManager[str]],
    disk: Callable[[], AbstractContextManager[None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("SCALESCOPE_SPOOL", str(tmp_path / "spool"))
    plain, watched = course(), course()
    plain.run(UPDATES)
    with trouble() as url, disk():
        stats = watched_by(url, watched)
    assert watched.losses == plain.losses
    assert all(map(torch.equal, watched.model.parameters(), plain.model.parameters()))
    begins, ends = caplog.messages
    assert f"no connection to {url}" in begins
    assert f"{stats.pending + stats.dropped} records were not delivered to {url}" in ends
    if disk is full_disk:
        assert stats.pending == 0
        assert "lost: file too large" in ends
    else:
        assert stats.dropped == 0
        assert "scalescope push" in ends
    assert stats.errors == 0
