"""Runs of other trackers that a training is echoed to: the real libraries, and what they have stored."""

from __future__ import annotations

import gc
import json
import logging
import struct
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
import torch
import wandb
from scalescope import SettingError, watch
from scalescope.mirrors import echo
from scalescope.mirrors.chosen import mirrors_of
from scalescope.mirrors.mirror import Finding, Point
from scalescope.mirrors.mlflow import MlflowMirror
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from tests.serving import DEADLINE_S, Served
from tests.small_server import free_port
from tests.small_training import Course

pytestmark = pytest.mark.usefixtures("plain_environment", "quick")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Echo as often as a test can wait for."""
    monkeypatch.setattr(echo, "TICK_S", 0.02)
    monkeypatch.setattr(echo, "FINDINGS_S", 0.05)


class Own:
    """A mirror of one's own."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.findings: list[Finding] = []
        self.threads: set[str] = set()
        self._changed = threading.Condition()

    def scalars(self, points: Sequence[Point]) -> None:
        with self._changed:
            self.threads.add(threading.current_thread().name)
            self.points += points

    def finding(self, finding: Finding) -> None:
        with self._changed:
            self.findings.append(finding)
            self._changed.notify_all()

    def until_found(self) -> None:
        """Wait for the first finding. What stands before this in a list of mirrors has it as well."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.findings, DEADLINE_S), "no finding came"


def course(*overflows: int) -> Course:
    """A training in fp16, with a skip at each of ``overflows``."""
    return Course(scaler=torch.amp.GradScaler("cpu", init_scale=1024.0), overflows=overflows)


def train(url: str, mirrors: list[object], *overflows: int) -> Course:
    """Six updates. Where some were skipped, and the last mirror is one's own, until it has heard what that was."""
    trained = course(*overflows)
    with watch(trained.model, trained.optimizer, trained.scaler, url=url, mirror=mirrors, every=2):
        trained.run(6)
        if overflows and isinstance(mirrors[-1], Own):
            mirrors[-1].until_found()
    return trained


def test_an_own_object_gets_the_numbers_and_the_findings_from_a_thread_of_its_own(served: Served) -> None:
    own = Own()
    train(served.url, [own], 0, 1)
    assert [point.values["scale"] for point in own.points if "scale" in point.values] == [1024, 512, 256, 256, 256, 256]
    assert {point.step for point in own.points if "grad_norm" in point.values} >= {0, 1, 2, 4}
    assert own.threads == {"scalescope-mirror"}
    finding = own.findings[0]
    assert (finding.code, finding.severity, finding.first_step) == ("CALIBRATION", "info", 0)


