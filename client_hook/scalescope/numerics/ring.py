"""Numbers that belong together, brought from a device to the host by one kernel, one copy and one event.

Each by itself would take a block of pinned memory, a copy and an event. Here they are put side by side on the device,
in a line of a ring that was made once, and copied together to the same line on the host; a single one is copied there
straight away. A line is used again when all others were: by then its numbers have arrived, and are kept as plain
numbers by whoever still wants them. So nothing grows, whether somebody reads or not.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from scalescope.numerics.transfer import Arrival, is_capturing

# More than are on their way at once: CUDA holds a thousand launches, of which ours are a few in a hundred.
LINES = 512
# What one line holds, in numbers of four bytes.
WIDTH = 8
_KINDS = (torch.float32, torch.int32)


class Row:
    """The numbers of one line, on their way. Any thread may ask for them."""

    __slots__ = ("_line", "_size", "_values", "_whole")

    def __init__(self, line: Line, size: int, whole: Sequence[int]) -> None:
        self._line = line
        self._size = size
        # The places of whole numbers.
        self._whole = whole
        self._values: list[float] | None = None

    def ready(self) -> bool:
        """Whether they have arrived. Asks, never waits."""
        if self._values is None and self._line.arrived():
            values = self._line.values(self._size, self._whole)
            # Another thread may have used the line again since it was asked; then it had settled this row before.
            if self._values is None:
                self._values = values
        return self._values is not None

    def number(self, place: int) -> float:
        """Only when :meth:`ready`."""
        assert self._values is not None
        return self._values[place]


class Ring:
    """The lines of one device. Any thread may gather: a device's backward has one of its own."""

    def __init__(self, device: torch.device, *, lines: int = LINES) -> None:
        pinned = device.type == "cuda"
        # Device and dtype are named: the training may have made others the default. And a validation may be the first
        # to read: what is made in its mode could not be written to after it.
        with torch.inference_mode(mode=False):
            self._device = torch.zeros(lines, WIDTH, dtype=torch.float32, device=device)
            self._host = torch.zeros(lines, WIDTH, dtype=torch.float32, device="cpu", pin_memory=pinned)
        # Those that were ever used, few where the device is close behind; and what was gathered in each of them last.
        self._lines: list[Line] = []
        self._rows: list[Row] = []
        self._next = 0
        self._lock = threading.Lock()

    def gather(self, numbers: Sequence[torch.Tensor]) -> Row | None:
        """``numbers``, each one that :func:`fits`, as they stand at this point of the device's stream.

        Returns:
            None where the device is so far behind that no line is free, or records a graph; nothing is done then.
        """
        whole = [place for place, number in enumerate(numbers) if number.dtype is torch.int32]
        with self._lock:
            line = None if len(numbers) > WIDTH or is_capturing(self._device) else self._free()
            if line is None:
                return None
            line.send([number.view(torch.float32) for number in numbers])
            row = self._rows[self._next] = Row(line, len(numbers), whole)
            self._next = (self._next + 1) % len(self._device)
        return row

    def _free(self) -> Line | None:
        place = self._next
        if place == len(self._lines):
            line = self._made(place)
            self._lines.append(line)
            self._rows.append(Row(line, 0, ()))
            return line
        return self._lines[place] if self._rows[place].ready() else None

    def _made(self, place: int) -> Line:
        with torch.inference_mode(mode=False):
            return Line(self._device[place], self._host[place])


class Line:
    """One line on the device and on the host, and the event that says when the last copy has arrived."""

    def __init__(self, device: torch.Tensor, host: torch.Tensor) -> None:
        self.event: Arrival | None = torch.cuda.Event() if device.is_cuda else None
        self._device, self._host, self._first = device, host, host[0]
        self._real, self._whole = host.numpy(), host.view(torch.int32).numpy()
        # The beginning of the device's, as long as what was sent last.
        self._target = device[:0]

    def send(self, numbers: list[torch.Tensor]) -> None:
        """``numbers``: fp32."""
        if len(numbers) == 1:
            self._first.copy_(numbers[0], non_blocking=True)
        else:
            if len(self._target) != len(numbers):
                self._target = self._device[: len(numbers)]
            torch.stack(numbers, out=self._target)
            self._host.copy_(self._device, non_blocking=True)
        if isinstance(self.event, torch.cuda.Event):
            # The stream of the line's device, which need not be the current device.
            self.event.record(torch.cuda.current_stream(self._device.device))

    def arrived(self) -> bool:
        return self.event is None or self.event.query()

    def values(self, size: int, whole: Sequence[int]) -> list[float]:
        """The first ``size`` numbers, of which those at ``whole`` are int32."""
        values: list[float] = self._real[:size].tolist()
        for place in whole:
            values[place] = float(self._whole[place])
        return values


def fits(number: torch.Tensor) -> bool:
    """Whether a line can hold it: one fp32 or int32, without dimensions."""
    plain = type(number) is torch.Tensor and not number.dim()
    return plain and number.dtype in _KINDS and not number.requires_grad
