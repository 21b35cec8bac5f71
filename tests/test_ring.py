"""Numbers brought to the host together: exact, bounded, and safe from the lines' being used again."""

from __future__ import annotations

import pytest
import torch
from scalescope.numerics.ring import WIDTH, Ring, Row, fits

CPU = torch.device("cpu")


class Arriving:
    """The event of a copy that arrives when it is told to."""

    def __init__(self) -> None:
        self.arrived = False

    def query(self) -> bool:
        return self.arrived


def numbers(first: float, second: int = 0) -> list[torch.Tensor]:
    return [torch.tensor(first), torch.tensor(second, dtype=torch.int32)]


def gathered(ring: Ring, tensors: list[torch.Tensor]) -> Row:
    row = ring.gather(tensors)
    assert row is not None
    return row


def told(row: Row, count: int = 2) -> list[float]:
    assert row.ready()
    return [row.number(place) for place in range(count)]


@pytest.mark.parametrize("real", [0.0, 1.0, 65536.0, 2.0**-149, 2.0**127, float("inf")])
@pytest.mark.parametrize("whole", [0, 1, 1999, -1, 2**31 - 1])
def test_every_number_arrives_as_it_is(real: float, whole: int) -> None:
    assert told(gathered(Ring(CPU), numbers(real, whole))) == [real, float(whole)]


def test_numbers_are_those_that_stood_there() -> None:
    tensors = numbers(1.0, 2)
    row = gathered(Ring(CPU), tensors)
    for tensor in tensors:
        tensor.zero_()
    assert told(row) == [1.0, 2.0]


def test_a_row_keeps_its_numbers_when_its_line_is_used_again() -> None:
    ring = Ring(CPU, lines=2)
    rows = [gathered(ring, numbers(float(step), step)) for step in range(7)]
    assert [told(row) for row in rows] == [[float(step), float(step)] for step in range(7)]


def test_no_line_is_used_again_before_its_numbers_have_arrived() -> None:
    ring = Ring(CPU, lines=2)
    row = gathered(ring, numbers(1.0))
    ring._lines[0].event = event = Arriving()
    gathered(ring, numbers(2.0))
    assert ring.gather(numbers(3.0)) is None
    assert not row.ready()
    event.arrived = True
    gathered(ring, numbers(4.0))
    assert told(row) == [1.0, 0.0]


def test_who_asks_while_the_line_is_used_again_is_not_told_the_next_numbers() -> None:
    ring = Ring(CPU, lines=1)
    row = gathered(ring, numbers(1.0))

    class InBetween:
        """Says that the copy has arrived, and then the training thread comes first."""

        def query(self) -> bool:
            ring._lines[0].event = None
            gathered(ring, numbers(2.0))
            return True

    ring._lines[0].event = InBetween()
    assert told(row) == [1.0, 0.0]


def test_a_line_takes_no_more_than_it_holds_and_only_what_it_can_hold() -> None:
    assert Ring(CPU).gather([torch.tensor(1.0)] * (WIDTH + 1)) is None
    assert fits(torch.tensor(1.0))
    others = [torch.ones(1), torch.tensor(1.0).half(), torch.nn.Parameter(torch.tensor(1.0)), torch.tensor(True)]
    assert not any(map(fits, others))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_device_nothing_waits_and_all_arrives() -> None:
    device = torch.device("cuda", 0)
    ring = Ring(device, lines=4)
    tensors = [tensor.to(device) for tensor in numbers(3.0, 7)]
    gathered(ring, tensors)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        rows = [gathered(ring, tensors) for _ in range(3)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert [told(row) for row in rows] == [[3.0, 7.0]] * 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_line_is_what_it_is_whatever_the_training_makes_by_default(dtype: torch.dtype) -> None:
    sent = [torch.tensor(65536.0, dtype=torch.float32), torch.tensor(1999, dtype=torch.int32)]
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert told(gathered(Ring(CPU), sent)) == [65536.0, 1999.0]
    finally:
        torch.set_default_dtype(before)


def test_a_ring_that_a_validation_was_the_first_to_use_is_there_for_the_training() -> None:
    with torch.inference_mode():
        ring = Ring(CPU)
        assert told(gathered(ring, numbers(1.0))) == [1.0, 0.0]
    assert told(gathered(ring, numbers(2.0, 3))) == [2.0, 3.0]
