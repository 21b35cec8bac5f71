"""Names of layers where there is little room: modules become the few letters that tell them from their neighbours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

# The modules that one lies in. Blocks that differ by their number alone are one place.
Place = tuple[str, ...]


def shortened(names: Sequence[str], limit: int) -> list[str]:
    """``names`` with leading modules cut until they fit, as many in all of one outer module: "b.0.norm1.weight",
    "b.0.qkv.bias". Two that differ still do. Numbers stay, since they tell which block it is.
    """
    letters = _letters(names)
    depths: dict[str, int] = {}
    for name in names:
        modules = name.count(".")
        needed = next((n for n in range(modules) if len(_cut(name, n, letters)) <= limit), modules)
        outer = name.partition(".")[0]
        depths[outer] = max(depths.get(outer, 0), needed)
    return [_cut(name, depths[name.partition(".")[0]], letters) for name in names]


def _cut(name: str, depth: int, letters: dict[Place, dict[str, str]]) -> str:
    """``name`` with its first ``depth`` modules cut; the last part is its own and stays."""
    *modules, own = name.split(".")
    cut = [letters[place][module] for place, module in _places(modules[:depth])]
    return ".".join([*cut, *modules[depth:], own])


def _letters(names: Iterable[str]) -> dict[Place, dict[str, str]]:
    """What becomes of each module in its place."""
    beside: dict[Place, set[str]] = {}
    for name in names:
        for place, module in _places(name.split(".")[:-1]):
            beside.setdefault(place, set()).add(module)
    return {place: _apart(modules) for place, modules in beside.items()}


def _apart(modules: set[str]) -> dict[str, str]:
    """The shortest beginning of each that no other has; all of it where another begins with it, and of a number."""
    shared = Counter(begin for module in modules for begin in _beginnings(module))
    return {
        module: module if module.isdecimal() else next((b for b in _beginnings(module) if shared[b] == 1), module)
        for module in modules
    }


def _beginnings(module: str) -> Iterable[str]:
    return (module[:length] for length in range(1, len(module) + 1))


def _places(modules: Sequence[str]) -> Iterable[tuple[Place, str]]:
    place: Place = ()
    for module in modules:
        yield place, module
        place = (*place, "#" if module.isdecimal() else module)
