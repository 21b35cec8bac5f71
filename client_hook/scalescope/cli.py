"""The ``scalescope`` command.

``demo`` and ``push`` are the hook's own. The server adds its commands through the entry-point group
``scalescope.commands``: each entry is a function ``add_commands(subparsers)`` whose parsers set ``handler``,
a callable that takes the parsed arguments and gives the exit code. So the hook never imports the server.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from scalescope.demo.scenarios import DEFAULT_STEPS, SCENARIOS
from scalescope.demo.server import DEFAULT_PORT
from scalescope.errors import CommandError, SettingError, UsageError
from scalescope.settings import DEFAULT_URL, parse_url, read_settings
from scalescope.version import __version__

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - argparse names it no other way

GROUP = "scalescope.commands"

_DESCRIPTION = "Live telemetry for mixed-precision training: see what the loss scale does to every layer."
_DEMO_DESCRIPTION = """\
Train a small GPT from scratch in fp16 with a real loss scaler, watched by one call,
with a server beside it unless --url names one. Nothing is downloaded, no number is
made up. Stays up until Ctrl-C."""
_EPILOG = f"""\
places:
  server     --url, else SCALESCOPE_URL, else {DEFAULT_URL}; token in SCALESCOPE_TOKEN
  database   --database, else SCALESCOPE_DATABASE, else scalescope/scalescope.db in the user's data directory
             ($XDG_DATA_HOME or ~/.local/share; macOS ~/Library/Application Support; Windows %LOCALAPPDATA%)
  spool      SCALESCOPE_SPOOL, else scalescope/spool in $XDG_STATE_HOME or ~/.local/state

exit codes: 0 done, 1 a failure told in one line, 2 bad usage
"""

_SERVER_COMMANDS = {
    "serve": "run the server",
    "runs": "list the runs",
    "findings": "what is the matter with a run",
    "export": "write everything stored of a run to files",
    "prune": "remove what is old but for what is around events",
    "migrate": "bring the database up to date",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the answer is the exit code."""
    try:
        arguments = build_parser().parse_args(argv)
        code: int = arguments.handler(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough (`scalescope runs | head`). Python's own flush at exit
        # would meet the same pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return _failed("interrupted", 1)
    except ModuleNotFoundError as error:
        return _failed(_missing(error), 1)
    except (UsageError, SettingError) as error:
        return _failed(str(error), 2)
    except CommandError as error:
        return _failed(str(error), 1)
    except Exception as error:  # noqa: BLE001  the command's edge: a failure is one line, not a stack trace
        return _failed(f"{type(error).__name__}: {error}", 1)
    return code


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command, with what the installed server adds."""
    parser = argparse.ArgumentParser(
        prog="scalescope",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"scalescope {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(subparsers)
    _add_push(subparsers)
    for entry in entry_points(group=GROUP):
        try:
            add_commands = entry.load()
        except ModuleNotFoundError as error:
            _add_missing(subparsers, _missing(error))
        else:
            add_commands(subparsers)
    return parser


def _add_demo(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "demo",
        help="train a small real model in fp16 and show its dashboard",
        description=_DEMO_DESCRIPTION,
        epilog="scenarios:\n" + "\n".join(f"  {name:<9} {scenario.reason}" for name, scenario in SCENARIOS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scenario", choices=SCENARIOS, default="healthy", help="default: %(default)s")
    parser.add_argument(
        "--steps", type=_steps, default=DEFAULT_STEPS, metavar="N", help="updates (default: %(default)s)"
    )
    parser.add_argument("--url", help="send to the server at this address instead of starting one")
    parser.add_argument(
        "--port", type=int, help=f"port of the server it starts (default: {DEFAULT_PORT}, else a free one)"
    )
    parser.add_argument("--database", metavar="URL", help="database of the server it starts (default: that of serve)")
    parser.add_argument("--exit", action="store_true", help="end by itself once the training is stored")
    parser.set_defaults(handler=_demo)


def _add_push(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "push",
        help="deliver what trainings could not",
        description="Deliver spooled data, each file to the server it was written for. Safe to repeat and to "
        "interrupt: a file is deleted once the server has stored all of it.",
    )
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path, help="default: the spool folder")
    parser.set_defaults(handler=_push)


def _add_missing(subparsers: Subparsers, message: str) -> None:
    def tell(_: argparse.Namespace) -> int:
        raise CommandError(message)

    for name, text in _SERVER_COMMANDS.items():
        # No character begins an option here: whatever follows the name is taken, and answered alike.
        parser = subparsers.add_parser(name, help=f"{text} (needs the server extra)", add_help=False, prefix_chars="\0")
        parser.add_argument("rest", nargs="*")
        parser.set_defaults(handler=tell)


def _demo(arguments: argparse.Namespace) -> int:
    # torch takes seconds to import; the other commands do without.
    from scalescope.demo.command import Options, run_demo

    options = Options(
        scenario=SCENARIOS[arguments.scenario],
        steps=arguments.steps,
        url=parse_url("--url", arguments.url) if arguments.url else None,
        port=arguments.port,
        database=arguments.database,
        exit_when_stored=arguments.exit,
    )
    return run_demo(options, sys.stdout)


def _push(arguments: argparse.Namespace) -> int:
    from scalescope.push import push

    settings = read_settings(os.environ)
    return push(arguments.folder or settings.spool, settings, sys.stdout)


def _steps(text: str) -> int:
    steps = int(text) if text.isascii() and text.isdigit() else 0
    if steps < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return steps


def _missing(error: ModuleNotFoundError) -> str:
    extra = "torch" if (error.name or "").partition(".")[0] == "torch" else "server"
    return f"{error.name} is not installed: this needs pip install 'scalescope[{extra}]'"


def _failed(message: str, code: int) -> int:
    line = " ".join(message.split())
    print(f"scalescope: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
