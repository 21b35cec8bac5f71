"""What docs/rules.md says of the language is so: every function, name and built-in rule, and every example."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from scalescope_server.layer_rows import LayerMeasure
from scalescope_server.rules import functions
from scalescope_server.rules.errors import SentenceError
from scalescope_server.rules.expression import MOST_SECONDS, MOST_UPDATES
from scalescope_server.rules.faults import PLACES
from scalescope_server.rules.files import RulesFileError, read_rules
from scalescope_server.rules.names import CODES, COMPARED, MEASURES, RANKED, SERIES
from scalescope_server.rules.pack import built_in
from scalescope_server.rules.parsing import parse, parse_duration
from scalescope_server.rules.spec import Rule
from scalescope_server.store.derived import DERIVED
from scalescope_server.store.tables import STEP_COLUMNS

ROOT = Path(__file__).parent.parent
DOC = (ROOT / "docs/rules.md").read_text()
SENTENCES = sorted({found for found in re.findall(r"`(when [^`]*)`", DOC) if "CONDITION" not in found})


@pytest.mark.parametrize("sentence", SENTENCES)
def test_every_example_can_be_used(sentence: str) -> None:
    parse(sentence)


def test_every_function_is_documented_with_an_example() -> None:
    by_name: dict[str, functions.Function] = {
        **dict(functions.OVER.items()),
        "count": functions.COUNT,
        "rate": functions.RATE,
        **functions.POINTWISE,
    }
    for name, function in by_name.items():
        assert f"| `{name}` | {function.takes} | {function.says} | `{function.example}` |" in DOC
    for name, function in functions.ACROSS.items():
        assert f"| `{name} by ...` | {function.takes} | {function.says} | `{function.example}` |" in DOC
    assert set(functions.names()) <= {*by_name, "finding"}


def test_the_example_of_a_function_uses_it() -> None:
    for name, function in (*functions.OVER.items(), ("count", functions.COUNT), ("rate", functions.RATE)):
        assert f"{name}(" in function.example
    for name, function in functions.ACROSS.items():
        assert f"{name} by " in function.example


def test_every_series_and_measure_is_documented_and_no_other() -> None:
    listed = set(
        re.findall(r"`([a-z_]+)`", "".join(re.findall(r"^- (?:numbers|shares|ratios|times|yes).*", DOC, re.MULTILINE)))
    )
    assert listed == set(SERIES)
    rows = re.findall(r"^- by (layer|module|rank)[^:]*: (.*)", DOC, re.MULTILINE)
    told = {by: re.findall(r"`([a-z_]+)`", names) for by, names in rows}
    assert told["rank"] == list(RANKED)
    for by in ("layer", "module"):
        assert told[by] == [name for name, named in MEASURES.items() if named.rows == by]


def test_the_names_are_those_that_are_stored() -> None:
    assert set(SERIES) == {*STEP_COLUMNS, *DERIVED, "applied", "attempted", "dropped"}
    assert set(MEASURES) == set(get_args(LayerMeasure))
    assert set(COMPARED) <= set(RANKED) <= set(SERIES)


def test_every_code_of_a_finding_can_be_asked_for_and_no_other() -> None:
    sources = (ROOT / "server/scalescope_server/findings").glob("*.py")
    assert set(CODES) == {code for path in sources for code in re.findall(r'code="([A-Z_]+)"', path.read_text())}


def test_every_field_and_every_place_of_a_template_is_documented() -> None:
    table = DOC.partition("## A rule")[2].partition("## Files")[0]
    assert set(re.findall(r"`([a-z_]+)`", table.replace("{", " "))) >= {f.name for f in msgspec.structs.fields(Rule)}
    assert set(re.findall(r"`\{([a-z]+)\}`", table)) == set(PLACES)


def test_every_built_in_rule_is_documented_and_no_other() -> None:
    pack = built_in()
    rows = [f"| `{rule.name}` | {rule.severity} | `{rule.when}` | {rule.reason} |" for rule in pack.rules]
    assert re.findall(r"^\| `pack/.*$", DOC, re.MULTILINE) == rows
    assert f"Version {pack.version};" in DOC


def test_the_longest_durations_are_documented() -> None:
    assert f"at most {MOST_UPDATES:,} updates or {MOST_SECONDS / 86_400:.0f} days" in DOC
    for text in re.findall(r"`(\d+ [a-z]+)`", DOC.partition("### Conditions")[0]):
        parse_duration(text)


def test_the_files_in_the_docs_are_read() -> None:
    example, changes = re.findall(r"```yaml\n(.*?)```", DOC, re.DOTALL)
    assert [rule.name for rule in read_rules(example).rules] == ["the scale thrashes", "the loss spikes"]
    with pytest.raises(RulesFileError) as caught:
        read_rules(example.replace("for: 50 steps", "for: soon"))
    assert str(caught.value) in DOC
    pack = built_in().by_name()
    told = {rule.name: rule for rule in read_rules(changes, pack=pack).rules}
    assert told["pack/stalled-loop"].when == pack["pack/stalled-loop"].when.replace("10 min", "30 min").removeprefix(
        "when "
    )
    assert not told["pack/loss-not-falling"].enabled


def test_the_error_in_the_docs_is_what_is_said() -> None:
    wrong, below = re.findall(r"```text\n(when ch.*)\n(.*)\n```", DOC)[0]
    with pytest.raises(SentenceError) as caught:
        parse(wrong)
    assert below == " " * caught.value.place.start + "^ " + caught.value.message
