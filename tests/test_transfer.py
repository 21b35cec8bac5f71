"""The way to the host. What needs a CUDA device runs where there is one."""

from __future__ import annotations

import pytest
import torch
from scalescope.numerics.transfer import Transfer, to_host


class Never:
    """The event of a copy that does not arrive."""

    def query(self) -> bool:
        return False


def test_what_is_on_the_host_is_copied_at_once() -> None:
    tensor = torch.tensor([1.0, 2.0], requires_grad=True)
    transfer = to_host(tensor)
    with torch.no_grad():
        tensor.zero_()
    assert transfer.ready()
    assert transfer.on_host
    assert transfer.values.tolist() == [1.0, 2.0]


def test_a_device_without_events_keeps_the_values() -> None:
    transfer = to_host(torch.empty(2, device="meta"))
    assert (transfer.values.device.type, transfer.event, transfer.on_host) == ("meta", None, False)


def test_what_has_not_arrived_is_not_ready() -> None:
    assert not Transfer(torch.ones(1), Never(), on_host=True).ready()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_copy_from_a_cuda_device_arrives_as_it_stood() -> None:
    tensor = torch.full((3,), 2.0, device="cuda")
    torch.set_default_device("cuda")
    try:
        transfer = to_host(tensor)
    finally:
        torch.set_default_device(None)
    tensor.zero_()
    torch.cuda.synchronize()
    assert transfer.ready()
    assert transfer.values.is_pinned()
    assert transfer.values.tolist() == [2.0] * 3


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
def test_the_event_is_of_the_tensors_device() -> None:
    tensor = torch.ones(1, device="cuda:1")
    with torch.cuda.device(0):
        transfer = to_host(tensor)
    assert isinstance(transfer.event, torch.cuda.Event)
    assert transfer.event.device == tensor.device
