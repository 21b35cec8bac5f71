"""Which points are echoed where there are more than a tracker is to be given."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from scalescope.mirrors.mirror import Point


def chosen(points: Sequence[Point], measured: Collection[int], most: int) -> list[Point]:
    """At most ``most`` of ``points``, in order. ``measured``: the steps whose gradients were.

    First those at which something happened (a skip, another scale than before), then those that were measured,
    then the others; of too many alike, some that are spread over all of them, the last one included.
    """
    if len(points) <= most:
        return list(points)
    happened, sampled = _happened(points), set(measured)
    others = {point.step for point in points} - sampled - happened
    kept: list[Point] = []
    for kind in (happened, sampled - happened, others):
        kept += _spread([point for point in points if point.step in kind], most - len(kept))
    return sorted(kept, key=lambda point: point.step)


def _happened(points: Iterable[Point]) -> set[int]:
    found, before = set(), None
    for point in points:
        scale = point.values.get("scale", before)
        if point.values.get("skipped") or (before is not None and scale != before):
            found.add(point.step)
        before = scale
    return found


def _spread(points: Sequence[Point], most: int) -> list[Point]:
    count = min(most, len(points))
    return [points[(place + 1) * len(points) // count - 1] for place in range(count)]
