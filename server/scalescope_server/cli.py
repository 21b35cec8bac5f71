"""The server's commands, added to ``scalescope`` through the entry-point group ``scalescope.commands``.

Each parser's ``handler`` takes the parsed arguments and gives the exit code. What goes wrong is raised as
:class:`scalescope.errors.CommandError`, which the command's main tells in one line.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec
from scalescope.errors import CommandError, UsageError
from scalescope.progress import Stages
from scalescope.settings import parse_url

from scalescope_server import cli_export, cli_prune, cli_rules, errors
from scalescope_server.errors import ServerError
from scalescope_server.listing import DatabaseSource, ServerSource, Source, findings_text, runs_table
from scalescope_server.lock import locked, open_beside
from scalescope_server.settings import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    DEFAULT_SILENT_AFTER_S,
    WILDCARDS,
    Settings,
    bracketed,
    database_of,
    read_settings,
)
from scalescope_server.store.engine import Store, backend_of, migrate_store, open_store
from scalescope_server.store.errors import StoreError
from scalescope_server.store.location import sqlite_file
from scalescope_server.store.records import RunId

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - argparse names it no other way

DEFAULT_LIMIT = 50


def add_commands(subparsers: Subparsers) -> None:
    """Add serve, runs, findings, rules, export, prune and migrate."""
    _add_serve(subparsers)
    _add_runs(subparsers)
    _add_findings(subparsers)
    _add_rules(subparsers)
    _add_export(subparsers)
    _add_prune(subparsers)
    _add_migrate(subparsers)


def serve(arguments: argparse.Namespace) -> int:
    """Serve until interrupted."""
    settings = _settings(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("scalescope.server").setLevel(logging.INFO)
    with _told_in_one_line(), contextlib.ExitStack() as held:
        if (file := sqlite_file(settings.database)) is not None:
            held.enter_context(locked(file))
        listening = held.enter_context(_listening(settings))
        _serve(settings, listening)
    return 0


def runs(arguments: argparse.Namespace) -> int:
    """Print the runs, the newest first."""
    with _told_in_one_line(), _source(arguments) as source:
        found = source.runs(arguments.limit)
    _write(msgspec.json.encode(found).decode() if arguments.json else runs_table(found.items))
    return 0


def findings(arguments: argparse.Namespace) -> int:
    """Print what is known to be the matter with a run."""
    with _told_in_one_line(), _source(arguments) as source:
        found = source.findings(arguments.run_id)
    text = findings_text(found.items) or f"Nothing is known to be the matter with {arguments.run_id}."
    _write(msgspec.json.encode(found).decode() if arguments.json else text)
    return 0


def check_rules(arguments: argparse.Namespace) -> int:
    """Whether files of rules can be used."""
    _write(cli_rules.check(arguments.files))
    return 0


def rules(arguments: argparse.Namespace) -> int:
    """Try rules on stored runs, list them, take them out or put them in."""
    with _told_in_one_line(), _rules_source(arguments) as source:
        told = _RULES[arguments.rules_command](source, arguments)
    _write(told)
    return 0


def export(arguments: argparse.Namespace) -> int:
    """Write everything that is stored of a run to files."""
    wanted = cli_export.wanted_of(arguments)
    with _told_in_one_line(), _exporter(arguments) as exporter:
        cli_export.export(exporter, wanted, sys.stdout.buffer)
    return 0


def prune(arguments: argparse.Namespace) -> int:
    """Remove what is old but for what is around events."""
    pruning = cli_prune.pruning_of(arguments, time.time())
    database = database_of(os.environ, arguments.database)
    file = cli_prune.compactable(sqlite_file(database)) if arguments.compact else None
    with _told_in_one_line(), _opened(arguments) as store:
        cli_prune.prune(store, pruning, sys.stdout)
        if file is not None and not pruning.dry_run:
            cli_prune.compact_file(store, file, sys.stdout)
    return 0


def migrate(arguments: argparse.Namespace) -> int:
    """Bring the schema of the database up to date; create it where there is none."""
    database = database_of(os.environ, arguments.database)
    with _told_in_one_line(), contextlib.ExitStack() as held:
        if (file := sqlite_file(database)) is not None:
            held.enter_context(locked(file))
        stages = Stages(sys.stdout)
        stages.finish(migrate_store(database, stages.show))
    return 0


def _add_serve(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="run the server",
        description="Run the server: trainers send to it, the dashboard is at the address it prints.",
    )
    parser.add_argument("--host", default=DEFAULT_HOST, help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="port, 0 for any (default: %(default)s)")
    _add_database(parser)
    parser.add_argument("--root-path", default="", metavar="PATH", help="prefix under which a proxy publishes it")
    parser.add_argument("--token", help="what callers must show (default: SCALESCOPE_TOKEN; made up off loopback)")
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="another name it is reached by (repeatable)"
    )
    parser.add_argument(
        "--allow-origin", action="append", default=[], metavar="URL", help="another origin that may write (repeatable)"
    )
    parser.add_argument(
        "--silent-after",
        type=float,
        default=DEFAULT_SILENT_AFTER_S,
        metavar="SECONDS",
        help="a run that gives no sign of life for so long is silent (at least 10; default: %(default)g)",
    )
    parser.add_argument(
        "--prune-older-than",
        metavar="AGE",
        help="of updates as old as 30d, 12h or 8w keep exactly only what is around events (default: everything)",
    )
    parser.add_argument(
        "--settings", metavar="FILE", help="TOML file: where alerts may go, and commands (default: SCALESCOPE_SETTINGS)"
    )
    parser.add_argument(
        "--public-url",
        metavar="URL",
        help="where links in messages lead (default: SCALESCOPE_PUBLIC_URL, then --settings)",
    )
    parser.set_defaults(handler=serve)


def _add_runs(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("runs", help="list the runs", description="List the runs, the newest first.")
    _add_source(parser)
    parser.add_argument("--limit", type=int, default=DEFAULT_LIMIT, help="at most so many (default: %(default)s)")
    parser.set_defaults(handler=runs)


def _add_findings(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "findings", help="what is the matter with a run", description="Print the named causes found in a run."
    )
    parser.add_argument("run_id", metavar="RUN", help="the run's id")
    _add_source(parser)
    parser.set_defaults(handler=findings)


def _add_rules(subparsers: Subparsers) -> None:
    for name, parser in cli_rules.add_rules(subparsers).items():
        if name == "check":
            parser.set_defaults(handler=check_rules)
        else:
            _add_where(parser)
            parser.set_defaults(handler=rules)


def _add_export(subparsers: Subparsers) -> None:
    parser = cli_export.add_export(subparsers)
    _add_where(parser)
    parser.set_defaults(handler=export)


def _add_prune(subparsers: Subparsers) -> None:
    parser = cli_prune.add_prune(subparsers)
    _add_database(parser)
    parser.set_defaults(handler=prune)


def _add_migrate(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "migrate", help="bring the database up to date", description="Bring the database's schema up to date."
    )
    _add_database(parser)
    parser.set_defaults(handler=migrate)


def _add_source(parser: argparse.ArgumentParser) -> None:
    _add_where(parser)
    parser.add_argument("--json", action="store_true", help="print what the HTTP API answers")


def _add_where(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    _add_database(where)
    where.add_argument("--url", help="ask the server at this address instead of reading the database")
    parser.add_argument("--token", help="the server's token (default: SCALESCOPE_TOKEN)")


def _add_database(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--database", metavar="URL", help="path or URL (default: SCALESCOPE_DATABASE, else the user's data directory)"
    )


def _settings(arguments: argparse.Namespace) -> Settings:
    try:
        return read_settings(
            os.environ,
            host=arguments.host,
            port=arguments.port,
            database=arguments.database,
            root_path=arguments.root_path,
            token=arguments.token,
            allow_hosts=arguments.allow_host,
            allow_origins=arguments.allow_origin,
            silent_after_s=arguments.silent_after,
            prune_older_than=arguments.prune_older_than,
            settings_file=arguments.settings,
            public_url=arguments.public_url,
        )
    except errors.SettingError as error:
        raise UsageError(f"--{(error.field or '').replace('_', '-')}: {error}") from error


def _serve(settings: Settings, listening: socket.socket) -> None:
    # FastAPI and plotly take a second to import; the commands that only read do without.
    from scalescope_server.app import create_app, create_server

    store = open_store(settings.database, silent_after_s=settings.silent_after_s)
    server = create_server(create_app(settings, store))
    # What was imported stays. Else Python looks through all of it for garbage, again and again, while rows are read.
    gc.freeze()
    _announce(settings, listening.getsockname()[1])
    # uvicorn stops in order on Ctrl-C, then raises it again.
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listening])


def _announce(settings: Settings, port: int) -> None:
    host = "127.0.0.1" if settings.host in WILDCARDS else settings.host
    url = f"http://{bracketed(host)}:{port}{settings.root_path}/"
    _write(f"Scalescope: {url}")
    if settings.token is not None:
        _write(f"Log in once: {url}login?token={quote(settings.token, safe='')}")
        _write("Trainers: set SCALESCOPE_TOKEN to the token.")
    # Not as it was given: an address may hold a password.
    _write(f"Database: {backend_of(settings.database)} (Ctrl-C stops)")
    sys.stdout.flush()


def _listening(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=512)
    except OSError as error:
        raise CommandError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error}; "
            "stop what uses it, or choose another --port"
        ) from error


@contextlib.contextmanager
def _source(arguments: argparse.Namespace) -> Iterator[Source]:
    if arguments.url is not None:
        yield ServerSource(parse_url("--url", arguments.url), _token(arguments))
        return
    with _opened(arguments) as store:
        yield DatabaseSource(store)


@contextlib.contextmanager
def _rules_source(arguments: argparse.Namespace) -> Iterator[cli_rules.RulesSource]:
    if arguments.url is not None:
        url = parse_url("--url", arguments.url)
        yield cli_rules.ServerRules(ServerSource(url, _token(arguments), cli_rules.TIMEOUT_S))
        return
    with _opened(arguments) as store:
        yield cli_rules.DatabaseRules(store, time.time)


_RULES: dict[str, Callable[[cli_rules.RulesSource, argparse.Namespace], str]] = {
    "backtest": cli_rules.backtest,
    "list": cli_rules.listed,
    "export": cli_rules.exported,
    "import": lambda source, arguments: cli_rules.imported(source, arguments.file),
}


@contextlib.contextmanager
def _exporter(arguments: argparse.Namespace) -> Iterator[cli_export.Exporter]:
    if arguments.url is not None:
        yield cli_export.ServerExporter(parse_url("--url", arguments.url), arguments.run_id, _token(arguments))
        return
    with _opened(arguments) as store:
        yield cli_export.DatabaseExporter(store.reader.extract(RunId(arguments.run_id)))


def _token(arguments: argparse.Namespace) -> str | None:
    token: str | None = arguments.token or os.environ.get("SCALESCOPE_TOKEN")
    return token


@contextlib.contextmanager
def _opened(arguments: argparse.Namespace) -> Iterator[Store]:
    """The database that is named, which must be there."""
    database = database_of(os.environ, arguments.database)
    file = sqlite_file(database)
    if file is not None and not file.exists():
        raise CommandError(f"there is no database at {file}: start 'scalescope serve' or 'scalescope demo' first")
    with contextlib.closing(open_beside(database)) as store:
        yield store


@contextlib.contextmanager
def _told_in_one_line() -> Iterator[None]:
    try:
        yield
    except (ServerError, StoreError) as error:
        raise CommandError(str(error)) from error


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
