"""Methods of one object of a library, heard while somebody listens and put back afterwards.

The object goes on to copy and to pickle: a copy has its own method, which nobody hears.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

# What a library's method takes and answers is passed on as it is.
Given = Any
Method = Callable[..., Given]


class Heard:
    """Stands on an object in the place of its method ``name``: ``around`` is called with that and its arguments."""

    def __init__(self, owner: object, name: str, around: Method) -> None:
        self._owner = owner
        self._name = name
        self._hung = vars(owner).get(name)
        self.own: Method = getattr(owner, name)
        self.around: Method | None = around
        setattr(owner, name, self)

    def __call__(self, *args: Given, **kwargs: Given) -> Given:
        return self.own(*args, **kwargs) if self.around is None else self.around(self.own, *args, **kwargs)

    def remove(self) -> None:
        """The object has its own method again. Where somebody put another over ours, ours only passes on."""
        self.around = None
        if vars(self._owner).get(self._name) is not self:
            return
        if self._hung is None:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._hung)

    def __deepcopy__(self, memo: dict[int, Any]) -> Method:
        return copy.deepcopy(self.own, memo)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, str]]:
        return getattr, (self._owner, self._name)


def listener(owner: object, name: str) -> object:
    """Whose method is called in the place of the method ``name`` of ``owner``; None where it is nobody's."""
    heard = vars(owner).get(name)
    return getattr(heard.around, "__self__", None) if isinstance(heard, Heard) else None
