"""``scalescope rules``: files of rules checked and tried on stored runs; the stored ones listed, written and read."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
from scalescope.errors import CommandError

from scalescope_server.listing import ServerSource, printable, table
from scalescope_server.rule_answers import (
    BacktestAnswer,
    FiringLine,
    ImportAnswer,
    RulesAnswer,
    TrialLine,
    backtest_answer,
    rule_line,
)
from scalescope_server.rules.files import RulesFileError
from scalescope_server.rules.pack import built_in
from scalescope_server.rules.spec import Rule
from scalescope_server.store.engine import Store
from scalescope_server.store.records import RunId
from scalescope_server.watching.book import spec_of
from scalescope_server.watching.files import read_file, store_file, written_file
from scalescope_server.watching.trials import try_rule

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - argparse names it no other way

# Trying a rule on millions of updates takes a while.
TIMEOUT_S = 300.0
# Firings of one rule on one run that are printed.
SHOWN = 20


class RulesSource(Protocol):
    """Whose rules and runs they are."""

    def rules(self) -> RulesAnswer: ...

    def backtest(self, rule: Rule, runs: Sequence[str], last: int | None) -> BacktestAnswer: ...

    def put(self, text: str) -> ImportAnswer:
        """Store the rules of a file."""

    def take(self, *, built_in: bool) -> str:
        """The stored rules as a file."""


@dataclass(frozen=True, slots=True)
class DatabaseRules:
    """``now``: seconds since the epoch."""

    store: Store
    now: Callable[[], float]

    def rules(self) -> RulesAnswer:
        return RulesAnswer([rule_line(row) for row in self.store.reader.rule_book().rules], None)

    def backtest(self, rule: Rule, runs: Sequence[str], last: int | None) -> BacktestAnswer:
        chosen = [RunId(run) for run in runs] or None
        return backtest_answer(rule, try_rule(self.store.reader, rule, chosen, last, self.now))

    def put(self, text: str) -> ImportAnswer:
        return ImportAnswer(*store_file(self.store.writer, read_file(text), self.now()).result())

    def take(self, *, built_in: bool) -> str:
        return written_file(self.store.reader.rule_book().rules, whole=built_in)


@dataclass(frozen=True, slots=True)
class ServerRules:
    server: ServerSource

    def rules(self) -> RulesAnswer:
        return self.server.get("/api/rules", RulesAnswer)

    def backtest(self, rule: Rule, runs: Sequence[str], last: int | None) -> BacktestAnswer:
        asked = {"rule": spec_of(rule), "runs": list(runs) or None, "last": last}
        return self.server.post("/api/rules/backtest", asked, BacktestAnswer)

    def put(self, text: str) -> ImportAnswer:
        return self.server.post("/api/rules/import", {"text": text}, ImportAnswer)

    def take(self, *, built_in: bool) -> str:
        return self.server.text(f"/api/rules/export?built_in={str(built_in).lower()}")


def add_rules(subparsers: Subparsers) -> dict[str, argparse.ArgumentParser]:
    """The parsers of ``rules``'s own commands, by name."""
    parser = subparsers.add_parser(
        "rules", help="rules of alerts", description="Check rules, try them on stored runs, and move them about."
    )
    own = parser.add_subparsers(dest="rules_command", metavar="COMMAND", required=True)
    check = own.add_parser("check", help="whether files of rules can be used", description="Check files of rules.")
    check.add_argument("files", metavar="FILE", nargs="+", type=Path, help="YAML file")
    tried = own.add_parser(
        "backtest",
        help="what rules would have done",
        description="Try the rules of a file on stored runs: each time that one would have fired.",
    )
    tried.add_argument("file", metavar="FILE", type=Path, help='YAML file; "built-in" for the rules of the server')
    tried.add_argument(
        "--run", action="append", default=[], metavar="RUN", help="a run's id (repeatable; default: the newest ones)"
    )
    tried.add_argument("--rule", metavar="NAME", help="this rule of the file alone")
    tried.add_argument("--last", type=int, metavar="N", help="over the last N updates of each run (default: all)")
    tried.add_argument("--json", action="store_true", help="print what the HTTP API answers, a line for each rule")
    listed = own.add_parser("list", help="list the rules", description="List the rules of a server.")
    listed.add_argument("--json", action="store_true", help="print what the HTTP API answers")
    taken = own.add_parser("export", help="write the rules as YAML", description="Write the rules as a YAML file.")
    taken.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to (default: standard output)")
    taken.add_argument(
        "--built-in", action="store_true", help="with all that come with the server in full, not what was changed"
    )
    put = own.add_parser("import", help="store the rules of a file", description="Store the rules of a YAML file.")
    put.add_argument("file", metavar="FILE", type=Path, help="YAML file; a rule whose name is there is replaced")
    return {"check": check, "backtest": tried, "list": listed, "export": taken, "import": put}


