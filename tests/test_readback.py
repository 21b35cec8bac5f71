"""Numbers in tensors: read at once on the CPU, as they stood when asked for."""

from __future__ import annotations

import pytest
import torch
from scalescope.numerics.ring import Ring
from scalescope.readback import Copied, Derived, Gathering, at_hand, copied, number, read_later, ready


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.int32, torch.bool])
def test_a_number_on_the_cpu_is_itself(dtype: torch.dtype) -> None:
    value = read_later(torch.ones(1, 1, dtype=dtype))
    assert ready(value)
    assert (value, number(value), at_hand(value)) == (1.0, 1.0, 1.0)


def test_a_copy_keeps_what_stood_there() -> None:
    tensor = torch.tensor([1.0, 2.0])
    reading = copied(tensor)
    tensor.zero_()
    assert reading.ready()
    assert reading.numbers() == [1.0, 2.0]


def test_a_value_that_is_only_on_the_device_is_not_at_hand() -> None:
    reading = Copied(torch.tensor(3.0), None, copied=False)
    assert at_hand(reading) is None
    assert ready(reading)
    assert number(reading) == 3.0


class Never:
    """The event of a copy that does not arrive."""

    def query(self) -> bool:
        return False


def test_a_reading_waits_for_its_event_without_waiting_itself() -> None:
    reading = Copied(torch.tensor(3.0), Never(), copied=True)
    assert not ready(reading)
    assert at_hand(reading) is None


def test_numbers_of_one_device_are_read_together_and_others_by_themselves() -> None:
    gathering = Gathering(Ring)
    odd = [torch.tensor([2.0]), torch.tensor(3.0, dtype=torch.float64), torch.tensor(4.0, requires_grad=True)]
    values = gathering.read([torch.tensor(1.0), *odd, torch.tensor(5, dtype=torch.int32)])
    assert all(map(ready, values))
    assert list(map(number, values)) == list(map(at_hand, values)) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [isinstance(value, float) for value in values] == [False, True, True, True, False]


def test_where_a_device_has_no_ring_each_number_is_read_by_itself() -> None:
    assert Gathering(lambda _: None).read([torch.tensor(1.0), torch.tensor(2)]) == [1.0, 2.0]


def test_a_number_made_of_another_one_comes_with_it() -> None:
    of = Copied(torch.tensor(3.0), None, copied=False)
    derived = Derived(of, lambda value: value + 1)
    assert ready(derived)
    assert at_hand(derived) is None
    assert number(derived) == 4.0
    assert not ready(Derived(Copied(torch.tensor(3.0), Never(), copied=True), abs))
