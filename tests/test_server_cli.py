"""The server's commands: real processes for what listens, the command's main for what reads."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from scalescope.cli import main
from scalescope_server.listing import table
from scalescope_server.store.delivery import Batch
from scalescope_server.store.engine import open_store
from scalescope_server.store.judging import Judged
from scalescope_server.store.records import FindingRow, RunId

from tests.serving import DEADLINE_S, Address, Served, bye, hello, layout, steps
from tests.small_link import until

if TYPE_CHECKING:
    from tests.postgres import Cluster


@pytest.fixture
def filled(database: str) -> str:
    """A database with one finished run of 20 updates and a finding."""
    store = open_store(database)
    store.writer.append(Batch(hello(name="odd \x1b[31mname"), (layout(0), steps(1, 0, 20), bye(2)), 1.0, 1)).result()
    finding = FindingRow(
        code="SCALE_THRASH",
        subject="",
        severity="warning",
        sentence="The scale was halved 5 times.",
        evidence={},
        advice="Raise the growth interval.",
        first_step=3,
        last_step=None,
        seen_step=19,
    )
    store.writer.commit_judgement(Judged(RunId("run-1"), 19, b"", (finding,))).result()
    store.close()
    return database


@contextmanager
def process(*arguments: str, **environ: str) -> Iterator[tuple[subprocess.Popen[str], queue.Queue[str]]]:
    """``scalescope`` as a process, and its lines as they come."""
    command = [sys.executable, "-m", "scalescope.cli", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | environ
    ) as running:
        lines: queue.Queue[str] = queue.Queue()
        reading = threading.Thread(target=_read_lines, args=(running.stdout, lines))
        reading.start()
        try:
            yield running, lines
        finally:
            running.kill()
            reading.join()


def _read_lines(output: Iterable[str], lines: queue.Queue[str]) -> None:
    for line in output:
        lines.put(line.rstrip("\n"))


def run(*arguments: str, **environ: str) -> tuple[int, str]:
    with process(*arguments, **environ) as (running, lines):
        code = running.wait(DEADLINE_S)
    return code, "\n".join(lines.queue)


def port_of(line: str) -> int:
    found = re.search(r":(\d+)/", line)
    assert found, line
    return int(found[1])


def test_serve_prints_its_address_answers_there_and_stops_on_ctrl_c(database: str) -> None:
    with process("serve", "--port", "0", "--database", database) as (running, lines):
        first = lines.get(timeout=DEADLINE_S)
        server = Address(port_of(first))
        assert first == f"Scalescope: http://127.0.0.1:{server.port}/"
        until(server.is_ready)
        running.send_signal(signal.SIGINT)
        assert running.wait(DEADLINE_S) == 0


def test_serve_on_all_addresses_makes_up_a_token_and_prints_the_login(database: str) -> None:
    arguments = ("serve", "--host", "0.0.0.0", "--port", "0", "--database", database)
    with process(*arguments) as (_, lines):
        server = Address(port_of(lines.get(timeout=DEADLINE_S)))
        login = lines.get(timeout=DEADLINE_S).rpartition("/")[2]
        assert server.get("/api/runs").status == 401
        cookie = server.get(f"/{login}").headers["set-cookie"].partition(";")[0]
        assert server.get("/api/runs", cookie=cookie).status == 200


def test_a_second_server_on_one_file_is_refused_in_one_line(database: str) -> None:
    with process("serve", "--port", "0", "--database", database) as (_, lines):
        lines.get(timeout=DEADLINE_S)
        code, text = run("serve", "--port", "0", "--database", database)
    assert code == 1
    assert text.startswith("scalescope: another server is using")
    assert "\n" not in text


def test_a_taken_port_is_one_line(database: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, text = run("serve", "--port", port, "--database", database)
    assert code == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in text
    assert "\n" not in text


def test_a_database_that_is_none_is_one_line(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.db"
    wrong.write_bytes(b"this is not a database" * 100)
    code, text = run("serve", "--port", "0", "--database", str(wrong))
    assert (code, text.count("\n")) == (1, 0)


def test_bad_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "99999"]) == 2
    assert "--port: expected a port from 0 to 65535, got 99999" in capsys.readouterr().err


def test_runs_lists_what_the_database_holds(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--database", filled]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["RUN", "PROJECT", "NAME", "STATE", "ATTEMPTED", "APPLIED", "SKIPPED", "SCALE", "WORST"]
    assert line.split() == ["run-1", "tests", "odd", "?[31mname", "finished", "20", "20", "0", "2^16", "warning"]
    assert main(["runs", "--database", filled, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"][0]["attempted"] == 20


def test_findings_are_told_in_sentences(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["findings", "run-1", "--database", filled]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "WARNING SCALE_THRASH (steps 3 to now)",
        "  The scale was halved 5 times.",
        "  Raise the growth interval.",
    ]
    assert main(["findings", "run-1", "--database", filled, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"][0]["code"] == "SCALE_THRASH"


def test_both_commands_read_from_a_server_too(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    with served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), steps(1, 0))
    assert main(["runs", "--url", served.url]) == 0
    assert "run-1" in capsys.readouterr().out
    assert main(["findings", "run-1", "--url", served.url]) == 0
    assert capsys.readouterr().out == "Nothing is known to be the matter with run-1.\n"
    assert main(["findings", "nope", "--url", served.url]) == 1
    assert capsys.readouterr().err == "scalescope: there is no run 'nope'\n"


def test_what_is_not_there_is_one_line(tmp_path: Path, filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = str(tmp_path / "nowhere.db")
    assert main(["runs", "--database", nowhere]) == 1
    assert "there is no database at" in capsys.readouterr().err
    assert not Path(nowhere).exists()
    assert main(["findings", "nope", "--database", filled]) == 1
    assert "nope" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert main(["runs", "--url", address]) == 1
    assert "no answer from" in capsys.readouterr().err


def test_migrate_makes_a_database_and_can_be_repeated(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert main(["migrate", "--database", database]) == 0
        assert capsys.readouterr().out == f"{database} is up to date.\n"
    assert main(["runs", "--database", database]) == 0


def test_postgres_is_migrated_by_a_command_of_its_own_and_its_password_is_not_shown(
    postgres: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    url = postgres.new().replace("postgres@", "postgres:secret@")
    for command in (["serve"], ["runs"]):
        assert main([*command, "--database", url, *(["--port", "0"] if command == ["serve"] else [])]) == 1
        assert "got an empty one: run scalescope migrate --database postgresql://postgres@" in capsys.readouterr().err
    for _ in range(2):
        assert main(["migrate", "--database", url]) == 0
        told = capsys.readouterr().out
        assert told.startswith("postgresql://postgres@/")
        assert told.endswith(" is up to date.\n")
        assert "secret" not in told
    assert main(["runs", "--database", url]) == 0
    with process("serve", "--port", "0", "--database", url) as (_, lines):
        shown = [lines.get(timeout=DEADLINE_S) for _ in range(2)][1]
        assert shown.startswith("Database: postgresql://postgres@/")
        assert "secret" not in shown


def test_a_table_is_aligned_and_printable() -> None:
    assert table(("A", "B"), [("long cell", "x"), ("\x1b]0;title\x07", "y")]) == (
        "A           B\nlong cell   x\n?]0;title?  y"
    )