def test_tensorboard_has_scalars_at_their_update_and_the_finding_as_text(served: Served, tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        train(served.url, [writer, Own()], 0, 1)
    stored = EventAccumulator(str(tmp_path)).Reload()
    scales = stored.Scalars("scalescope/scale")
    assert [(each.step, each.value) for each in scales] == [(0, 1024), (1, 512), (2, 256), (3, 256), (4, 256), (5, 256)]
    assert [each.value for each in stored.Scalars("scalescope/skipped_total")] == [1, 2, 2, 2, 2, 2]
    assert {"scalescope/grad_norm", "scalescope/zero_share", "scalescope/flush_share"} <= set(stored.Tags()["scalars"])
    (text,) = stored.Tensors("scalescope/findings/CALIBRATION/text_summary")[-1].tensor_proto.string_val
    assert b"CALIBRATION" in text


@pytest.fixture
def wandb_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[wandb.Run]:
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(
        project="mirrored", mode="offline", dir=str(tmp_path), settings=wandb.Settings(console="off")
    ) as run:
        yield run


def wandb_records(path: Path) -> Iterator[Any]:
    """What a finished offline run has stored: a log of blocks, whose pieces say whether they begin or end a record."""
    messages: Any = import_module("wandb.proto.wandb_internal_pb2")
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32_768 - at % 32_768 < 7:
            at += 32_768 - at % 32_768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = messages.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def test_wandb_keeps_its_users_steps_and_has_an_axis_of_ours(served: Served, wandb_run: wandb.Run) -> None:
    trained = course(0, 1)
    with watch(trained.model, trained.optimizer, trained.scaler, url=served.url, mirror=wandb_run, every=2):
        for _ in range(3):
            trained.update()
            wandb_run.log({"loss": trained.losses[-1]})
    assert wandb_run.step == 3
    wandb_run.finish()
    # The file is whole when what writes it has ended.
    wandb.teardown()
    records = list(wandb_records(Path(wandb_run.settings.sync_file)))
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    own = [row["loss"] for row in rows if "loss" in row]
    assert own == trained.losses
    assert any(row.get("scalescope/step") == 2 and row["scalescope/scale"] == 256 for row in rows)
    definitions = [record.metric for record in records if record.HasField("metric")]
    assert any(each.step_metric == "scalescope/step" for each in definitions)


# Its tables are declared in a way that SQLAlchemy warns of.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlflow_has_metrics_at_their_update_and_the_finding_as_a_tag(served: Served, tmp_path: Path) -> None:
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow.set_experiment("mirrored")
    with mlflow.start_run() as run:
        named = mirrors_of([mlflow, run, mlflow.MlflowClient()])
        assert [isinstance(each, MlflowMirror) and each.run_id == run.info.run_id for each in named] == [True] * 3
        train(served.url, [mlflow, Own()], 0, 1)
    client = mlflow.MlflowClient()
    scales = client.get_metric_history(run.info.run_id, "scalescope/scale")
    assert [(each.step, each.value) for each in sorted(scales, key=lambda each: each.step)] == list(
        enumerate([1024, 512, 256, 256, 256, 256])
    )
    assert client.get_run(run.info.run_id).data.tags["scalescope.finding.CALIBRATION"].startswith("info: ")


def test_a_mirror_that_raises_is_told_once_and_the_training_is_the_same(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Own):
        def scalars(self, points: Sequence[Point]) -> None:
            raise RuntimeError("the run is finished")

    own = Own()
    with caplog.at_level(logging.WARNING, "scalescope"):
        mirrored = train(served.url, [Broken(), own], 0, 1)
    alone = course(0, 1)
    alone.run(6)
    assert mirrored.losses == alone.losses
    assert [message for message in caplog.messages if "mirroring to Broken failed" in message] == caplog.messages
    assert len(caplog.messages) == 1
    assert own.points


def test_numbers_are_mirrored_where_the_server_is_away() -> None:
    own = Own()
    train(f"http://127.0.0.1:{free_port()}", [own])
    assert [point.step for point in own.points if "scale" in point.values] == list(range(6))
    assert own.findings == []


def test_a_mirror_that_hangs_holds_up_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echo, "CLOSE_S", 0.05)
    released = threading.Event()

    class Hanging(Own):
        def scalars(self, points: Sequence[Point]) -> None:
            released.wait()

    trained = train(served.url, [Hanging()])
    assert trained.done == 6
    released.set()


def test_a_training_that_is_forgotten_is_echoed_to_its_end_and_leaves_no_thread(served: Served) -> None:
    own, trained = Own(), course()
    # That of a test before may still be at its end.
    others = set(threading.enumerate())
    watch(trained.model, trained.optimizer, trained.scaler, url=served.url, mirror=own)
    trained.run(4)
    (thread,) = [each for each in set(threading.enumerate()) - others if each.name == "scalescope-mirror"]
    # The server is of this process too: a collection in its thread would have it wait for itself.
    gc.disable()
    try:
        del trained
        # Again and again: the thread that sends may have something of it in its hands. With pauses: nothing else runs
        # meanwhile.
        for _ in range(20):
            gc.collect()
            thread.join(1.0)
            if not thread.is_alive():
                break
    finally:
        gc.enable()
    assert not thread.is_alive()
    assert {point.step for point in own.points} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (3, "a run of W&B, a SummaryWriter"),
        (SimpleNamespace(add_scalar=print), "a run of W&B, a SummaryWriter"),
        (wandb, r"call wandb\.init\(\) before"),
        (mlflow, r"call mlflow\.start_run\(\) before"),
    ],
)
def test_what_is_no_mirror_is_refused_before_anything_is_hooked(given: object, expected: str) -> None:
    trained = course()
    with pytest.raises(SettingError, match=expected):
        watch(trained.model, trained.optimizer, trained.scaler, mirror=given)
    assert type(trained.scaler) is torch.amp.GradScaler
