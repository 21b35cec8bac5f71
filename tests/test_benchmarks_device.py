"""The benchmark for CUDA devices: what it says where there is none, and what it finds of the CPU in its place."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scalescope.numerics.measure import path_of
from scalescope.taps.loop import Loop
from scalescope.taps.routine import notes as routine
from scalescope.updates import Update
from torch import nn

from benchmarks import device as benchmark
from benchmarks.trainings import Training
from tests.by_frexp import expected
from tests.stand_in_device import StandIn

CPU = torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_where_there_is_no_device_it_says_so_in_one_line_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main([]) == 1
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "there is no CUDA device here: nothing was measured\n")


def test_measurements_are_compared_with_the_definition() -> None:
    finding = benchmark.exact(CPU, sizes=(0, 255, 5000))
    assert finding.holds
    assert finding.lines[0] == f"{path_of(CPU)}, times 1: 12 tensors, all the same"


def test_one_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("benchmarks.device.expected", lambda values: expected(values * 2))
    finding = benchmark.exact(CPU, sizes=(9,))
    finding.tell()
    assert not finding.holds
    assert "DOES NOT HOLD" in capsys.readouterr().out


def test_counts_are_compared_with_the_definition() -> None:
    reach = StandIn().reach()
    count = reach.count_of(CPU)
    assert count is not None
    assert benchmark.counted(CPU, count).holds
    without = StandIn(kernel=False).reach().count_of(CPU)
    assert without is not None
    assert not benchmark.counted(CPU, without).holds


def test_reading_is_held_against_a_copy() -> None:
    finding = benchmark.bandwidth(CPU, [torch.ones(1000), torch.ones(50_000)], rounds=3)
    assert finding.holds
    assert "GB/s" in finding.lines[1]


def test_waits_are_counted_of_both_and_have_to_be_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert benchmark.waits(CPU).holds
    close = Loop.close

    def closing(self: Loop, **facts: Any) -> Update:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=2)
        return close(self, **facts)

    monkeypatch.setattr(Loop, "close", closing)
    # Every update is heard in full, as on a device.
    monkeypatch.setattr(routine, "_REHEARSALS", 1000)
    finding = benchmark.waits(CPU)
    assert not finding.holds
    assert finding.lines[0] == "adamw-foreach: 0 without the hook, 10 with it"


def test_every_loop_names_its_culprits() -> None:
    finding = benchmark.culprits(CPU, pause_s=0.0)
    assert finding.holds
    assert len(finding.lines) == 4


def tiny() -> Training:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
    text = torch.randint(5, (2, 8))
    return Training(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: (text[:, :-1], text[:, 1:]))


def test_a_watched_training_is_held_against_one_that_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SCALESCOPE_SPOOL", str(tmp_path))
    finding = benchmark.overhead(CPU, tiny, 1, "http://127.0.0.1:9", "tiny")
    assert finding.holds
    assert finding.lines[2] == "losses of both: the same bit for bit"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("check", [benchmark.exact, benchmark.waits, benchmark.culprits])
def test_all_of_it_holds_on_a_device(check: Callable[[torch.device], benchmark.Finding]) -> None:
    finding = check(torch.device("cuda", 0))
    assert finding.holds, finding.lines
