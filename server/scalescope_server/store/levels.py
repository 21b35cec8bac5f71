"""The levels that steps are folded into: 8, 64, 512, ... steps a bucket.

A level is only kept for a run that outgrew the one below it: until then its first bucket would hold the same
as that of the level below. :func:`levels_for` says how many a run of a given length has.
"""

from __future__ import annotations

FACTOR = 8
# The longest run whose steps are taken: at a thousand updates a second it lasts 24 days. At the highest
# level it has 128 buckets, so every view of it is small.
MAX_STEP = 2**31 - 1
LEVELS = 8


def bucket_size(level: int) -> int:
    """Steps in one bucket; level 0 is the exact rows."""
    return int(FACTOR**level)


def levels_for(length: int) -> int:
    """How many levels a run of ``length`` steps keeps, from 1 to ``LEVELS``."""
    level = 1
    while level < LEVELS and length > bucket_size(level):
        level += 1
    return level


def lowest_for(every: int) -> int:
    """The lowest level at which samples ``every`` so many steps are kept: below it a bucket would hold one of them."""
    level = 1
    while level < LEVELS and bucket_size(level) <= every:
        level += 1
    return level


def finest(start: int, stop: int, points: int, *, lowest: int = 0) -> int:
    """The finest level, at least ``lowest``, at which the steps [start, stop) lie in at most ``points`` buckets.

    The highest level where none fits.
    """
    for level in range(lowest, LEVELS):
        if _buckets(start, stop, bucket_size(level)) <= points:
            return level
    return LEVELS


def _buckets(start: int, stop: int, size: int) -> int:
    return 0 if stop <= start else (stop - 1) // size - start // size + 1
