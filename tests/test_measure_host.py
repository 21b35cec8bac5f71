"""When the compiled kernel is asked for, used, and given up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from scalescope.numerics import measure_cpu
from scalescope.numerics.elsewhere import CompileError
from scalescope.numerics.machine_code import Kernels
from scalescope.numerics.measure_cpu import Raw
from scalescope.numerics.measure_host import HostMeasuring
from scalescope.numerics.paths import Faster

from tests.by_frexp import mixed

pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")
torch.set_num_threads(1)
DEADLINE_S = 120


class Failing(Kernels):
    """Loads, and fails when it is used."""

    def __init__(self) -> None:
        self.calls = 0

    def measure(self, values: Sequence[torch.Tensor], factor: float) -> Raw:
        self.calls += 1
        raise CompileError("bad luck")


def measuring_by(build: Callable[[], Kernels], *, worth: int) -> HostMeasuring:
    return HostMeasuring(Faster("numba", build), worth=worth)


def assert_equal(found: Raw, wanted: Raw) -> None:
    np.testing.assert_array_equal(found.fields, wanted.fields)
    np.testing.assert_array_equal(found.inf, wanted.inf)
    np.testing.assert_array_equal(found.amax, wanted.amax)
    np.testing.assert_allclose(found.squares, wanted.squares, rtol=2e-5)


def asked(measuring: HostMeasuring) -> HostMeasuring:
    measuring.measure([torch.ones(10)], 1.0)
    assert measuring.faster.settled.wait(DEADLINE_S)
    return measuring


def test_small_measurements_start_no_compiler(kernels: Kernels) -> None:
    measuring = measuring_by(lambda: kernels, worth=11)
    measuring.measure([torch.ones(10)], 1.0)
    assert str(measuring.path) == "torch (numba: not asked for: nothing measured was large)"
    assert not measuring.faster.settled.is_set()


def test_it_is_used_once_it_is_there_and_torch_until_then(kernels: Kernels) -> None:
    measuring = asked(measuring_by(lambda: kernels, worth=10))
    assert measuring.path == ("numba", "")
    values = [mixed(5000, seed=1), mixed(0, seed=2)]
    assert_equal(measuring.measure(values, 2.0), measure_cpu.measure(values, 2.0))


def test_float64_is_measured_beside_it_by_torch(kernels: Kernels) -> None:
    measuring = asked(measuring_by(lambda: kernels, worth=10))
    values = [mixed(50, 1).double() * 1e30, mixed(60, 2), mixed(70, 3).half(), torch.ones(3, dtype=torch.float64)]
    assert_equal(measuring.measure(values, 1.0), measure_cpu.measure(values, 1.0))
    assert measuring.path.name == "numba"


def test_values_that_do_not_lie_side_by_side_are_measured_as_they_look(kernels: Kernels) -> None:
    measuring = asked(measuring_by(lambda: kernels, worth=10))
    values = [mixed(500, seed=1)[::3], torch.ones(1).expand(70)]
    assert_equal(measuring.measure(values, 1.0), measure_cpu.measure(values, 1.0))


def test_a_build_that_fails_is_not_tried_again_and_says_why() -> None:
    built: list[int] = []

    def build() -> Kernels:
        built.append(1)
        raise ImportError("No module named 'numba'")

    measuring = asked(measuring_by(build, worth=10))
    measuring.measure([torch.ones(10)], 1.0)
    assert built == [1]
    assert str(measuring.path) == "torch (numba: ImportError: No module named 'numba')"


def test_a_kernel_that_raises_is_set_aside_and_torch_answers() -> None:
    failing = Failing()
    measuring = asked(measuring_by(lambda: failing, worth=10))
    values = [mixed(50, seed=1)]
    for _ in range(2):
        assert_equal(measuring.measure(values, 1.0), measure_cpu.measure(values, 1.0))
    assert failing.calls == 1
    assert measuring.path == ("torch", "numba: bad luck")
