"""The way for devices, on the CPU by the same arithmetic; that it does not wait, on a device that has no values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scalescope.numerics import measure_device
from scalescope.numerics.elsewhere import CompileError
from scalescope.numerics.exponents import Histograms
from scalescope.numerics.launches import ROW, Launches
from scalescope.numerics.measure_cpu import Raw
from scalescope.numerics.measure_device import DeviceMeasuring, measure_into, raw_of
from scalescope.numerics.pool import Pool
from scalescope.numerics.tables import Table

from tests.by_frexp import assert_same, expected, mixed

torch.set_num_threads(1)
CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Failing(Launches):
    """Loads, and fails at its first launch."""

    def __init__(self, device: torch.device) -> None:
        self.calls = 0

    def measure(self, words: torch.Tensor, table: Table, factor: float, out: torch.Tensor) -> None:
        self.calls += 1
        out.fill_(3)
        raise RuntimeError("no such kernel image")


def histograms(raw: Raw) -> Histograms:
    nan = raw.fields[:, 255] - raw.inf
    return Histograms(raw.fields[:, 1:255], raw.fields[:, 0], raw.inf, nan, raw.amax, raw.squares)


def assert_rows(raw: Raw, tensors: list[torch.Tensor]) -> None:
    assert_same(histograms(raw), Histograms.stack([expected(tensor.double().numpy()) for tensor in tensors]))


def refusing(device: torch.device) -> Launches:
    raise CompileError("not installed")


@pytest.mark.parametrize("chunk", [1 << 22, 100])
def test_tensors_of_all_kinds_are_counted_whole_in_batches(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_device, "_CHUNK", chunk)
    tensors = [mixed(size, seed=size).to(dtype) for size in (0, 1, 99, 101, 350) for dtype in (*DTYPES, torch.float32)]
    out = torch.zeros(len(tensors), ROW, dtype=torch.int64)
    measure_into(out, tensors, 1.0)
    assert_rows(raw_of(out.numpy()), tensors)


def test_values_whose_squares_leave_fp32_keep_their_sum() -> None:
    tensors = [torch.full((300,), value) for value in (1e20, 1e-25, 3e38)]
    out = torch.zeros(3, ROW, dtype=torch.int64)
    measure_into(out, tensors, 1.0)
    wanted = [300 * float(tensor[0].double() ** 2) for tensor in tensors]
    np.testing.assert_allclose(raw_of(out.numpy()).squares, wanted, rtol=1e-12)


def test_it_asks_the_device_for_no_number() -> None:
    # A tensor without values cannot say one: whatever asks it raises.
    tensors = [torch.empty(5000, dtype=dtype, device="meta") for dtype in DTYPES]
    measure_into(torch.zeros(4, ROW, dtype=torch.int64, device="meta"), tensors, 2.0)


def test_torchs_own_kernels_are_used_where_there_are_no_others_and_it_says_why() -> None:
    measuring = DeviceMeasuring(CPU, refusing, worth=1)
    tensors = [mixed(500, seed=1)[::2], torch.zeros(0), mixed(70, seed=2).half()]
    for _ in range(2):
        arriving = measuring.measure(tensors, 4.0)
        assert arriving is not None
        assert arriving.query()
        assert_rows(arriving.read(), [tensor.float() * 4.0 for tensor in tensors])
        assert measuring.faster.settled.wait(60)
    assert str(measuring.path) == "torch-device (triton: not installed)"


def test_kernels_that_fail_are_set_aside_and_leave_no_trace() -> None:
    failing = Failing(CPU)
    measuring = DeviceMeasuring(CPU, lambda device: failing, worth=1)
    tensors = [mixed(500, seed=1)]
    measuring.measure(tensors, 1.0)
    assert measuring.faster.settled.wait(60)
    for _ in range(2):
        arriving = measuring.measure(tensors, 1.0)
        assert arriving is not None
        assert_rows(arriving.read(), tensors)
    assert failing.calls == 1
    assert measuring.path == ("torch-device", "triton: RuntimeError: no such kernel image")


def test_where_nobody_reads_no_more_is_measured_until_somebody_does() -> None:
    measuring = DeviceMeasuring(CPU, refusing, pool=Pool(CPU, most_bytes=2 * 1024 * 8))
    first, second = (measuring.measure([torch.ones(3)], 1.0) for _ in range(2))
    assert first is not None
    assert second is not None
    assert measuring.measure([torch.ones(3)], 1.0) is None
    assert measuring.pool.refused == 1
    first.read()
    assert measuring.measure([torch.ones(3)], 1.0) is not None
    # What was read stays, whoever has its memory now.
    assert first.query()
    assert first.read().fields[0, 127] == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_device_neither_way_makes_the_host_wait() -> None:
    device = torch.device("cuda", 0)
    tensors = [mixed(size, seed=size).to(device) for size in (0, 5, 100_000)]
    measuring = DeviceMeasuring(device, worth=1)
    for _ in range(2):
        measuring.measure(tensors, 1.0)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            arriving = measuring.measure(tensors, 1.0)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        assert arriving is not None
        assert arriving.query()
        assert_rows(arriving.read(), [tensor.cpu() for tensor in tensors])
        assert measuring.faster.settled.wait(300)
