"""``scalescope rules``: files checked, rules tried on stored runs, listed, exported and imported."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from scalescope.cli import main
from scalescope_server.store.engine import open_store

from tests.serving import Served, bye, hello, steps
from tests.small_link import until
from tests.watched import Training

FILE = """\
version: 1
rules:
  - name: low
    when: scale < 1
    for: 2 steps
  - name: thrash
    when: changes(scale, 4 steps) >= 3
    severity: critical
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.fixture
def filled(database: str) -> str:
    """A database with a run that falls below 1 for a while."""
    with closing(open_store(database)) as store:
        Training(store).tell(*[2.0] * 4, *[0.5] * 4, *[2.0] * 4)
    return database


def test_a_file_is_checked_with_the_line_of_each_fault(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rules", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: 2 rules, and each can be used.\n"
    bad = tmp_path / "bad.yaml"
    bad.write_text(FILE.replace("scale < 1", "scle < 1").replace("critical", "loud"), encoding="utf-8")
    assert main(["rules", "check", str(file), str(bad)]) == 1
    told = capsys.readouterr().err
    assert f"{bad}:4:" in told
    assert 'did you mean "scale"?' in told
    assert f"{bad}:8:" in told
    assert main(["rules", "check", str(tmp_path / "none.yaml")]) == 1


def test_rules_are_tried_on_a_stored_run(filled: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["rules", "backtest", str(file), "--run", "run", "--database", filled]
    assert main(command) == 0
    assert capsys.readouterr().out == (
        "low: would have fired once in 12 updates\n"
        "  run: once in 12 updates, quiet at the end\n"
        "    at step 5, for 3 steps, value 0.5\n"
        "\n"
        "thrash: would have fired 0 times in 12 updates\n"
        "  run: 0 times in 12 updates, quiet at the end\n"
    )
    assert main([*command, "--rule", "low", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["firings"][0]["step"] == 5
    assert main([*command, "--rule", "none"]) == 1
    assert main(["rules", "backtest", str(file), "--run", "nowhere", "--database", filled]) == 1
    assert "the id of a stored run, got 'nowhere'" in capsys.readouterr().err


def test_what_fired_while_no_update_came_is_told_by_the_update_that_ended_it(
    filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "late.yaml"
    file.write_text("rules:\n  - {name: late, when: no update for 500 ms}", encoding="utf-8")
    assert main(["rules", "backtest", str(file), "--run", "run", "--last", "2", "--database", filled]) == 0
    assert "    while no update came before step 11, for 0.5 s, value " in capsys.readouterr().out


def test_rules_go_into_a_database_and_out_again(filled: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "import", str(file), "--database", filled]) == 0
    assert main(["rules", "import", str(file), "--database", filled]) == 0
    assert capsys.readouterr().out == "2 rules added, 0 changed.\n0 rules added, 0 changed.\n"
    assert main(["rules", "list", "--database", filled]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[1] for line in listed.splitlines()] == ["NAME", "low", "thrash"]
    out = file.with_name("out.yaml")
    assert main(["rules", "export", "-o", str(out), "--database", filled]) == 0
    assert main(["rules", "check", str(out)]) == 0


def test_a_file_changes_built_in_rules_of_a_database_that_no_server_has_opened_yet(
    database: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "rules:\n  - {name: pack/skip-rate, enabled: no}\n"
    file.write_text(text, encoding="utf-8")
    assert main(["rules", "check", str(file)]) == 0
    assert main(["rules", "import", str(file), "--database", database]) == 0
    capsys.readouterr()
    assert main(["rules", "export", "--database", database]) == 0
    assert capsys.readouterr().out == "version: 1\nrules:\n- name: pack/skip-rate\n  enabled: false\n"
    assert main(["rules", "export", "--built-in", "-o", str(file), "--database", database]) == 0
    assert main(["rules", "import", str(file), "--database", database]) == 0
    assert "0 rules added, 0 changed." in capsys.readouterr().out


def test_a_server_is_asked_as_well(served: Served, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served.trainer(hello("run", world_size=1)) as trainer:
        trainer.deliver(steps(0, 0, 4, scale=[2.0, 0.5, 0.5, 0.5]), bye(1))
    until(lambda: bool(served.store.reader.rule_book().rules))
    assert main(["rules", "import", str(file), "--url", served.url]) == 0
    assert main(["rules", "backtest", str(file), "--run", "run", "--url", served.url]) == 0
    assert "at step 2, for 1 step, value 0.5" in capsys.readouterr().out
    assert main(["rules", "export", "--url", served.url]) == 0
    assert "name: thrash" in capsys.readouterr().out
    file.write_text(FILE.replace("scale < 1", "scale <"), encoding="utf-8")
    assert main(["rules", "import", str(file), "--url", served.url]) == 1
