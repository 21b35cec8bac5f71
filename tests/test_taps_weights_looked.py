"""What is looked at of a parameter: all of the small ones, a fair part of the large ones, in one order."""

from __future__ import annotations

import math

import pytest
import torch
from scalescope.taps.weights.looked import looks


def test_where_all_fit_all_is_looked_at() -> None:
    shards = [torch.zeros(60, 10), torch.zeros(3), torch.zeros(())]
    chosen = looks(shards, most=1000)
    assert [look.looked for look in chosen] == [600, 3, 1]
    assert all(look.at(shard).numel() == look.looked for look, shard in zip(chosen, shards, strict=True))


@pytest.mark.parametrize("sizes", [[10**6] * 3, [5000] * 400, [10**7, 100, 100], [1] * 5000, [70_001] * 7])
def test_what_is_looked_at_is_bounded_whatever_the_sizes(sizes: list[int]) -> None:
    chosen = looks([torch.empty(size, device="meta") for size in sizes], most=20_000)
    assert 0 < sum(look.looked for look in chosen) < 3 * 20_000
    assert all(look.looked for look in chosen)


def test_something_is_looked_at_of_every_size() -> None:
    chosen = looks([torch.empty(size, device="meta") for size in range(1, 3000)], most=100)
    assert all(0 < look.looked <= look.numel for look in chosen)
    assert all(math.gcd(look.period, look.numel) == 1 for look in chosen if look.period)


def test_large_parameters_are_looked_at_in_equal_parts_and_small_ones_whole() -> None:
    one, other, bias = looks([torch.empty(size, device="meta") for size in (10**6, 3 * 10**6, 512)], most=10**5)
    assert other.looked == pytest.approx(3 * one.looked, rel=0.01)
    assert bias.looked == 512


@pytest.mark.parametrize("width", [384, 768, 1000, 4096, 81])
def test_every_column_is_looked_at_about_as_often(width: int) -> None:
    rows = 2_000_000 // width
    columns = torch.arange(width).float().expand(rows, width).contiguous()
    (look,) = looks([columns], most=100_000)
    seen = torch.bincount(look.at(columns).long(), minlength=width)
    assert seen.min() > 0.5 * look.looked / width
    assert seen.max() < 2 * look.looked / width
    assert math.gcd(look.period, columns.numel()) == 1


@pytest.mark.parametrize("most", [10**6, 4000])
def test_a_gradient_is_read_at_the_places_of_its_parameter_however_both_lie(most: int) -> None:
    values = torch.randn(20, 30, 40)
    parameter = values.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert not parameter.is_contiguous()
    (look,) = looks([parameter], most=most)
    assert torch.equal(look.at(parameter), look.at(values))
    assert look.at(values).numel() == look.looked
