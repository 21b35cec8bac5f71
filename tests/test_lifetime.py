"""How recordings end: by a call, an exception, the process, a fork, or because nothing is left of the training."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from pathlib import Path

import pytest
import torch
from scalescope.lifetime import Lifetime, living
from scalescope.link import DELIVER_S, Link
from scalescope.recorder import Recorder
from scalescope.settings import read_settings
from scalescope.taps.edge import Edge
from scalescope.taps.process import FINISHED
from scalescope.updates import Update
from scalescope.watching import watch
from scalescope.wire import Bye

from tests.programs import Programs
from tests.small_server import Shelf, SmallServer, farewell, hello
from tests.small_training import Course, bf16, steps

pytestmark = pytest.mark.usefixtures("plain_environment")


def test_closing_while_an_exception_is_on_its_way_records_the_crash(server: SmallServer, shelf: Shelf) -> None:
    course = Course(precision=bf16)
    scope = watch(course.model, course.optimizer, url=server.url)

    def train() -> None:
        try:
            raise RuntimeError("diverged")
        finally:
            scope.close()

    with pytest.raises(RuntimeError):
        train()
    assert farewell(shelf.records).reason == "crashed"
    assert farewell(shelf.records).detail.endswith("RuntimeError: diverged\n")


def test_an_exception_handled_before_the_training_began_is_not_its_end(server: SmallServer, shelf: Shelf) -> None:
    course = Course(precision=bf16)
    try:
        raise ImportError("no apex")
    except ImportError:
        watch(course.model, course.optimizer, url=server.url).close()
    assert farewell(shelf.records).reason == "finished"


def test_a_crash_whose_text_has_no_utf_8_is_recorded(server: SmallServer, shelf: Shelf) -> None:
    course = Course(precision=bf16)
    with pytest.raises(OSError, match="caf"), watch(course.model, course.optimizer, url=server.url):
        raise OSError("cannot read caf\udce9.pt")
    assert farewell(shelf.records).detail.endswith("caf\\udce9.pt\n")


def test_leaving_by_an_exception_is_recorded_as_a_crash(server: SmallServer, shelf: Shelf) -> None:
    course = Course(precision=bf16)

    def train() -> None:
        with watch(course.model, course.optimizer, url=server.url):
            course.run(2)
            raise MemoryError("no more")

    with pytest.raises(MemoryError):
        train()
    assert farewell(shelf.records).reason == "crashed"
    assert farewell(shelf.records).detail.endswith("MemoryError: no more\n")
    assert steps(shelf.records) == [0, 1]


def test_leaving_by_sys_exit_with_an_error_is_a_crash(server: SmallServer, shelf: Shelf) -> None:
    course = Course(precision=bf16)
    with pytest.raises(SystemExit), watch(course.model, course.optimizer, url=server.url):
        sys.exit("no data")
    assert farewell(shelf.records).reason == "crashed"


def test_leaving_by_sys_exit_is_an_ordinary_end(server: SmallServer, shelf: Shelf) -> None:
    course = Course(precision=bf16)
    with pytest.raises(SystemExit), watch(course.model, course.optimizer, url=server.url):
        sys.exit(0)
    assert farewell(shelf.records).reason == "finished"


def test_a_closed_scope_keeps_nothing_of_the_training(server: SmallServer) -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    scope = watch(course.model, course.optimizer, course.scaler, url=server.url)
    course.run(2)
    scope.log(loss="high")
    scope.close()
    gone = [weakref.ref(thing) for thing in (course.optimizer, course.scaler, next(course.model.parameters()))]
    del course
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3
    assert scope.stats.refused == 1


@pytest.mark.parametrize("first", [0, 1])
def test_scopes_closed_in_any_order_leave_the_process_as_it_was(server: SmallServer, first: int) -> None:
    hook = sys.excepthook
    courses = [Course(precision=bf16), Course(precision=bf16)]
    scopes = [watch(course.model, course.optimizer, url=server.url) for course in courses]
    scopes[first].close()
    scopes[1 - first].close()
    assert sys.excepthook is hook


PROGRAM = """
import sys, torch, scalescope
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scope = scalescope.watch(model, optimizer, url=sys.argv[1])
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("end", "reason", "detail"),
    [
        ("", "finished", ""),
        ("sys.exit(3)", "finished", ""),
        ("raise RuntimeError('diverged')", "crashed", "RuntimeError: diverged"),
        ("raise KeyboardInterrupt", "crashed", "KeyboardInterrupt"),
    ],
)
def test_a_process_that_ends_says_how(
    programs: Programs, server: SmallServer, shelf: Shelf, end: str, reason: str, detail: str
) -> None:
    programs.run(PROGRAM + end, server.url)
    assert farewell(shelf.records).reason == reason
    assert farewell(shelf.records).detail.strip().endswith(detail)
    assert steps(shelf.records) == [0, 1, 2]


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_child_that_trains_or_closes_does_not_end_the_run(
    programs: Programs, server: SmallServer, shelf: Shelf
) -> None:
    fork = """
import os
child = os.fork()
if not child:
    optimizer.step()
    scope.log(loss=1.0)
    scope.close()
    sys.exit(0)
os.waitpid(child, 0)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
"""
    assert programs.run(PROGRAM + fork, server.url).returncode == 0
    assert steps(shelf.records) == [0, 1, 2, 3]
    assert farewell(shelf.records).reason == "finished"


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_child_forked_at_any_moment_trains_on_and_is_not_heard(
    programs: Programs, server: SmallServer, shelf: Shelf
) -> None:
    fork = """
import os
# As the link's thread holds it for a moment at every look.
lock = scope._tap._loop._recording._lock
lock.acquire()
child = os.fork()
if not child:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    scope.log(loss=1.0)
    os._exit(0 if scope.stats.errors == 0 else 1)
lock.release()
assert os.waitpid(child, 0)[1] == 0
"""
    assert programs.run(PROGRAM + fork, server.url).returncode == 0
    assert steps(shelf.records) == [0, 1, 2]


def test_a_training_of_which_nothing_is_left_is_delivered_without_a_wait(
    server: SmallServer, shelf: Shelf, tmp_path: Path
) -> None:
    recorder, edge = Recorder(), Edge()
    link = Link(hello(), read_settings({"SCALESCOPE_SPOOL": str(tmp_path)}, url=server.url), recorder)
    lifetime = Lifetime([Course().optimizer], edge, recorder, link)
    link.start()
    recorder.put(Update(0, 0.0))
    with shelf.changed:  # The server stores nothing meanwhile: a wait would take all the time there is for one.
        began = time.monotonic()
        del edge
        assert time.monotonic() - began < DELIVER_S
    shelf.until(lambda shelf: any(isinstance(record, Bye) for record in shelf.records))
    assert steps(shelf.records) == [0]
    assert farewell(shelf.records).reason == "finished"
    assert lifetime in living()
    lifetime.end(FINISHED)
    assert lifetime not in living()
