"""Numbers that a device holds back come with the others, in the order in which they were heard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from scalescope.numerics.extremes import Extremes
from scalescope.taps.modules.heard import Entry, Heard
from scalescope.taps.modules.sample import tallied_modules
from torch.overrides import TorchFunctionMode


def on_device(amax: float, finite: int, dtype: torch.dtype = torch.float32) -> Extremes:
    return Extremes(torch.tensor(amax, dtype=dtype), torch.tensor(finite))


def test_numbers_of_a_device_and_of_the_host_keep_their_places() -> None:
    large = 2**40 + 1
    heard = Heard(
        [
            Entry("input", 0, 6, Extremes(0.0, torch.tensor(5))),
            Entry("forward", 1, 4, on_device(65504.0, 4, torch.float16)),
            Entry("forward", 0, 4, Extremes(2.0, 3)),
            Entry("backward", 1, large, on_device(1e300, large, torch.float64)),
            Entry("forward", 1, 4, on_device(0.5, 0, torch.bfloat16)),
        ]
    )
    assert heard.ready()
    numbers = heard.numbers()
    assert numbers.amax.tolist() == [0.0, 65504.0, 2.0, 1e300, 0.5]
    assert numbers.nonfinite.tolist() == [1, 0, 1, 0, 4]
    assert heard.troubled() is True
    indexes, columns = tallied_modules(heard.entries, numbers)
    assert indexes.tolist() == [0, 1]
    assert columns["forward_amax"].tolist() == [2.0, 65504.0]
    assert columns["forward_nonfinite"].tolist() == [1.0, 4.0]
    assert columns["forward_numel"].tolist() == [4.0, 8.0]
    assert np.isnan(columns["grad_output_amax"][0])
    assert columns["grad_output_numel"].tolist()[1] == large


def test_an_input_alone_is_no_trouble() -> None:
    assert Heard([Entry("input", 0, 2, Extremes(0.0, 1)), Entry("forward", 0, 2, Extremes(1.0, 2))]).troubled() is False


def test_nothing_heard_has_no_rows() -> None:
    indexes, columns = tallied_modules((), Heard(()).numbers())
    assert indexes.size == 0
    assert all(values.size == 0 for values in columns.values())


class FromTheHost(TorchFunctionMode):
    """Notes what makes a tensor on a device from numbers of the host: a copy, for which the host waits."""

    def __init__(self) -> None:
        TorchFunctionMode.__init__(self)
        self.noted: list[str] = []

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], torch.Tensor):
            self.noted.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_nothing_is_copied_to_a_device_to_be_told_with_what_is_there() -> None:
    there = Extremes(0.0, torch.tensor(5, device="meta"))
    with FromTheHost() as copies:
        Heard([Entry("input", 0, 6, there), Entry("forward", 0, 6, Extremes(2.0, 6))])
    assert copies.noted == []


def test_of_a_device_that_does_not_say_when_a_copy_is_there_trouble_is_never_known() -> None:
    there = Extremes(torch.tensor(0.0, device="meta"), torch.tensor(5, device="meta"))
    assert Heard([Entry("forward", 0, 6, there)]).troubled() is None
