"""The wheel holds the tree and nothing else: its package list is kept by hand, so it can forget a folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from scalescope.version import __version__

ROOT = Path(__file__).parent.parent
# Where each import package lies in the tree, longest target first.
MAPPED = {
    "scalescope_server/frontend": "frontend",
    "scalescope_server/migrations": "migrations",
    "scalescope_server": "server/scalescope_server",
    "scalescope": "client_hook/scalescope",
}
# Read by the tools of development only.
NOT_SHIPPED = {"__pycache__", ".mypy_cache"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy: setuptools leaves a build folder behind, which would end up in the next wheel."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for folder in ("client_hook", "server", "frontend", "migrations"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns(*NOT_SHIPPED, "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(target), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return zipfile.ZipFile(next(target.glob("*.whl")))


def in_the_tree() -> set[str]:
    found = set()
    for package, folder in MAPPED.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and not NOT_SHIPPED & set(path.parts) and path.suffix != ".pyc":
                found.add(f"{package}/{path.relative_to(ROOT / folder).as_posix()}")
    return found


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(wheel: zipfile.ZipFile) -> None:
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert shipped == in_the_tree()


def test_the_wheel_tells_its_version_its_license_and_its_extras(wheel: zipfile.ZipFile) -> None:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra") or ()) == {"torch", "fast", "server", "postgres", "parquet"}
    required = [line for line in metadata.get_all("Requires-Dist") or () if "extra ==" not in line]
    assert {line.split(">")[0] for line in required} == {"msgspec", "numpy", "websockets", "zstandard"}
