"""The Triton kernels against numpy.frexp and float64 sums, in Triton's interpreter, so on the CPU.

Whether Triton interprets is settled when it is imported: test_kernels runs this file in a process of its own.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scalescope.numerics.exponents import Histograms
from scalescope.numerics.guarded import GuardedCount
from scalescope.numerics.launches import ROW, Launches
from scalescope.numerics.measure_device import DeviceMeasuring, measure_into, raw_of
from scalescope.numerics.paths import Faster
from scalescope.numerics.pool import Pool
from scalescope.numerics.tables import table_of

from tests.by_frexp import assert_same, expected, mixed

torch.set_num_threads(1)
CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def launched(tensors: list[torch.Tensor], factor: float = 1.0, tile: int = 256, programs: int = 2048) -> Histograms:
    """By the kernel itself, in smaller tiles than it is launched with."""
    from scalescope.numerics import kernels

    table = table_of([tensor.reshape(-1).contiguous() for tensor in tensors], tile, programs=programs)
    words, out = torch.from_numpy(table.words), torch.zeros(table.rows * ROW, dtype=torch.int64)
    # The interpreter is numpy, which warns of what the processor does in silence.
    with np.errstate(all="ignore"):
        kernels.measure[(table.programs,)](words, table.rows, table.programs, table.tiles, factor, out, tile=tile)
    return histograms(out)


def histograms(out: torch.Tensor) -> Histograms:
    raw = raw_of(out.view(-1, ROW).numpy())
    nan = raw.fields[:, 255] - raw.inf
    return Histograms(raw.fields[:, 1:255], raw.fields[:, 0], raw.inf, nan, raw.amax, raw.squares)


def assert_rows(found: Histograms, tensors: list[torch.Tensor]) -> None:
    for row, tensor in enumerate(tensors):
        assert_same(found.take([row]), expected(tensor.double().numpy()))
        assert found.numel[row] == tensor.numel()


@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_around_the_tile_are_counted_whole(dtype: torch.dtype) -> None:
    tensors = [mixed(size, seed=size).to(dtype) for size in (0, 1, 255, 256, 257, 511, 513)]
    assert_rows(launched(tensors), tensors)


def test_tensors_of_all_kinds_are_rows_of_one_launch() -> None:
    tensors = [mixed(300, seed=row).to(dtype) for row, dtype in enumerate(DTYPES)] + [torch.tensor(3.0), torch.zeros(0)]
    assert_rows(launched(tensors), tensors)


def test_one_program_may_take_many_tiles_of_its_tensor() -> None:
    tensors = [mixed(2000, seed=1), mixed(100, seed=2), mixed(1025, seed=3).half()]
    assert_rows(launched(tensors, tile=64, programs=2), tensors)


def test_every_bit_pattern_of_half_precision_is_counted() -> None:
    patterns = torch.from_numpy(np.arange(1 << 16, dtype=np.uint16).view(np.int16))
    tensors = [patterns.view(torch.float16), patterns.view(torch.bfloat16)]
    assert_rows(launched(tensors, tile=4096), tensors)


def test_every_exponent_of_fp32_is_counted_however_far_apart_they_are() -> None:
    powers = torch.ldexp(torch.ones(254), torch.arange(-126, 128))
    tensors = [powers, -powers.flip(0), torch.tensor([2.0**-126, 2.0**127, 2.0**-149, 0.0]), torch.full((70,), 1e-40)]
    assert_rows(launched(tensors), tensors)


def test_squares_that_leave_fp32_are_kept() -> None:
    tensors = [torch.full((300,), value) for value in (1e20, 1e-25, 3e38, 1e-38)]
    assert_rows(launched(tensors), tensors)
    found = launched(tensors).sum_squares
    np.testing.assert_allclose(found, [300 * float(tensor[0].double() ** 2) for tensor in tensors], rtol=2e-6)


def test_float64_keeps_its_amax_and_counts_what_fp32_cannot_hold_as_infinite() -> None:
    tensors = [torch.tensor([1e300, -1e-300, 2.0**128, 1.0, float("inf"), float("nan")], dtype=torch.float64)]
    with np.errstate(over="ignore"):
        assert_rows(launched(tensors), tensors)


def test_a_factor_multiplies_in_fp32() -> None:
    tensors = [mixed(400, seed=5), mixed(400, seed=6).half(), mixed(400, seed=7).bfloat16()]
    assert_rows(launched(tensors, factor=1024.0), [tensor.float() * 1024.0 for tensor in tensors])


def test_a_device_is_measured_by_the_kernels_once_they_are_there() -> None:
    measuring = DeviceMeasuring(CPU, Launches, worth=1)
    tensors = [mixed(5000, seed=1), mixed(0, seed=2), mixed(3, seed=3).half()]
    for name in ("torch-device", "triton"):
        assert measuring.path.name == name
        arriving = measuring.measure(tensors, 2.0)
        assert arriving is not None
        assert arriving.query()
        raw = arriving.read()
        assert_same(
            Histograms(
                raw.fields[:, 1:255], raw.fields[:, 0], raw.inf, raw.fields[:, 255] - raw.inf, raw.amax, raw.squares
            ),
            Histograms.stack([expected((tensor.float() * 2.0).double().numpy()) for tensor in tensors]),
        )
        assert measuring.faster.settled.wait(60)


def counting(*, pool: Pool | None = None) -> GuardedCount:
    faster = Faster("triton", lambda: Launches(CPU))
    count = GuardedCount(CPU, faster, pool=pool)
    count.prepare([])
    assert faster.settled.wait(60)
    assert count.path == ("triton", "")
    return count


def test_nothing_is_counted_where_the_scaler_found_nothing() -> None:
    count = counting()
    assert count.prepare([torch.tensor([float("inf")]), torch.ones(3)])
    guarded = count.count_if(torch.zeros(1))
    assert guarded is not None
    assert guarded.ready()
    assert guarded.nonfinite() is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_where_it_did_the_values_that_are_not_finite_are_counted_by_tensor(dtype: torch.dtype) -> None:
    count = counting()
    gradients = [mixed(size, seed=size).to(dtype) for size in (0, 1, 50, 9000)] + [torch.ones(4, dtype=dtype)]
    assert count.prepare(gradients)
    guarded = count.count_if(torch.ones(1))
    assert guarded is not None
    found = guarded.nonfinite()
    assert found is not None
    assert found.tolist() == [int((~gradient.isfinite()).sum()) for gradient in gradients]
    assert guarded.nonfinite() is not None


def test_the_table_is_kept_while_the_gradients_stay_and_made_anew_when_they_move() -> None:
    count = counting()
    gradients = [torch.tensor([1.0, float("nan")]), torch.ones(3)]
    assert count.prepare(gradients)
    kept = count._words
    assert count.prepare(gradients)
    assert count._words is kept
    moved = [torch.tensor([float("inf")] * 3), torch.ones(3)]
    assert count.prepare(moved)
    guarded = count.count_if(torch.ones(()))
    assert guarded is not None
    found = guarded.nonfinite()
    assert found is not None
    assert found.tolist() == [3, 0]


def test_gradients_with_holes_are_not_counted_but_any_dense_ones_are() -> None:
    count = counting()
    assert not count.prepare([torch.ones(4, 4)[:, ::2]])
    assert count.count_if(torch.ones(1)) is None
    assert not count.prepare([torch.ones(1).expand(5)])
    assert count.prepare([torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.ones(3, 4).t()])


def test_what_one_update_counted_is_not_counted_again_in_its_memory() -> None:
    count = counting(pool=Pool(CPU, most_bytes=8192))
    gradients = [torch.tensor([float("nan"), 1.0])]
    assert count.prepare(gradients)
    told = []
    for found in (1.0, 1.0, 0.0, 2.0):
        guarded = count.count_if(torch.tensor(found))
        assert guarded is not None
        counts = guarded.nonfinite()
        told.append(None if counts is None else counts.tolist())
    assert told == [[1], [1], None, [1]]


def test_a_gradient_of_another_length_or_kind_in_the_same_place_is_looked_at_anew() -> None:
    count = counting()
    memory = torch.full((8,), float("inf"))
    for gradient, wanted in ((memory, 8), (memory[:3], 3), (memory[:3].view(torch.bfloat16), 3)):
        assert count.prepare([gradient])
        guarded = count.count_if(torch.ones(1))
        assert guarded is not None
        counts = guarded.nonfinite()
        assert counts is not None
        assert counts.tolist() == [wanted]


def test_counts_that_nobody_reads_are_bounded() -> None:
    count = counting(pool=Pool(CPU, most_bytes=2 * 8192))
    assert count.prepare([torch.ones(3)])
    kept = [count.count_if(torch.ones(1)) for _ in range(3)]
    assert [guarded is None for guarded in kept] == [False, False, True]
    del kept
    assert count.count_if(torch.ones(1)) is not None


def test_torchs_own_kernels_tell_the_same_as_these() -> None:
    tensors = [mixed(1000, seed=4), mixed(70, seed=5).bfloat16(), mixed(8, seed=6).double()]
    out = torch.zeros(3, ROW, dtype=torch.int64)
    measure_into(out, tensors, 1.0)
    assert_same(histograms(out), launched(tensors))
