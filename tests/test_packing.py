"""Tables in transit: nothing is lost, nothing is decompressed that does not state its size."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from scalescope import packing
from scalescope.numerics.exponents import BINS, Histograms
from scalescope.packing import (
    MAX_BODY_BYTES,
    PackedError,
    PackedHistograms,
    decompress,
    opened,
    opened_together,
    pack,
    unpack,
)


def table(rows: int, largest: int, seed: int = 0, *, first: int = 0, last: int = BINS) -> Histograms:
    rng = np.random.default_rng(seed)
    counts = np.zeros((rows, BINS), np.int64)
    counts[:, first:last] = rng.integers(0, largest, (rows, last - first), endpoint=True)
    classes = rng.integers(0, 2**40, (3, rows))
    values = rng.random((2, rows)) * 1e30
    return Histograms(counts, classes[0], classes[1], classes[2], values[0], values[1])


def assert_same(one: Histograms, other: Histograms) -> None:
    for name in ("counts", "zero", "inf", "nan", "amax", "sum_squares"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(0, 20),
    largest=st.sampled_from([0, 1, 255, 256, 65535, 65536, 2**32, 2**50]),
    edges=st.tuples(st.integers(0, BINS), st.integers(0, BINS)),
    seed=st.integers(0, 1000),
)
def test_any_table_comes_back_as_it_was(rows: int, largest: int, edges: tuple[int, int], seed: int) -> None:
    first, last = sorted(edges)
    whole = table(rows, largest, seed, first=first, last=last)
    assert_same(unpack(pack(whole)), whole)


def test_only_the_exponents_in_use_travel() -> None:
    packed = pack(table(10, 200, first=100, last=140))
    assert (packed.low, packed.bins, packed.width) == (100 - 126, 40, 1)


def test_a_table_of_148_layers_takes_less_than_half_of_its_plain_bytes() -> None:
    rng = np.random.default_rng(0)
    counts = np.zeros((148, BINS), np.int64)
    counts[:, 90:130] = np.exp(-0.5 * ((np.arange(40) - 22) / 5) ** 2) * rng.integers(300, 60_000, (148, 1))
    none = np.zeros(148, np.int64)
    packed = pack(Histograms(counts, none, none, none, rng.random(148), rng.random(148)))
    assert len(packed.body) < (40 * 4 + 5 * 8) * 148 / 2.5


def bomb(size: int) -> bytes:
    """A frame of a few kB that states, truly, that it holds ``size`` zeros."""
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=size)
    chunk = bytes(1 << 20)
    return b"".join(compressor.compress(chunk) for _ in range(size >> 20)) + compressor.flush()


def test_a_frame_that_states_more_than_the_header_implies_is_refused_unread() -> None:
    honest = pack(table(4, 10))
    with pytest.raises(PackedError, match=f"states {256 << 20}"):
        unpack(msgspec.structs.replace(honest, body=bomb(256 << 20)))


def test_a_frame_that_states_no_size_is_refused() -> None:
    streamed = zstandard.ZstdCompressor(level=1).compressobj()
    body = streamed.compress(bytes(100)) + streamed.flush()
    with pytest.raises(PackedError, match="expected a zstd frame that states 100 bytes"):
        decompress(body, expected=100)


def test_a_header_that_implies_more_than_the_limit_is_refused() -> None:
    with pytest.raises(PackedError):
        decompress(bomb(1 << 20), expected=MAX_BODY_BYTES + 1)
    with pytest.raises(PackedError, match="expected a zstd frame"):
        unpack(PackedHistograms(20_000, -126, BINS, 8, bomb(1 << 20)))


@pytest.mark.parametrize(
    "change",
    [{"rows": -1}, {"rows": 30_000}, {"low": -127}, {"bins": 500}, {"bins": -1}, {"width": 3}, {"low": 10**9}],
)
def test_a_header_out_of_bounds_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(PackedError, match="expected at most"):
        unpack(msgspec.structs.replace(pack(table(4, 10)), **change))


@pytest.mark.parametrize("cut", [0, 1, 8, 40])
def test_a_damaged_frame_is_an_error_of_ours(cut: int) -> None:
    packed = pack(table(4, 10))
    with pytest.raises(PackedError):
        unpack(msgspec.structs.replace(packed, body=packed.body[:cut]))


def test_counts_and_values_that_cannot_be_are_refused() -> None:
    whole = table(2, 5)
    for column, bad in (
        ("amax", np.array([np.nan, 1.0])),
        ("amax", np.array([-1.0, 1.0])),
        ("zero", np.array([-1, 0])),
    ):
        fields = {name: getattr(whole, name) for name in ("counts", "zero", "inf", "nan", "amax", "sum_squares")}
        with pytest.raises(PackedError, match="negative or non-finite"):
            unpack(pack(Histograms(**{**fields, column: bad})))


@pytest.mark.parametrize("rows", [[], [3], [0, 19, 4], list(range(20))])
@pytest.mark.parametrize("largest", [0, 200, 2**50])
def test_some_rows_come_back_as_they_do_with_all_the_others(rows: list[int], largest: int) -> None:
    whole = table(20, largest, first=90, last=130)
    chosen = np.array(rows, np.int64)
    assert_same(unpack(pack(whole), chosen), whole.take(chosen))


def many() -> list[PackedHistograms]:
    return [pack(table(rows, largest, seed)) for seed, (rows, largest) in enumerate([(4, 9), (1, 70_000), (4, 2**50)])]


@pytest.mark.parametrize("rows", [0, 3])
def test_many_are_opened_together_as_each_is_alone(rows: int) -> None:
    told = [*many(), pack(table(rows, 5))]
    assert [bytes(raw) for raw in opened_together(told)] == [opened(one) for one in told]


def test_a_build_that_cannot_open_many_opens_each(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain:
        decompress = staticmethod(zstandard.ZstdDecompressor().decompress)

    monkeypatch.setattr(packing._zstd, "decompressor", Plain())
    assert [bytes(raw) for raw in opened_together(many())] == [opened(one) for one in many()]


def test_one_that_is_damaged_or_states_too_much_is_an_error_of_ours() -> None:
    good, other, _ = many()
    flipped = other.body[:12] + bytes(byte ^ 255 for byte in other.body[12:])
    large = zstandard.ZstdCompressor().compress(bytes(MAX_BODY_BYTES + 1))
    for body, message in ((flipped, "damaged"), (b"nonsense", "damaged"), (large, "expected a zstd frame that states")):
        with pytest.raises(PackedError, match=message):
            opened_together([good, msgspec.structs.replace(other, body=body)])
