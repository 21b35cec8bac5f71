"""Everything a training has come to, as bytes: two of them are equal only where every bit is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch


class Stateful(Protocol):
    """A model, an optimizer, a scaler, a scheduler."""

    def state_dict(self) -> dict[str, object]: ...


def bits(things: object, path: str = "") -> dict[str, bytes]:
    """Path -> bytes, of every tensor and number in nested state."""
    return dict(_leaves(things, path))


def differing(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> list[str]:
    """The paths at which the two differ, or that only one has."""
    return sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path))


def _leaves(thing: object, path: str) -> Iterator[tuple[str, bytes]]:
    if isinstance(thing, torch.Tensor):
        yield path, _raw(thing)
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from _leaves(value, f"{path}/{key}")
    elif isinstance(thing, list | tuple):
        for place, value in enumerate(thing):
            yield from _leaves(value, f"{path}/{place}")
    else:
        yield path, repr(thing).encode()


def _raw(tensor: torch.Tensor) -> bytes:
    dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    return str(dense.dtype).encode() + dense.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
