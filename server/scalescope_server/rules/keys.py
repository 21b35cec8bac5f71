"""Names of layers and modules, and numbers of ranks, in the order in which they are told."""

from __future__ import annotations

from heapq import merge
from itertools import pairwise
from typing import TypeAlias, TypeVar

Key: TypeAlias = str | int
Keys: TypeAlias = tuple[Key, ...]
Name = TypeVar("Name", str, int, Key)


def same(one: tuple[Name, ...], other: tuple[Name, ...]) -> bool:
    return one is other or one == other


def merged(keys: tuple[Name, ...], told: tuple[Name, ...]) -> tuple[Name, ...]:
    """All of both, each once, ``told`` in its order; ``keys`` itself where that has them so.

    Of several that are alike the first is named, so the order is that in which a model tells them. Those of which no
    sample has told that order stand by name between the others.
    """
    if same(keys, told):
        return keys
    places = {key: place for place, key in enumerate(keys)}
    if any(after < before for before, after in pairwise(places[key] for key in told if key in places)):
        first = set(told)
        return told + tuple(key for key in keys if key not in first)
    start = 0
    found: list[Name] = []
    new: list[Name] = []
    for key in told:
        if key not in places:
            new.append(key)
            continue
        found += merge(keys[start : places[key]], new)
        found.append(key)
        new, start = [], places[key] + 1
    found += merge(keys[start:], new)
    return keys if len(found) == len(keys) else tuple(found)
