"""From a real training through real sockets to the store and back out: what was recorded is what happened."""

from __future__ import annotations

import copy
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import scalescope
import torch
from scalescope_server.store.engine import open_store
from torch import nn

from tests.programs import Programs
from tests.serving import Served
from tests.small_server import free_port

torch.set_num_threads(1)

OVERFLOWING = {3, 7, 8}
UPDATES = 12
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True),
    "AdamW fused": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=1e-4, foreach=True),
    "SGD fused": lambda model: torch.optim.SGD(model.parameters(), lr=1e-4, fused=True),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    """A loss whose gradients overflow fp16 at the chosen updates and at no other."""
    torch.manual_seed(step)
    with torch.autocast("cpu", dtype=torch.float16):
        loss: torch.Tensor = model(torch.randn(16, 8)).float().square().mean()
    # The square's own derivative is taken in fp32; times 2^24 it leaves fp16 at the last layer's output.
    return torch.mul(loss, 2.0**24 if step in OVERFLOWING else 1.0)


def first_to_overflow(model: nn.Module, scale: float, step: int) -> str | None:
    """Independently of the hook: a copy of the model, a plain backward, torch's own order of accumulation."""
    twin = copy.deepcopy(model)
    twin.zero_grad()
    names = {id(parameter): name for name, parameter in twin.named_parameters()}
    order: list[torch.Tensor] = []
    for parameter in twin.parameters():
        parameter.register_post_accumulate_grad_hook(order.append)
    (loss_of(twin, step) * scale).backward()
    bad = [p for p in order if p.grad is not None and not bool(p.grad.isfinite().all())]
    return names[id(bad[0])] if bad else None


