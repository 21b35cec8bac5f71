"""``watch`` from end to end of the hook: a real training, a real socket, and nothing left behind."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import scalescope
import torch
from scalescope.errors import SettingError
from scalescope.greeting import new_id
from scalescope.scope import LiveScope, Scope
from scalescope.watching import watch
from scalescope.wire import Bye, Layout, Record
from torch import nn

from tests.small_server import Shelf, SmallServer, free_port, serving
from tests.small_training import Course, bf16, columns, events, fp16, samples, steps


@pytest.fixture(autouse=True)
def _plain_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SCALESCOPE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SCALESCOPE_SPOOL", str(tmp_path / "spool"))


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def server(shelf: Shelf) -> Iterator[SmallServer]:
    with serving(shelf) as running:
        yield running


def farewell(records: list[Record]) -> Bye:
    assert isinstance(records[-1], Bye)
    return records[-1]


def test_a_whole_training_arrives(server: SmallServer, shelf: Shelf) -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"), overflows={3, 7, 8})
    scope = scalescope.watch(course.model, course.optimizer, course.scaler, url=server.url, every=5)
    for _ in range(20):
        loss = course.update()
        scope.log(loss=loss, tokens=32)
    scope.close()
    records = shelf.records
    assert isinstance(records[0], Layout)
    assert steps(records) == list(range(20))
    assert {step for step, skipped in columns(records)["skipped"].items() if skipped} == {3, 7, 8}
    assert events(records, "skip").keys() == {3, 7, 8}
    assert samples(records).keys() == {0, 3, 5, 7, 8, 10, 15}
    assert list(columns(records)["loss"].values()) == course.losses
    assert farewell(records).reason == "finished"
    assert scope.stats.pending == scope.stats.dropped == scope.stats.errors == scope.stats.refused == 0
    assert scope.stats.sent == len(records)


def test_the_greeting_says_what_is_trained(server: SmallServer, shelf: Shelf) -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu", init_scale=256.0))
    scheduler = torch.optim.lr_scheduler.ConstantLR(course.optimizer)
    scope = watch(
        course.model,
        course.optimizer,
        course.scaler,
        scheduler=scheduler,
        project="speech",
        name="first",
        tags=["a", "b"],
        config={"width": 8},
        url=server.url + "/",
        every=3,
    )
    scope.close()
    hello = shelf.hellos[0]
    assert (hello.run, scope.url) == (scope.run_id, f"{server.url}/runs/{scope.run_id}")
    assert (hello.project, hello.name, hello.tags, hello.every) == ("speech", "first", ["a", "b"], 3)
    assert json.loads(hello.config) == {"width": 8}
    assert hello.environment["scheduler"] == "ConstantLR"
    assert hello.scaler is not None
    assert hello.scaler.scale == 256.0
    assert [optimizer.name for optimizer in hello.optimizers] == ["AdamW"]
    assert not hello.resumed


def test_a_run_that_is_resumed_is_a_new_segment_of_it(server: SmallServer, shelf: Shelf) -> None:
    course = Course(precision=bf16)
    first = watch(course.model, course.optimizer, url=server.url)
    first.close()
    second = watch(course.model, course.optimizer, url=server.url, run=first.run_id)
    second.close()
    assert second.run_id == first.run_id
    assert [hello.resumed for hello in shelf.hellos] == [False, True]
    assert shelf.hellos[0].segment != shelf.hellos[1].segment


def test_a_disabled_scaler_is_no_scaler(server: SmallServer, shelf: Shelf) -> None:
    course = Course(precision=bf16)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scope = watch(course.model, course.optimizer, scaler, url=server.url)
    course.run(3)
    scope.close()
    assert shelf.hellos[0].scaler is None
    assert steps(shelf.records) == [0, 1, 2]
    assert type(scaler) is torch.amp.GradScaler


def test_the_last_update_arrives_with_its_late_values_before_training_ends(server: SmallServer, shelf: Shelf) -> None:
    course = Course(precision=bf16)
    scope = watch(course.model, course.optimizer, url=server.url)
    course.run(2)
    scope.log(loss=1.0)
    course.backward()
    shelf.until(lambda shelf: steps(shelf.records) == [0, 1])
    assert columns(shelf.records)["loss"] == {1: 1.0}
    scope.close()


def test_training_with_the_server_away_is_bit_identical_and_nothing_is_lost(tmp_path: Path) -> None:
    def train(url: str | None) -> Course:
        course = Course(scaler=torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=5), clip=True)
        scope = None if url is None else watch(course.model, course.optimizer, course.scaler, url=url)
        course.run(100)
        if scope is not None:
            scope.close()
            assert scope.stats.errors == scope.stats.dropped == 0
        return course

    plain, watched = train(None), train(f"http://127.0.0.1:{free_port()}")
    assert plain.losses == watched.losses
    assert all(map(torch.equal, plain.weights(), watched.weights()))
    assert len(list((tmp_path / "spool").iterdir())) == 1


def test_off_is_an_object_that_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALESCOPE_OFF", "1")
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    scope = watch(course.model, course.optimizer, course.scaler)
    assert type(scope) is Scope
    assert type(course.scaler) is torch.amp.GradScaler
    with scope:
        scope.log(loss=1.0)
    assert (scope.run_id, scope.url, scope.stats.sent) == ("", "", 0)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"model": 3}, "model"),
        ({"model": []}, "model"),
        ({"optimizer": [None]}, "optimizer"),
        ({"scaler": "dynamic"}, "scaler"),
        ({"every": 0}, "every"),
        ({"url": "127.0.0.1:8765"}, "url"),
        ({"run": "a b"}, "run"),
        ({"project": ""}, "project"),
        ({"name": 7}, "name"),
        ({"tags": "one"}, "tags"),
        ({"tags": ["\ud800"]}, "tags"),
        ({"config": 7}, "config"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused_before_anything_is_hooked(
    wrong: dict[str, object], named: str
) -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    arguments = {"model": course.model, "optimizer": course.optimizer, "scaler": course.scaler} | wrong
    with pytest.raises(SettingError) as caught:
        watch(**arguments)  # type: ignore[arg-type]
    assert caught.value.name == named
    assert type(course.scaler) is torch.amp.GradScaler
    assert not any(parameter._post_accumulate_grad_hooks for parameter in course.model.parameters())


def test_closing_twice_puts_everything_back_once(server: SmallServer, shelf: Shelf) -> None:
    hook = sys.excepthook
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    scope = watch(course.model, course.optimizer, course.scaler, url=server.url)
    course.run(1)
    scope.close()
    scope.close()
    course.run(1)
    scope.log(loss=1.0)
    assert sys.excepthook is hook
    assert type(course.scaler) is torch.amp.GradScaler
    assert steps(shelf.records) == [0]
    assert sum(isinstance(record, Bye) for record in shelf.records) == 1


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


def test_two_trainings_report_to_runs_of_their_own(server: SmallServer, shelf: Shelf) -> None:
    one, other = Course(precision=bf16), Course(precision=fp16, scaler=torch.amp.GradScaler("cpu"))
    with (
        watch(one.model, one.optimizer, url=server.url) as first,
        watch(other.model, other.optimizer, other.scaler, url=server.url) as second,
    ):
        assert first.run_id != second.run_id
    assert {hello.run for hello in shelf.hellos} == {first.run_id, second.run_id}


def test_a_model_that_cannot_be_watched_trains_all_the_same(
    server: SmallServer, shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    class Secretive(nn.Linear):
        def named_parameters(self, *_: object, **__: object) -> Iterator[tuple[str, nn.Parameter]]:
            raise RuntimeError("no visitors")

    model = Secretive(2, 2)
    optimizer = torch.optim.SGD([model.weight, model.bias], lr=0.1)
    scope = watch(model, optimizer, url=server.url)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    scope.log(loss=1.0)
    scope.close()
    assert scope.stats.errors == 1
    assert "no visitors" in caplog.text
    assert [type(record) for record in shelf.records] == [Bye]


def test_what_the_hook_costs_is_told(server: SmallServer) -> None:
    course = Course(scaler=torch.amp.GradScaler("cpu"))
    scope = watch(course.model, course.optimizer, course.scaler, url=server.url, every=5)
    course.run(20)
    unsampled, sampled = scope.stats.unsampled, scope.stats.sampled
    scope.close()
    assert (unsampled.updates, sampled.updates) == (16, 4)
    assert unsampled.median_us is not None
    assert sampled.median_us is not None
    assert 0 < unsampled.median_us < sampled.median_us


def test_a_model_that_keeps_its_scope_copies_and_pickles(server: SmallServer) -> None:
    course = Course(precision=bf16)
    scope = watch(course.model, course.optimizer, url=server.url)
    vars(course.model)["scope"] = scope
    assert type(vars(copy.deepcopy(course.model))["scope"]) is Scope
    assert type(pickle.loads(pickle.dumps(scope))) is Scope
    scope.close()


def test_a_value_may_have_any_name(server: SmallServer, shelf: Shelf) -> None:
    course = Course(precision=bf16)
    with watch(course.model, course.optimizer, url=server.url) as scope:
        course.run(1)
        scope.log(self=1.0)
        Scope().log(self=1.0)
    assert columns(shelf.records)["self"] == {0: 1.0}


def test_what_fails_while_watching_begins_leaves_the_training_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> str:
        raise OSError("no host name")

    monkeypatch.setattr("socket.gethostname", fail)
    course = Course(precision=bf16)
    assert type(watch(course.model, course.optimizer)) is Scope
    assert "no host name" in caplog.text


def test_watching_the_same_optimizer_again_closes_the_scope_before(
    server: SmallServer, shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    course, later = Course(precision=bf16), Shelf()
    first = watch(course.model, course.optimizer, url=server.url, run="nb")
    course.run(2)
    with serving(later) as other:
        second = watch(course.model, course.optimizer, url=other.url)
        assert farewell(shelf.records).reason == "finished"
        course.run(3)
        first.close()
        course.run(1)
        second.close()
    assert (steps(shelf.records), steps(later.records)) == ([0, 1], [0, 1, 2, 3])
    assert caplog.messages == ["scalescope: run nb is closed: its optimizer is being watched anew"]


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
def test_a_process_that_ends_says_how(server: SmallServer, shelf: Shelf, end: str, reason: str, detail: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM + end, server.url], capture_output=True, check=False)
    assert farewell(shelf.records).reason == reason
    assert farewell(shelf.records).detail.strip().endswith(detail)
    assert steps(shelf.records) == [0, 1, 2]


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_child_that_trains_or_closes_does_not_end_the_run(server: SmallServer, shelf: Shelf) -> None:
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
    subprocess.run([sys.executable, "-c", PROGRAM + fork, server.url], capture_output=True, check=True)
    assert steps(shelf.records) == [0, 1, 2, 3]
    assert farewell(shelf.records).reason == "finished"


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_child_forked_at_any_moment_trains_on_and_is_not_heard(server: SmallServer, shelf: Shelf) -> None:
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
    subprocess.run([sys.executable, "-c", PROGRAM + fork, server.url], capture_output=True, check=True, timeout=60)
    assert steps(shelf.records) == [0, 1, 2]


def test_ids_are_short_random_and_fit_a_url() -> None:
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(one) == 12 and set(one) <= set("abcdefghijklmnopqrstuvwxyz0123456789") for one in ids)


def test_the_package_offers_watch_and_the_scopes_type() -> None:
    assert scalescope.watch is watch
    assert issubclass(LiveScope, scalescope.Scope)
