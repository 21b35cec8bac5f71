"""Counting on the device's own word, where there is no kernel; where there is, interpreted_kernels holds the tests."""

from __future__ import annotations

import pytest
import torch
from scalescope.numerics.elsewhere import CompileError
from scalescope.numerics.guarded import GuardedCount
from scalescope.numerics.launches import Launches
from scalescope.numerics.measure import kernels_of
from scalescope.numerics.paths import Faster


def refusing(device: torch.device) -> Launches:
    raise CompileError("not installed")


def test_without_the_kernel_nothing_is_prepared_or_counted_and_it_says_why() -> None:
    faster = Faster("triton", lambda: refusing(torch.device("cpu")))
    count = GuardedCount(torch.device("cpu"), faster)
    for _ in range(2):
        assert not count.prepare([torch.ones(3)])
        assert count.count_if(torch.ones(1)) is None
        assert faster.settled.wait(60)
    assert str(count.path) == "none (triton: not installed)"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_device_it_never_waits_and_counts_where_the_scaler_found_something() -> None:
    device = torch.device("cuda", 0)
    gradients = [torch.tensor([1.0, float("inf"), float("nan")], device=device), torch.ones(5000, device=device)]
    kernels = kernels_of(device)
    count = GuardedCount(device, kernels)
    count.prepare(gradients)
    assert kernels.settled.wait(300)
    found = [torch.zeros(1, device=device), torch.ones(1, device=device)]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert count.prepare(gradients)
        guarded = [count.count_if(value) for value in found]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    quiet, loud = guarded
    assert quiet is not None
    assert loud is not None
    assert quiet.nonfinite() is None
    counts = loud.nonfinite()
    assert counts is not None
    assert counts.tolist() == [2, 0]
