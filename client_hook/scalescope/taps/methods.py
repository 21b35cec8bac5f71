"""Methods of classes that are not ours, replaced while somebody listens and put back afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Method = Callable[..., Any]


class Methods:
    """What was replaced: each method once, however many listen."""

    def __init__(self) -> None:
        # Class and name -> its own method and ours.
        self._replaced: dict[tuple[type, str], tuple[Method, Method]] = {}

    def replace(self, kind: type, name: str, replacing: Callable[[Method], Method]) -> None:
        """Put what ``replacing`` makes of it in the place of a method that ``kind`` itself defines, if it does."""
        own = vars(kind).get(name)
        if callable(own) and (kind, name) not in self._replaced:
            ours = replacing(own)
            setattr(kind, name, ours)
            self._replaced[kind, name] = (own, ours)

    def restore(self) -> None:
        """Every class has its own again. A replacement that somebody put over ours stays: ours then only passes on."""
        for (kind, name), (own, ours) in self._replaced.items():
            if vars(kind).get(name) is ours:
                setattr(kind, name, own)
        self._replaced.clear()
