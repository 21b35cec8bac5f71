"""``watch``: what it takes, what it refuses, what it tells the server, and that it never disturbs a training."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import scalescope
import torch
from scalescope.errors import SettingError
from scalescope.scope import LiveScope, Scope
from scalescope.watching import watch
from scalescope.wire import Bye
from torch import nn

from tests.small_server import Shelf, SmallServer, farewell, serving
from tests.small_training import Course, bf16, fp16, steps

pytestmark = pytest.mark.usefixtures("plain_environment")


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
    assert all(parameter._backward_hooks is None for parameter in course.model.parameters())


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


def test_the_package_offers_watch_and_the_scopes_type() -> None:
    assert scalescope.watch is watch
    assert issubclass(LiveScope, scalescope.Scope)
