"""Fixtures that several rooms' tests share."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from tests.small_server import Shelf, SmallServer
from tests.small_server import serving as serving_small

if TYPE_CHECKING:
    from scalescope.numerics.machine_code import Kernels
    from scalescope_server.store.stack_kernel import StackKernel

    from tests.postgres import Cluster
    from tests.programs import Programs
    from tests.serving import Served

ENGINES = ["sqlite", "postgres"]

# Read when torch and numpy are imported. The cores are shared with the server under test.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Read when libraries are imported that would tell their makers of being used.
os.environ.setdefault("DO_NOT_TRACK", "true")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """A PostgreSQL, started by the first test that wants one; a database in it is made in 10 ms."""
    from tests.postgres import cluster

    with cluster() as running:
        yield running


@pytest.fixture(scope="session")
def programs() -> Iterator[Programs]:
    """Runs programs in processes that have imported torch already."""
    from tests.programs import programs

    with programs() as running:
        yield running


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """The hook's kernels for the CPU, compiled for real."""
    pytest.importorskip("numba")
    from scalescope.numerics import machine_code

    with _compiled_once(tmp_path_factory, machine_code):
        return machine_code.compile_elsewhere()


@pytest.fixture(scope="session")
def stack_kernel(tmp_path_factory: pytest.TempPathFactory) -> StackKernel:
    """The store's, compiled for real."""
    pytest.importorskip("numba")
    from scalescope_server.store import stack_kernel

    with _compiled_once(tmp_path_factory, stack_kernel):
        return stack_kernel.compile_elsewhere()


@contextmanager
def _compiled_once(factory: pytest.TempPathFactory, module: ModuleType) -> Iterator[None]:
    """Let one of pytest's processes compile for all of them what ``module`` needs: it takes seconds."""
    from filelock import FileLock
    from scalescope.numerics import elsewhere

    mine = factory.getbasetemp()
    folder = mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine

    def printed_once(program: str, *names: str, needs: str) -> str:
        kept = folder / f"{'-'.join(names)}.json"
        with FileLock(f"{kept}.lock"):
            if not kept.exists():
                kept.write_text(elsewhere.printed_by(program, *names, needs=needs))
        return kept.read_text()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "printed_by", printed_once)
        yield


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with all tables: to copy it takes a twentieth of what it takes to make one."""
    # Here, so that tests of the hook alone do not import the server.
    from scalescope_server.store.engine import open_store

    file = tmp_path_factory.mktemp("empty") / "scalescope.db"
    open_store(str(file)).close()
    return file


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a new database with empty tables: a SQLite file, and in the tests marked ``both_engines`` one on
    Postgres too.
    """
    if getattr(request, "param", "sqlite") == "sqlite":
        return shutil.copy(request.getfixturevalue("empty_file"), str(tmp_path / "scalescope.db"))
    running: Cluster = request.getfixturevalue("postgres")
    return running.new(running.template)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect garbage once all tests are found, and from then on only among what they leave.

    What was imported and found stays to the end: a million objects, which take a second to be looked through.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests marked ``both_engines`` that open a database on each engine."""
    if "database" in metafunc.fixturenames and metafunc.definition.get_closest_marker("both_engines"):
        metafunc.parametrize("database", ENGINES, indirect=True)


@pytest.fixture
def serve(database: str) -> Callable[..., AbstractContextManager[Served]]:
    """Starts a server over ``database``; takes settings by name, and ``clock``."""
    # Here, so that tests of the hook alone do not import the server.
    from tests.serving import serving

    return partial(serving, database)


@pytest.fixture
def served(serve: Callable[..., AbstractContextManager[Served]]) -> Iterator[Served]:
    """A server with the default settings."""
    with serve() as running:
        yield running


@pytest.fixture(scope="module")
def shared(empty_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with the default settings for all tests of a file that do not disturb one another."""
    # Here, so that tests of the hook alone do not import the server.
    from tests.serving import serving

    with serving(shutil.copy(empty_file, str(tmp_path_factory.mktemp("shared") / "scalescope.db"))) as running:
        yield running


@pytest.fixture
def plain_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of ours but a spool folder of the test's own."""
    for name in [name for name in os.environ if name.startswith("SCALESCOPE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SCALESCOPE_SPOOL", str(tmp_path / "spool"))


@pytest.fixture
def shelf() -> Shelf:
    """What ``server`` stores."""
    return Shelf()


@pytest.fixture
def server(shelf: Shelf) -> Iterator[SmallServer]:
    """A small server for the hook alone."""
    with serving_small(shelf) as running:
        yield running
