"""A compose-like run: two server processes on one Postgres, a real training, and the server it is with is killed."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from scalescope_server.findings.catalogue import Case, conclude, findings, fold
from scalescope_server.findings.scaler import ScalerRules
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.judging import BEFORE_ALL
from scalescope_server.store.records import RunId

from tests.postgres import Cluster
from tests.proxy import between
from tests.serving import DEADLINE_S, Address
from tests.small_link import until

RUN = RunId("told-run")
UPDATES = 200
GROWTH_INTERVAL = 10
# On a machine that runs the other tests beside it.
TRAINED_WITHIN_S = 60.0
# Half way it waits for a word: whoever judges it does so still when it is killed.
TRAINER = f"""
    import sys, time, torch, scalescope
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval={GROWTH_INTERVAL})
    scope = scalescope.watch(model, optimizer, scaler, url=sys.argv[1], run="{RUN}")
    print("watching", flush=True)
    for step in range({UPDATES}):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(8, 16)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scope.log(loss=loss)
        time.sleep(0.01)
        if step == {UPDATES} // 2:
            sys.stdin.readline()
    scope.close()
    sys.exit(scope.stats.dropped + scope.stats.pending)
"""


@dataclass(frozen=True)
class ServerProcess(Address):
    """``scalescope serve`` as a process."""

    process: subprocess.Popen[str]

    def metric(self, name: str) -> int:
        found = re.search(rf"^{name} (\d+)$", self.get("/metrics").body.decode(), re.MULTILINE)
        assert found is not None
        return int(found[1])


@contextmanager
def serve_processes(database: str, count: int) -> Iterator[list[ServerProcess]]:
    """So many servers, started together."""
    command = [sys.executable, "-m", "scalescope.cli", "serve", "--port", "0", "--database", database]
    with ExitStack() as running:
        started = []
        for _ in range(count):
            process = running.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            running.callback(process.kill)
            started.append(process)
        yield [ServerProcess(_port(process), process) for process in started]


def _port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r":(\d+)/", line)
    assert found is not None, line
    return int(found[1])


@contextmanager
def training(url: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(TRAINER))
    environment = {"SCALESCOPE_SPOOL": str(folder / "spool"), "PATH": "", "HOME": str(folder)}
    command = [sys.executable, str(script), url]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.timeout(180)
def test_a_training_and_its_judgement_go_on_with_another_server_when_theirs_is_killed(
    postgres: Cluster, tmp_path: Path
) -> None:
    database = postgres.new(postgres.template)
    with (
        serve_processes(database, 2) as servers,
        servers[0].page() as one,
        servers[1].page() as other,
        between(servers[0].url) as balancer,
        training(balancer.url, tmp_path) as trainer,
        closing(open_store(database)) as store,
    ):
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "watching\n"
        one.until(lambda message: message.get("attempted", 0) >= 30, TRAINED_WITHIN_S)
        until(lambda: any(judges(server) for server in servers))
        killed = next(n for n, server in enumerate(servers) if judges(server))
        left, page = servers[1 - killed], (other, one)[killed]
        balancer.to = left.url
        servers[killed].process.kill()
        assert trainer.stdin is not None
        trainer.stdin.write("go on\n")
        trainer.stdin.flush()
        page.until(lambda message: message.get("state") == "finished", TRAINED_WITHIN_S)
        assert trainer.wait(DEADLINE_S) == 0
        until(lambda: store.reader.judgement(RUN)[0] == UPDATES)
        check_updates(store)
        check_findings(store)


def judges(server: ServerProcess) -> bool:
    return server.metric("scalescope_judged_runs") == 1


def check_updates(store: Store) -> None:
    """Each is there once."""
    bucket, series = store.reader.series(RUN, ["scale"])
    assert (bucket, series["scale"].step.tolist()) == (1, list(range(UPDATES)))
    (ledger,) = store.reader.run(RUN).ledger
    assert (ledger.lost, ledger.dropped) == (0, 0)


def check_findings(store: Store) -> None:
    """They are those of one who judges all of it at once."""
    steps, stored = store.reader.steps_after(RUN, BEFORE_ALL, UPDATES + 1)
    assert len(steps) == stored == UPDATES
    rules, setting = ScalerRules(GROWTH_INTERVAL), store.reader.setting(RUN)
    expected = findings(conclude(fold(Case(), steps, rules), setting), rules, setting)
    assert expected
    found = {(row.code, row.subject, row.first_step): row for row in store.reader.findings(RUN)}
    assert found == {(row.code, row.subject, row.first_step): _stored(row) for row in expected}


def _stored(row: object) -> object:
    """As it comes back from JSON."""
    return msgspec.json.decode(msgspec.json.encode(row), type=type(row))
