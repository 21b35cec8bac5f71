"""Names of layers where there is little room: modules become the few letters that tell them from their neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# The modules that a part of a name lies in. Blocks that differ by their number alone are one place.
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
    cut = [part if part.isdecimal() else letters[place][part] for place, part in _places(modules[:depth])]
    return ".".join([*cut, *modules[depth:], own])


def _letters(names: Iterable[str]) -> dict[Place, dict[str, str]]:
    """What becomes of each part in its place."""
    beside: dict[Place, set[str]] = {}
    for name in names:
        for place, part in _places(name.split(".")):
            beside.setdefault(place, set()).add(part)
    return {place: {part: _apart(part, parts - {part}) for part in parts} for place, parts in beside.items()}


def _apart(part: str, others: set[str]) -> str:
    """The shortest beginning that no other has; all of it where another begins with it."""
    beginnings = (part[:length] for length in range(1, len(part)))
    return next((begin for begin in beginnings if not any(other.startswith(begin) for other in others)), part)


def _places(parts: Sequence[str]) -> Iterable[tuple[Place, str]]:
    place: Place = ()
    for part in parts:
        yield place, part
        place = (*place, "#" if part.isdecimal() else part)
