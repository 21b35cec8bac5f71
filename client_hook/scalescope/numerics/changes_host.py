"""What an update did to weights, counted on the CPU by NumPy, which compares small integers ten times as fast as torch.

An update d is absorbed by a value h of a format if it is no more than half of the gap to h's neighbour on that side,
and less where h is odd, since ties go to the even one. Half of a gap is a power of two, so that exponents are compared
and nothing is rounded: exact for every d. The gap below a power of two is that of the value under it.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from scalescope.numerics.absorbed import rounded

# Elements at once: the scratch stays in the core's second cache, and a count of them fits into 16 bits.
_CHUNK = 1 << 15
_FLAGS = 5
_SIGNLESS = 0x7FFF
# Where float64 has its exponent, in its upper 16 bits and in all, and what it is of infinities and NaNs.
_FRACTION_ABOVE, _EXPONENT, _BIAS = 4, 0x7FF, 1023
_BEFORE_FRACTION = 12

Halves = NDArray[np.int16]
Wide = NDArray[np.float64]
Flags = NDArray[np.bool_]
Counts = NDArray[np.uint16]


class _Format(NamedTuple):
    """``infinity``: its bits; ``gap``: a value's exponent field and this are float64's field of half of its gap."""

    dtype: torch.dtype
    fraction_bits: int
    infinity: int
    gap: int


_FORMATS = (
    _Format(torch.float16, 10, 0x7C00, _BIAS - 15 - 10 - 1),
    _Format(torch.bfloat16, 7, 0x7F80, _BIAS - 127 - 7 - 1),
)


class _Scratch(threading.local):
    """Memory of each thread that counts: to take it anew for each chunk costs more than the counting."""

    def __init__(self) -> None:
        self.wide = np.empty((3, _CHUNK))
        self.halves = np.empty((6, _CHUNK), np.int16)
        self.bools = np.empty((3, _CHUNK), np.bool_)
        self.flags = np.empty((_FLAGS, _CHUNK), np.uint16)
        self.ones = np.ones(_CHUNK, np.int16)


_SCRATCH = _Scratch()


class _Weights(NamedTuple):
    """[n], before and after, and their bits in the formats."""

    before: NDArray[np.floating]
    after: NDArray[np.floating]
    held: Sequence[Halves]

    def at(self, place: slice) -> _Weights:
        return _Weights(self.before[place], self.after[place], [bits[place] for bits in self.held])


def tallied(
    before: torch.Tensor,
    after: torch.Tensor,
    gradient: torch.Tensor,
    intended: torch.Tensor | None,
    lengths: Sequence[int],
) -> Wide:
    """float64 [7, rows]: as :func:`scalescope.numerics.changes.tallied` has it, of tensors on the CPU."""
    found = np.zeros((2 + _FLAGS, len(lengths)))
    weights = _Weights(_readable(before), _readable(after), [_held(before, target.dtype) for target in _FORMATS])
    slopes, intents = _slopes(gradient), None if intended is None else intended.numpy()
    for place, rows, starts in _chunks(lengths):
        part = weights.at(place)
        held, moved, squares = _SCRATCH.wide[:, : len(part.before)]
        np.copyto(held, part.before)
        np.copyto(moved, part.after)
        np.subtract(moved, held, out=moved)
        for column, values in enumerate((moved, held)):
            found[column, rows] += np.add.reduceat(np.square(values, out=squares), starts)
        aims = _Aims(moved if intents is None else intents[place])
        flags = _flagged(part.held, moved, slopes[place], aims)
        found[2:, rows] += np.add.reduceat(flags, starts, axis=1, dtype=np.uint16)
    np.sqrt(found[:2], out=found[:2])
    return found


def _chunks(lengths: Sequence[int]) -> Iterator[tuple[slice, slice, NDArray[np.intp]]]:
    """Of each chunk its place, the rows that have elements in it, and where in it each of them begins."""
    ends = list(itertools.accumulate(lengths))
    for start in range(0, ends[-1], _CHUNK):
        end = min(start + _CHUNK, ends[-1])
        first, last = bisect.bisect_right(ends, start), bisect.bisect_right(ends, end - 1)
        # The first may have begun before.
        starts = [0, *(row_end - start for row_end in ends[first:last])]
        yield slice(start, end), slice(first, last + 1), np.array(starts, np.intp)


class _Aims:
    """Updates [n]: the sign in the top bit, the exponent's field, 1 for a power of two, and which are meant."""

    def __init__(self, updates: Wide) -> None:
        size = len(updates)
        self.signs, self.exponents, self.powers = _SCRATCH.halves[:3, :size]
        self.meant, found, _ = _SCRATCH.bools[:, :size]
        np.copyto(self.signs, updates.view(np.int16)[3::4])
        np.bitwise_and(np.right_shift(self.signs, _FRACTION_ABOVE, out=self.exponents), _EXPONENT, out=self.exponents)
        fractions = np.left_shift(updates.view(np.int64), _BEFORE_FRACTION, out=_SCRATCH.wide[2, :size].view(np.int64))
        np.copyto(self.powers, np.equal(fractions, 0, out=found))
        np.not_equal(updates, 0.0, out=self.meant)
        np.logical_and(self.meant, np.not_equal(self.exponents, _EXPONENT, out=found), out=self.meant)


