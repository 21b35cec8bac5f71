"""A stored run as numpy arrays, out of a server and out of a database alike."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import scalescope
from scalescope.recorded import sources
from scalescope.recorded.run import RecordedRun
from scalescope.wire import Record
from scalescope_server.store.engine import open_store

from tests.batches import Dictation, batch, hello, histograms
from tests.exported import INF, NAN, fill
from tests.serving import serving

Opened = Callable[[str], RecordedRun]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database with the run of :func:`fill`, and a long one of a single rank."""
    database = str(tmp_path_factory.mktemp("recorded") / "scalescope.db")
    with closing(open_store(database)) as store:
        fill(store)
        says = Dictation()
        many: list[Record] = [
            says.layout(("w", "fp16")),
            says.steps(0, 4000, mine=[float(step) for step in range(4000)]),
        ]
        many += [says.sample(step, histograms([1, 1], zero=step % 3), scale=None) for step in range(0, 600, 10)]
        many += [says.event(step, "growth") for step in range(700)]
        store.writer.append(batch(hello("long", world_size=1), *many)).result()
    return database


@pytest.fixture(scope="module", params=["server", "database"])
def opened(request: pytest.FixtureRequest, stored: str) -> Iterator[Opened]:
    """Opens its runs."""
    if request.param == "database":
        yield lambda run: scalescope.open_run(run, database=stored)
        return
    with serving(stored) as served:
        yield lambda run: scalescope.open_run(run, url=served.url)


def test_a_series_is_whole_with_its_steps_and_what_is_not_finite(opened: Opened) -> None:
    found = opened("run").series("loss")
    assert found.step.tolist() == [0, 1, 2, 5, 6]
    assert np.array_equal(found.value, [2.5, NAN, INF, 9.0, 8.0], equal_nan=True)
    assert (found.step.dtype.name, found.value.dtype.name) == ("int64", "float64")
    long = opened("long").series("mine", start=10)
    assert np.array_equal(long.step, np.arange(10, 4000))
    assert np.array_equal(long.value, np.arange(10.0, 4000.0))


def test_a_series_of_all_ranks_is_the_merged_one_and_one_of_a_rank_its_own(opened: Opened) -> None:
    run = opened("run")
    assert run.series("rank").value.tolist() == [7.0]
    assert run.series("rank", rank=1).step.tolist() == [4]
    assert run.series("zero_share").value[0] == 2 / 6
    assert run.series("never told").step.tolist() == []


def test_the_names_of_series_are_those_that_were_logged(opened: Opened) -> None:
    names = opened("run").series_names()
    assert {"scale", "loss", "mine", "rank", "grad_norm"} <= set(names)


def test_buckets_keep_the_extremes_of_a_long_series(opened: Opened) -> None:
    found = opened("long").buckets("mine", points=100)
    assert (found.bucket, len(found.step)) == (64, 63)
    assert (found.max[0], found.min[-1], found.n[0]) == (63.0, 3968.0, 64)
    assert np.isnan(opened("run").buckets("loss").last[1])


def test_events_come_all_or_by_kind(opened: Opened) -> None:
    found = opened("run").events("skip")
    assert (found.step.tolist(), found.rank.tolist(), found.kind) == ([1, 1], [0, 1], ["skip", "skip"])
    assert found.data[0]["nonfinite"] == {"a.weight": 3}
    assert len(opened("long").events().step) == 700
    assert len(opened("long").events("skip").step) == 0
    assert opened("long").events(start=690, stop=695).step.tolist() == [690, 691, 692, 693, 694]


def test_a_histogram_is_counts_by_time_and_exponent(opened: Opened) -> None:
    found = opened("run").histogram("a.weight", rank=0)
    assert (found.bucket, found.step.tolist(), found.scale.tolist()) == (1, [0], [65536.0])
    assert dict(zip(found.exponents.tolist(), found.counts[0].tolist(), strict=True)) == {
        exponent: {-3: 2, 5: 1}.get(exponent, 0) for exponent in range(-3, 6)
    }
    long = opened("long").histogram("w")
    assert (long.counts.shape, long.counts.sum(), long.zero.sum()) == ((60, 1), 120, 60)
    assert np.isnan(long.scale).all()


def test_layers_are_a_measure_by_layer_and_time(opened: Opened) -> None:
    found = opened("run").layers("zero_share")
    assert (found.names, found.step.tolist(), found.values.shape) == (["a.weight", "b.weight"], [0, 1], (2, 2))
    assert found.values[0, 0] == 1 / 4
    assert np.isnan(found.values[0, 1])
    assert opened("run").layers("update_ratio").values[0, 0] == 0.5


def test_a_run_tells_of_itself(opened: Opened) -> None:
    run = opened("run")
    assert (run.detail()["environment"], run.findings()) == ({"torch": "2.13.0"}, [])
    assert repr(run) == "RecordedRun('run')"


def test_what_is_not_there_is_told_in_a_line(opened: Opened) -> None:
    with pytest.raises(scalescope.ReadError, match="there is no run 'none'"):
        opened("none").series("loss")
    with pytest.raises(scalescope.ReadError, match="has no parameter 'x'"):
        opened("run").histogram("x")
    with pytest.raises(scalescope.ReadError, match="measure"):
        opened("run").layers("beauty")


def test_a_server_or_database_that_is_not_there_is_told_in_a_line(tmp_path: Path) -> None:
    database = str(tmp_path / "nowhere.db")
    with pytest.raises(scalescope.ReadError, match=r"no answer from http://127\.0\.0\.1:1"):
        scalescope.open_run("run", url="http://127.0.0.1:1").detail()
    with pytest.raises(scalescope.ReadError, match="there is no database at"):
        scalescope.open_run("run", database=database)
    with pytest.raises(scalescope.SettingError, match="either a database or a url"):
        scalescope.open_run("run", database=database, url="http://127.0.0.1:1")


def test_without_the_server_package_a_database_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "entry_points", lambda group: [])
    with pytest.raises(scalescope.ReadError, match=r"pip install 'scalescope\[server\]', or name a url"):
        scalescope.open_run("run", database="x.db")


def test_reading_over_http_imports_neither_torch_nor_the_server() -> None:
    code = (
        "import scalescope, sys; scalescope.open_run('run', url='http://127.0.0.1:1');"
        "print({'torch', 'scalescope_server', 'sqlalchemy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n"
