"""The one way from a device to the host: a copy that the training thread does not wait for.

On a CUDA device the copy goes to pinned memory, in the order of the device's current stream, and an event says
when it has arrived: what later kernels do to the tensor does not matter. On the CPU it is there at once. Other
devices have no such copy: the values are kept there, and whoever asks for them, which is the link's thread, waits.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch


class Arrival(Protocol):
    """Says whether a copy has arrived: a CUDA event."""

    def query(self) -> bool: ...


class Transfer(NamedTuple):
    """Values on their way. Not to be read before ``event`` says so; ``on_host`` is where they then are."""

    values: torch.Tensor
    event: Arrival | None
    on_host: bool

    def ready(self) -> bool:
        """Whether the values can be had. Asks, never waits."""
        return self.event is None or self.event.query()


def to_host(tensor: torch.Tensor) -> Transfer:
    """The values of ``tensor`` as they stand at this point of its device's stream."""
    source = tensor.detach()
    if source.device.type != "cuda":
        return Transfer(source.clone(), None, on_host=source.is_cpu)
    # torch keeps pinned memory that was dropped, so after the first few calls none is allocated anew, which could wait.
    # The device is named: the training may have made another one the default.
    host = torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=True)
    host.copy_(source, non_blocking=True)
    event = torch.cuda.Event()
    # The stream of the tensor's device, which need not be the current device.
    event.record(torch.cuda.current_stream(source.device))
    return Transfer(host, event, on_host=True)


def is_capturing(tensor: torch.Tensor) -> bool:
    """Whether what is done on the device of ``tensor`` just now is recorded for a CUDA graph instead."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
