"""The command: help, exit codes, one line for a failure, and commands that join from the server."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from scalescope import cli
from scalescope.cli import main
from scalescope.errors import CommandError
from scalescope.settings import DEFAULT_URL
from scalescope.version import __version__

COMMANDS = ("demo", "push", "serve", "runs", "findings", "export", "prune", "migrate")


def exit_code(*arguments: str) -> int:
    """The code, whether argparse exits by itself or main answers."""
    try:
        return main(arguments)
    except SystemExit as exited:
        return int(str(exited.code))


def test_help_names_every_command_and_the_default_places(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--help") == 0
    text = capsys.readouterr().out
    for word in (
        "demo",
        "push",
        "serve",
        "runs",
        "findings",
        "export",
        "prune",
        "migrate",
        DEFAULT_URL,
        "scalescope/scalescope.db",
    ):
        assert word in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(command, "--help") == 0
    assert capsys.readouterr().out.startswith(f"usage: scalescope {command}")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"scalescope {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["demo", "--steps", "0"],
        ["demo", "--steps", "many"],
        ["demo", "--scenario", "perfect"],
        ["demo", "--url", "localhost"],
        ["push", "/no/such/folder"],
    ],
)
def test_bad_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*arguments) == 2
    assert capsys.readouterr().err.startswith(("scalescope: ", "usage: scalescope"))


def test_push_without_a_folder_takes_the_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCALESCOPE_SPOOL", str(tmp_path))
    assert exit_code("push") == 0
    assert capsys.readouterr().out == f"nothing to push in {tmp_path}\n"


def joined(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    entry = EntryPoint(name="server", value=value, group=cli.GROUP)
    monkeypatch.setattr(cli, "entry_points", lambda group: [entry] if group == cli.GROUP else [])


def add_commands(subparsers: cli.Subparsers) -> None:
    def fail(arguments: argparse.Namespace) -> int:
        raise {"told": CommandError("the disk is\nfull"), "bug": KeyError("lost")}[arguments.how]

    parser = subparsers.add_parser("fail")
    parser.add_argument("how")
    parser.set_defaults(handler=fail)


@pytest.mark.parametrize(("how", "line"), [("told", "the disk is full"), ("bug", "KeyError: 'lost'")])
def test_a_failure_is_one_line_and_exit_code_1(
    how: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    joined(monkeypatch, f"{__name__}:add_commands")
    assert exit_code("fail", how) == 1
    assert capsys.readouterr().err == f"scalescope: {line}\n"


@pytest.mark.parametrize("arguments", [["serve", "--port", "1"], ["runs"], ["findings", "abc", "--json"]])
def test_without_the_server_its_commands_say_which_extra_to_install(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    joined(monkeypatch, "fastapi_that_is_not_here:add_commands")
    assert exit_code(*arguments) == 1
    line = "scalescope: fastapi_that_is_not_here is not installed: this needs pip install 'scalescope[server]'\n"
    assert capsys.readouterr().err == line


def test_a_reader_that_has_seen_enough_is_no_failure_to_tell(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scalescope.cli", "push", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, b"")


def test_neither_torch_nor_the_server_is_imported_before_a_command_needs_it() -> None:
    code = "import scalescope.cli, sys; print({'torch', 'fastapi', 'scalescope_server'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n"
