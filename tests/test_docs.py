"""The docs say what is so: every command, option, variable, endpoint, series and threshold, and no other."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from scalescope.cli import main
from scalescope.numerics.measures import MeasureName
from scalescope.recorded.run import RecordedRun
from scalescope.wire import EventKind
from scalescope_server.app import create_app
from scalescope_server.cli_prune import DEFAULT_AGE
from scalescope_server.settings import Settings
from scalescope_server.store.delivery import Batch
from scalescope_server.store.engine import open_store
from scalescope_server.store.extract.reading import TABLES
from scalescope_server.store.pruning import MARGIN
from scalescope_server.store.records import RunId
from scalescope_server.store.tables import STEP_COLUMNS
from scalescope_server.tallies import TallyMeasure

from tests.serving import Served, hello, layout, sample, skip, steps

ROOT = Path(__file__).parent.parent
DOCS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
COMMANDS = ("serve", "demo", "runs", "findings", "rules", "export", "prune", "push", "migrate")
SERIES = (
    *("attempted", "applied", *STEP_COLUMNS),
    *("grad_norm", "amax", "zero_share", "subnormal_share", "flush_share", "update_ratio"),
)


def text(name: str) -> str:
    return (ROOT / name).read_text()


def scalescope(*arguments: str) -> str:
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        patch.setenv("COLUMNS", "200")
        main(arguments)
    return said.getvalue()


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        assert "://" in target or (path.parent / target).exists(), target


def test_every_command_is_documented_and_no_other() -> None:
    listed = re.search(r"\{([a-z,]+)\}|commands:\n(.*?)\n\n", scalescope("--help"), re.DOTALL)
    assert listed is not None
    found = set(re.findall(r"^ {4}([a-z]+) ", scalescope("--help"), re.MULTILINE))
    assert found == set(COMMANDS)
    assert set(re.findall(r"^\| `scalescope ([a-z]+)", text("docs/server.md"), re.MULTILINE)) == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_documented(command: str) -> None:
    options = set(re.findall(r"--[a-z-]+", scalescope(command, "--help"))) - {"--help"}
    assert {option for option in options if f"{option}" not in text("docs/server.md")} == set()


def test_every_environment_variable_is_documented_and_no_other() -> None:
    sources = [*ROOT.glob("client_hook/**/*.py"), *ROOT.glob("server/**/*.py")]
    used = {name for path in sources for name in re.findall(r"SCALESCOPE_[A-Z_]+[A-Z]", path.read_text())}
    told = set(re.findall(r"SCALESCOPE_[A-Z_]+[A-Z]", text("docs/hook.md") + text("docs/server.md")))
    assert told == used


def test_every_endpoint_is_documented_and_no_other(database: str) -> None:
    paths = create_app(Settings(database=database), open_store(database)).openapi()["paths"]
    served = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    told = set(re.findall(r"`((?:GET|PATCH|DELETE|POST|PUT) /[^`]*)`", text("docs/server.md")))
    assert {re.sub(r":path\}", "}", call) for call in served} == told


def test_every_measure_event_and_series_is_documented() -> None:
    assert all(f"`{name}`" in text("docs/numerics.md") for name in get_args(MeasureName))
    assert all(f"| `{name}` |" in text("docs/server.md") for name in get_args(TallyMeasure))
    assert all(f"`{kind}`" in text("docs/server.md") for kind in get_args(EventKind))
    assert all(f"`{name}`" in text("docs/server.md") for name in SERIES)


def test_every_table_and_column_of_an_export_is_documented_and_no_other(database: str) -> None:
    told = dict(re.findall(r"^\| `([a-z]+)` \| (.*) \|$", text("docs/export.md"), re.MULTILINE))
    assert set(told) == set(TABLES)
    with contextlib.closing(open_store(database)) as store:
        store.writer.append(Batch(hello(), (), 1.0, 1)).result()
        extract = store.reader.extract(RunId("run-1"))
        for name in TABLES:
            fields = {field.name for field in extract.fields(name)}
            assert {field for field in fields if f"`{field}`" not in told[name]} == set(), name


def test_what_retention_keeps_is_documented() -> None:
    assert f"{MARGIN} updates before and after each skip" in text("docs/server.md")
    assert f"`--older-than AGE` (`{DEFAULT_AGE}`)" in text("docs/server.md")


def test_every_threshold_of_the_findings_is_documented_with_its_value() -> None:
    for path in (ROOT / "server/scalescope_server/findings").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and path.stem != "catalogue":
                name = node.targets[0].id
                if name.isupper() and not name.startswith(("_", "KEPT_")):
                    value = ast.literal_eval(node.value)
                    assert f"| `{name}` | {value} |" in text("docs/findings.md"), name


def test_every_code_of_a_finding_is_documented_and_no_other() -> None:
    sources = (ROOT / "server/scalescope_server/findings").glob("*.py")
    used = {code for path in sources for code in re.findall(r'code="([A-Z_]+)"', path.read_text())}
    assert used == set(
        re.findall(r"^\| `([A-Z_]+)` \| (?:info|warning|critical|fatal)", text("docs/findings.md"), re.MULTILINE)
    )


def test_the_readmes_training_loop_runs_and_is_recorded(served: Served, tmp_path: Path) -> None:
    loop = re.findall(r"```python\n(.*?)```", text("README.md"), re.DOTALL)[1]
    environment = {**os.environ, "SCALESCOPE_URL": served.url, "SCALESCOPE_SPOOL": str(tmp_path / "spool")}
    subprocess.run([sys.executable, "-W", "error", "-c", loop], check=True, env=environment)
    (run,) = served.get("/api/runs?project=readme").json()["items"]
    assert (run["attempted"], run["state"]) == (100, "finished")


def test_the_notebooks_example_runs(served: Served) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", text("docs/notebooks.md"), re.DOTALL)
    with served.trainer(hello(world_size=1)) as trainer:
        trainer.deliver(layout(0), sample(1, 5), skip(2, 5), steps(3, 0, 10, loss=[1.0] * 10))
    environment = {**os.environ, "SCALESCOPE_URL": served.url, "RUN": "run-1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example], check=True, capture_output=True, text=True, env=environment
    )
    assert done.stdout.splitlines() == [
        "10 updates, 1 skipped; block.weight flushes most,",
        "at -3 are most of its gradients, multiplied by 65536",
    ]


def test_every_method_of_a_recorded_run_is_documented() -> None:
    methods = {name for name in vars(RecordedRun) if not name.startswith("_")}
    assert methods == set(re.findall(r"`([a-z_]+)\(", text("docs/notebooks.md").partition("| method |")[2]))


def test_the_programs_of_each_framework_run_and_are_recorded(served: Served, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", text("docs/frameworks.md"), re.DOTALL)
    programs = [block for block in blocks if re.search(r"integrations\.(huggingface|accelerate|lightning) ", block)]
    # In one process, since it takes longer to import the frameworks than to train.
    together = "\n".join(f"exec({program!r}, {{'__name__': '__main__'}})" for program in programs)
    environment = {**os.environ, "SCALESCOPE_URL": served.url, "SCALESCOPE_SPOOL": str(tmp_path / "spool")}
    subprocess.run([sys.executable, "-c", together], check=True, env=environment, cwd=tmp_path)
    found = {run["project"]: (run["attempted"], run["state"]) for run in served.get("/api/runs").json()["items"]}
    ended = dict.fromkeys(("accelerate", "lightning", "fabric"), (100, "finished"))
    assert found == {**ended, "huggingface": (96, "finished")}


def test_every_target_that_the_docs_name_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    named = {name for path in DOCS for name in re.findall(r"`make ([a-z]+)", path.read_text())}
    assert named <= targets
