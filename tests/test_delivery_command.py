"""A command of the settings: the message on its standard input, no shell, and an end to it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
import uvloop
from scalescope_server.delivery.command import Command, run
from scalescope_server.delivery.messages import message_of
from scalescope_server.delivery.outcome import DELIVERED

from tests.notices import notice

MESSAGE = message_of("key-1", [notice(run_name="$(touch owned); `id`")], ["key-1"], None)


def python(code: str, *arguments: str, within_s: float = 10.0) -> Command:
    return Command((sys.executable, "-S", "-c", code, *arguments), within_s)


async def test_it_gets_the_message_as_json_its_arguments_as_they_are_and_nothing_of_the_servers_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALESCOPE_TOKEN", "secret")
    monkeypatch.setenv("PGPASSWORD", "secret")
    file = tmp_path / "told.json"
    code = "import sys, os, json; json.dump([sys.argv, dict(os.environ), json.load(sys.stdin)], open(sys.argv[1], 'w'))"
    assert await run(python(code, str(file), "$HOME; `id`"), MESSAGE) == DELIVERED
    arguments, environment, message = json.loads(file.read_text())
    assert arguments[1:] == [str(file), "$HOME; `id`"]
    assert {"SCALESCOPE_TOKEN", "PGPASSWORD"} & set(environment) == set()
    assert (message["key"], message["run"]["name"]) == ("key-1", "$(touch owned); `id`")


async def test_its_status_says_whether_it_has_told() -> None:
    outcome = await run(python("import sys; sys.exit(3)"), MESSAGE)
    assert outcome.error == "the command ended with status 3"
    assert not outcome.final


def test_one_that_is_gone_before_it_could_read_is_as_good_in_the_servers_own_loop() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for _ in range(20):
            assert runner.run(run(Command(("/bin/true",)), MESSAGE)) == DELIVERED


async def test_one_that_does_not_read_and_one_that_says_much_are_as_good() -> None:
    assert await run(python("print('x' * 1_000_000)"), MESSAGE) == DELIVERED


async def test_one_that_does_not_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    child = "import os, sys; sys.stdout = os.fdopen(int(sys.argv[1]), 'w'); import time; time.sleep(60)"
    code = (
        "import subprocess, sys, os, time; end = os.open(sys.argv[1], os.O_WRONLY); "
        f"subprocess.Popen([sys.executable, '-S', '-c', {child!r}, str(end)], pass_fds=[end]); time.sleep(60)"
    )
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        outcome = await run(python(code, str(pipe), within_s=1.0), MESSAGE)
        assert outcome.error == "the command did not end within 1 s"
        os.set_blocking(reading, True)
        # Its end comes once nobody holds the other one.
        assert os.read(reading, 1) == b""
    finally:
        os.close(reading)


async def test_one_that_is_not_there_is_told_of() -> None:
    outcome = await run(Command(("/nowhere/siren",)), MESSAGE)
    assert outcome.error == "the command could not be started: No such file or directory"
