"""What docker-compose.yml starts, as plain processes on a real Postgres: the same commands, environment and order."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.serving import DEADLINE_S, Address, hello, layout, steps
from tests.small_link import until

if TYPE_CHECKING:
    from tests.postgres import Cluster

ROOT = Path(__file__).parent.parent
FILE = ROOT / "docker-compose.yml"
SECRETS = {"POSTGRES_PASSWORD": "of-the-database", "SCALESCOPE_TOKEN": "of-the-servers"}


def services() -> dict[str, dict[str, Any]]:
    """As compose reads them: secrets come out of its environment, and are asked for where they are not there."""
    text = re.sub(r"\$\{(\w+)(:\?[^}]+|:-)\}", lambda found: SECRETS.get(found[1], ""), FILE.read_text())
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
    return found


def environment(service: dict[str, Any], cluster: Cluster) -> dict[str, str]:
    """That of a service, in which the name of the Postgres service leads to ``cluster``."""
    told: dict[str, str] = service["environment"]
    database = told["SCALESCOPE_DATABASE"].replace("@postgres/", "@/") + f"?host={cluster.folder}"
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("SCALESCOPE_", "PG"))}
    return plain | told | {"SCALESCOPE_DATABASE": database}


@contextmanager
def server(service: dict[str, Any], cluster: Cluster) -> Iterator[Address]:
    command = [sys.executable, "-m", "scalescope.cli", *service["command"], "--port", "0"]
    settings = environment(service, cluster)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=settings) as process:
        assert process.stdout is not None
        try:
            port = re.search(r":(\d+)/", line := process.stdout.readline())
            assert port is not None, line
            yield Address(int(port[1]))
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


def test_no_secret_is_in_the_file_and_none_is_made_up() -> None:
    text = FILE.read_text()
    for name in ("PGPASSWORD", "POSTGRES_PASSWORD", "SCALESCOPE_TOKEN"):
        values = re.findall(rf"^ +{name}: (.*)$", text, re.MULTILINE)
        assert values
        assert all(re.fullmatch(r"\$\{\w+:\?[^}]+\}", value) for value in values), values


def test_each_waits_for_what_it_needs_and_says_whether_it_is_well() -> None:
    found = services()
    assert found["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert found["server"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert found["postgres"]["healthcheck"]["test"][1] == "pg_isready"
    assert "/readyz" in (ROOT / "Dockerfile").read_text()
    assert found["postgres"]["volumes"] == ["postgres:/var/lib/postgresql"]
    # Nobody but this machine reaches the servers, and nobody at all the database.
    assert all(port.startswith("127.0.0.1:") for port in found["server"]["ports"])
    assert "ports" not in found["postgres"]


def test_the_same_commands_as_plain_processes_make_servers_that_share_a_database(postgres: Cluster) -> None:
    found = services()
    postgres.run(
        f"CREATE ROLE scalescope LOGIN PASSWORD '{SECRETS['POSTGRES_PASSWORD']}'",
        "CREATE DATABASE scalescope OWNER scalescope",
    )
    command = [sys.executable, "-m", "scalescope.cli", *found["migrate"]["command"]]
    with postgres.asking_for_passwords(), ExitStack() as running:
        subprocess.run(command, check=True, env=environment(found["migrate"], postgres), timeout=60)
        replicas = found["server"]["deploy"]["replicas"]
        servers = [running.enter_context(server(found["server"], postgres)) for _ in range(replicas)]
        token = {"authorization": f"Bearer {SECRETS['SCALESCOPE_TOKEN']}"}
        with servers[0].trainer(hello(), **token) as trainer:
            trainer.deliver(layout(0), steps(1, 0, 3))
        with servers[1].trainer(hello(), **token) as trainer:
            trainer.deliver(steps(2, 3))
        for each in servers:
            until(each.is_ready)
            assert each.get("/api/runs/run-1").status == 401
            assert json.loads(each.get("/api/runs/run-1", **token).body)["attempted"] == 4
