"""The house: what lies where, which way imports point, how long a file may be."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GIVEN = {"server", "client_hook", "frontend", "migrations", "tests", "docker-compose.yml", "pyproject.toml"}
BESIDE = {
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "Dockerfile",
    "docs",
    "benchmarks",
    "package.json",
    "jsconfig.json",
    "biome.json",
}
LONGEST = 400


def tracked() -> list[Path]:
    git = shutil.which("git")
    assert git is not None
    listed = subprocess.run([git, "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / line for line in listed.splitlines() if (ROOT / line).is_file()]


def sources(*suffixes: str) -> list[Path]:
    return [path for path in tracked() if path.suffix in suffixes]


def test_the_top_level_holds_the_given_names_and_what_the_ecosystem_expects() -> None:
    names = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert names >= GIVEN
    assert {name for name in names if not name.startswith(".")} <= GIVEN | BESIDE


def test_imports_point_down() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    found = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("module", ["scalescope", "scalescope.session", "scalescope.cli", "scalescope_server.app"])
def test_it_is_imported_without_torch(module: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; import {module}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_importing_the_hook_imports_no_torch_until_watch_is_asked_for() -> None:
    code = "import sys, scalescope; assert 'torch' not in sys.modules; scalescope.watch; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_no_file_is_too_long_to_answer_one_question() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sources(".py", ".js")
        if (lines := len(path.read_text().splitlines())) > LONGEST
    }
    assert long == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT)) for path in sources(".py") if ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert silent == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    vague = {"utils", "util", "helpers", "common", "manager", "core", "misc"}
    assert [str(path) for path in sources(".py", ".js") if path.stem in vague] == []