def _flagged(held: Sequence[Halves], moved: Wide, slopes: NDArray[np.generic], aims: _Aims) -> Counts:
    """[5, n] of 0 and 1: has a gradient, did not change though, was meant to change, would not in fp16, in bf16."""
    size = len(moved)
    flags, (_, found, sloping) = _SCRATCH.flags[:, :size], _SCRATCH.bools[:, :size]
    np.copyto(flags[0], np.not_equal(slopes, 0, out=sloping))
    np.copyto(flags[1], np.logical_and(sloping, np.equal(moved, 0.0, out=found), out=found))
    np.copyto(flags[2], aims.meant)
    for row, bits, target in zip(flags[3:], held, _FORMATS, strict=True):
        absorbed = _absorbed(bits, aims, target)
        np.copyto(row, np.logical_and(absorbed, aims.meant, out=absorbed))
    return flags


def _absorbed(held: Halves, aims: _Aims, target: _Format) -> Flags:
    """Which of the updates that are meant a weight of these bits would not feel."""
    size = len(held)
    magnitudes, gaps, ties = _SCRATCH.halves[3:, :size]
    found, other = _SCRATCH.bools[1, :size], _SCRATCH.bools[2, :size]
    np.bitwise_and(held, _SIGNLESS, out=magnitudes)
    # One less where the update goes towards zero: the exponent is then that of the gap below.
    np.right_shift(np.bitwise_xor(held, aims.signs, out=gaps), 15, out=gaps)
    np.right_shift(np.add(gaps, magnitudes, out=gaps), target.fraction_bits, out=gaps)
    # Subnormals have the gaps of the smallest normal.
    np.add(np.maximum(gaps, _SCRATCH.ones[:size], out=gaps), target.gap, out=gaps)
    # A tie is no more than half of the gap where the weight is even.
    np.bitwise_and(np.bitwise_xor(held, 1, out=ties), aims.powers, out=ties)
    np.less(np.subtract(aims.exponents, ties, out=ties), gaps, out=found)
    # An infinity stays one, whatever is added; what is added to a NaN is not absorbed.
    np.logical_or(found, np.equal(magnitudes, target.infinity, out=other), out=found)
    np.logical_and(found, np.less_equal(magnitudes, target.infinity, out=other), out=found)
    return found


def _readable(values: torch.Tensor) -> NDArray[np.floating]:
    """Half precision is widened: NumPy has no bf16, and takes a hundred times as long with fp16."""
    found: NDArray[np.floating] = (values.float() if values.element_size() == 2 else values).numpy()
    return found


def _held(weights: torch.Tensor, dtype: torch.dtype) -> Halves:
    """The bits of ``weights`` in a narrower format."""
    held = rounded(weights, dtype) if weights.dtype == torch.float64 else weights.to(dtype)
    return held.view(torch.int16).numpy()


def _slopes(gradient: torch.Tensor) -> NDArray[np.generic]:
    """What is zero where ``gradient`` is."""
    found: NDArray[np.generic] = gradient.numpy() if gradient.element_size() != 2 else _magnitudes(gradient)
    return found


def _magnitudes(halves: torch.Tensor) -> Halves:
    return halves.view(torch.int16).numpy() & np.int16(_SIGNLESS)