def check(files: Sequence[Path]) -> str:
    """A line for each file.

    Raises:
        CommandError: with every fault of every file.
    """
    lines, troubles = [], []
    for file in files:
        try:
            rules = read_file(_text(file), str(file))
            lines.append(f"{file}: {_counted(len(rules), 'rule')}, and each can be used.")
        except RulesFileError as error:
            troubles.append(str(error))
    if troubles:
        raise CommandError("\n".join(troubles))
    return "\n".join(lines)


def backtest(source: RulesSource, arguments: argparse.Namespace) -> str:
    """What the rules of a file would have done."""
    rules = _rules(arguments.file)
    if arguments.rule is not None:
        rules = [rule for rule in rules if rule.name == arguments.rule]
    if not rules:
        raise CommandError(f"{arguments.file} has no rule {arguments.rule!r}")
    told = []
    for rule in rules:
        found = source.backtest(rule, arguments.run, arguments.last)
        told.append(msgspec.json.encode(found).decode() if arguments.json else _told(rule, found))
    return "\n".join(told) if arguments.json else "\n\n".join(told)


def listed(source: RulesSource, arguments: argparse.Namespace) -> str:
    """The rules, one a line."""
    found = source.rules()
    if arguments.json:
        return msgspec.json.encode(found).decode()
    head = ("ID", "NAME", "ON", "SEVERITY", "WHEN")
    return table(head, [(str(r.id), r.name, "yes" if r.enabled else "no", r.severity, r.when) for r in found.items])


def imported(source: RulesSource, file: Path) -> str:
    """How many rules are new, and how many have changed."""
    text = _text(file)
    _checked(text, file)
    found = source.put(text)
    return f"{_counted(found.added, 'rule')} added, {found.changed} changed."


def exported(source: RulesSource, arguments: argparse.Namespace) -> str:
    """The rules as YAML, or where they were written."""
    text = source.take(built_in=arguments.built_in)
    if arguments.output is None:
        return text.rstrip("\n")
    try:
        arguments.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{arguments.output} could not be written: {error.strerror}") from error
    return f"{arguments.output} is written."


def _rules(file: Path) -> list[Rule]:
    if str(file) == "built-in":
        return list(built_in().rules)
    return list(_checked(_text(file), file))


def _checked(text: str, file: Path) -> tuple[Rule, ...]:
    try:
        return read_file(text, str(file))
    except RulesFileError as error:
        raise CommandError(str(error)) from error


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} could not be read: {error}") from error


def _told(rule: Rule, found: BacktestAnswer) -> str:
    head = f"{rule.name}: would have fired {_times(found.count)} in {_counted(found.updates, 'update')}"
    if found.healthy_runs:
        head += f"; {_times(found.healthy_count)} on {_counted(found.healthy_runs, 'run')} marked healthy"
    return "\n".join([printable(head), *(line for trial in found.runs for line in _trial(trial))])


def _trial(trial: TrialLine) -> list[str]:
    if trial.error is not None:
        return [printable(f"  {trial.run}: {trial.error}")]
    told = [f"  {trial.run}: {_times(trial.count)} in {_counted(trial.updates, 'update')}, {trial.state} at the end"]
    told += [f"    {_firing(firing, trial.unit)}" for firing in trial.firings[:SHOWN]]
    rest = trial.count - min(len(trial.firings), SHOWN)
    return [printable(line) for line in (*told, *([f"    and {_times(rest)} more"] if rest else []))]


def _firing(firing: FiringLine, unit: str) -> str:
    where = f"at step {firing.step}"
    if firing.step is None:
        where = "while no update came" + ("" if firing.until_step is None else f" before step {firing.until_step}")
    lasted = "still on" if firing.until_at is None else f"for {_duration(firing)}"
    value = "" if firing.value is None else f", value {_number(firing.value, unit)}"
    culprit = "" if firing.culprit is None else f", {firing.culprit}"
    return f"{where}, {lasted}{value}{culprit}"


def _duration(firing: FiringLine) -> str:
    return f"{firing.seconds:.3g} s" if firing.steps is None else _counted(firing.steps, "step")


def _number(value: float | str, unit: str) -> str:
    if isinstance(value, str):
        return value
    return f"{100 * value:.6g}%" if unit == "%" else f"{value:.6g} {unit}".rstrip()


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