@dataclass
class Training:
    """A loop as people write it, and what an observer beside it counts."""

    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    clips: bool
    losses: list[float] = field(default_factory=list)
    culprits: dict[int, str] = field(default_factory=dict)

    def run(self, updates: int = UPDATES, **watch: Any) -> tuple[nn.Module, scalescope.Scope | None]:
        model = network()
        optimizer = self.optimizer(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scope = scalescope.watch(model, optimizer, scaler, **watch) if watch else None
        for step in range(updates):
            self._observe(model, scaler, step)
            optimizer.zero_grad()
            loss = loss_of(model, step)
            scaler.scale(loss).backward()
            if self.clips:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            self.losses.append(float(loss.detach()))
            if scope is not None:
                scope.log(loss=loss, tokens=16)
        if scope is not None:
            scope.close()
        return model, scope

    def _observe(self, model: nn.Module, scaler: torch.amp.GradScaler, step: int) -> None:
        found = first_to_overflow(model, scaler.get_scale(), step)
        if found is not None:
            self.culprits[step] = found


@pytest.mark.parametrize("clips", [False, True], ids=["no clipping", "unscale_ and clip"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_exactly_the_updates_that_overflowed_are_skipped_and_the_first_culprit_is_named(
    shared: Served, optimizer: str, clips: bool
) -> None:
    training = Training(OPTIMIZERS[optimizer], clips)
    _, scope = training.run(url=shared.url, every=5)
    assert scope is not None
    assert set(training.culprits) == OVERFLOWING

    run = shared.get(f"/api/runs/{scope.run_id}").json()
    assert (run["attempted"], run["applied"], run["skipped"]) == (UPDATES, UPDATES - 3, 3)
    skipped = shared.get(f"/api/runs/{scope.run_id}/series?name=skipped&name=loss").json()["series"]
    assert skipped["skipped"]["step"] == list(range(UPDATES))
    assert [step for step, value in enumerate(skipped["skipped"]["last"]) if value] == sorted(OVERFLOWING)
    assert skipped["loss"]["last"] == training.losses

    events = shared.get(f"/api/runs/{scope.run_id}/events?kind=skip").json()["items"]
    assert {event["step"]: event["data"]["parameter"] for event in events} == training.culprits
    assert [event["data"]["scale"] for event in events] == [1024.0, 512.0, 256.0]
    assert all(event["data"]["nonfinite"][event["data"]["parameter"]] > 0 for event in events)


def test_the_histograms_of_a_run_hold_every_element_of_every_sample(shared: Served) -> None:
    _, scope = Training(OPTIMIZERS["AdamW"], clips=True).run(url=shared.url, every=5)
    assert scope is not None
    found = shared.get(f"/api/runs/{scope.run_id}/histogram?parameter=2.weight").json()
    # Updates 0, 5 and 10 by the clock, 3 because it was skipped, the others because it was.
    assert sorted(found["step"]) == [0, *range(3, 12)]
    for row, counts in enumerate(found["counts"]):
        assert sum(counts) + found["zero"][row] + found["inf"][row] + found["nan"][row] == 256


@pytest.mark.parametrize("clips", [False, True], ids=["no clipping", "unscale_ and clip"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_loss_and_weights_are_bit_identical_watched_and_unwatched(shared: Served, optimizer: str, clips: bool) -> None:
    assert_same_training(OPTIMIZERS[optimizer], clips=clips, url=shared.url)


def test_loss_and_weights_are_bit_identical_with_the_server_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALESCOPE_SPOOL", str(tmp_path / "spool"))
    assert_same_training(OPTIMIZERS["AdamW"], clips=True, url=f"http://127.0.0.1:{free_port()}")


def assert_same_training(optimizer: Callable[[nn.Module], torch.optim.Optimizer], *, clips: bool, url: str) -> None:
    plain, watched = Training(optimizer, clips), Training(optimizer, clips)
    model, _ = plain.run(40)
    twin, _ = watched.run(40, url=url)
    assert plain.losses == watched.losses
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), twin.parameters(), strict=True))


# Processes that import all there is, on a machine that runs the other tests beside them.
STARTED_WITHIN_S = 60.0

TRAINER = """
    import sys, time, torch, scalescope
    torch.set_num_threads(1)
    url, updates, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=20)
    scope = scalescope.watch(model, optimizer, scaler, url=url, run="told-run")
    print("watching", flush=True)
    for step in range(updates):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(8, 16)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scope.log(loss=loss)
        time.sleep(pause)
        if "--crash" in sys.argv and step == updates - 1:
            raise RuntimeError("the cluster is on fire")
    scope.close()
    print(scope.stats, flush=True)
"""


@pytest.fixture
def trainer(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAINER))

    def start(url: str, *arguments: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "SCALESCOPE_SPOOL": str(tmp_path / "spool")}
        command = [sys.executable, str(script), url, *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    return start


def test_the_crash_of_the_trainer_is_recorded_as_such(served: Served, programs: Programs) -> None:
    assert programs.run(textwrap.dedent(TRAINER), served.url, "5", "0", "--crash").returncode == 1
    run = served.get("/api/runs/told-run").json()
    assert run["state"] == "crashed"
    assert run["attempted"] == 5
    assert "RuntimeError: the cluster is on fire" in run["segments"][0]["detail"]


def test_a_second_start_of_a_run_is_a_new_segment_and_overwrites_nothing(served: Served, programs: Programs) -> None:
    for _ in range(2):
        assert programs.run(textwrap.dedent(TRAINER), served.url, "30", "0").returncode == 0
    run = served.get("/api/runs/told-run").json()
    assert run["attempted"] == 60
    assert [segment["first_step"] for segment in run["segments"]] == [0, 30]
    steps = served.get("/api/runs/told-run/series?name=scale").json()["series"]["scale"]["step"]
    assert steps == list(range(60))


@contextmanager
def server_process(database: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "scalescope.cli", "serve", "--port", str(port), "--database", database]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until_ready(port)
            yield process
        finally:
            process.kill()


def wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + STARTED_WITHIN_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)  # Polling another process: there is nothing to wait on.
        else:
            return
    raise AssertionError("the server did not start")


def test_a_server_killed_in_mid_run_and_started_again_holds_every_update_once(
    database: str, trainer: Callable[..., subprocess.Popen[str]]
) -> None:
    port, updates = free_port(), 400
    with trainer(f"http://127.0.0.1:{port}", str(updates), "0.01") as process:
        with server_process(database, port) as server:
            wait_for_steps(database, 50)
            os.kill(server.pid, signal.SIGKILL)
        with server_process(database, port):
            assert process.wait(STARTED_WITHIN_S) == 0
    store = open_store(database)
    bucket, series = store.reader.series("told-run", ["scale", "skipped"])
    events, _ = store.reader.events("told-run", kind="skip")
    summary = store.reader.latest("told-run")
    (ledger,) = store.reader.run("told-run").ledger
    store.close()
    assert bucket == 1
    assert series["scale"].step.tolist() == list(range(updates))
    skipped = [step for step, value in enumerate(series["skipped"].last.tolist()) if value]
    assert [event.step for event in events] == skipped
    assert (summary.attempted, summary.skipped, summary.state) == (updates, len(skipped), "finished")
    assert (ledger.lost, ledger.dropped) == (0, 0)


def wait_for_steps(database: str, count: int) -> None:
    deadline = time.monotonic() + STARTED_WITHIN_S
    store = open_store(database)
    try:
        while time.monotonic() < deadline:
            runs, _ = store.reader.runs()
            if runs and runs[0].attempted >= count:
                return
            time.sleep(0.05)  # Polling another process: there is nothing to wait on.
    finally:
        store.close()
    raise AssertionError(f"{count} updates never arrived")
