"""What a training is set up like: named parts, told together and only when something of them has changed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping

from scalescope.taps.edge import Edge
from scalescope.updates import Update
from scalescope.wire import Setup

# wire.Text holds 16,384 characters.
_MAX_TEXT = 16_000
# Updates from one set-up to the next: what changes all the time is no set-up, and must not fill the store.
_APART = 64
# Sampled updates from one reading to the next of what takes a look at everything.
_SELDOM = 64


class Setups:
    """Collects the parts of one scope's set-up, and hands them on whole as an update closes.

    The last of the watchers: what the others tell at an update is told with it. A part is told by who knows it, or
    read at updates whose turn it is to be sampled.
    """

    def __init__(self, put: Callable[[Setup], None], edge: Edge) -> None:
        self._put = put
        self._edge = edge
        self._readers: list[tuple[str, Callable[[], object], bool]] = []
        self._sampled = 0
        self._parts: dict[str, object] = {}
        self._changed = False
        self._told_at: int | None = None
        self._last: tuple[int, float] | None = None

    def read(self, part: str, reader: Callable[[], object], *, now_and_then: bool = False) -> None:
        """Ask ``reader`` what ``part`` is at every such update, or at the 1st, 2nd, 4th ... 64th, 128th of them."""
        self._readers.append((part, reader, now_and_then))

    def tell(self, part: str, value: object) -> None:
        """``part`` is ``value`` (as JSON can hold it, not changed afterwards) from here on; None takes it away."""
        if self._parts.get(part) != value:
            self._changed = True
            if value is None:
                del self._parts[part]
            else:
                self._parts[part] = value

    def closing(self, update: Update) -> None:
        self._last = update.step, update.at
        # Also where no gradient was found to be measured.
        if update.periodic:
            self._read()
        if self._changed and (self._told_at is None or update.step - self._told_at >= _APART):
            self._send(*self._last)

    def remove(self) -> None:
        """Tell what was not told yet, and ask no more."""
        self._readers.clear()
        if self._changed and self._last is not None:
            self._send(*self._last)

    def _read(self) -> None:
        self._sampled += 1
        turn = self._sampled % _SELDOM == 0 or (self._sampled < _SELDOM and self._sampled & (self._sampled - 1) == 0)
        for part, reader, now_and_then in self._readers:
            if turn or not now_and_then:
                self._edge.call(self._ask, part, reader)

    def _ask(self, part: str, reader: Callable[[], object]) -> None:
        self.tell(part, reader())

    def _send(self, step: int, at: float) -> None:
        self._changed, self._told_at = False, step
        self._put(Setup(sequence=0, step=step, at=at, data=setup_text(self._parts)))


def setup_text(parts: Mapping[str, object], *, room: int = _MAX_TEXT) -> str:
    """``parts`` as a JSON object of at most ``room`` characters.

    Where they do not fit, the small ones stay whole and the large ones are cut to equal shares; ``left_out``
    then says of each of those how many of its entries are missing.
    """
    whole = _json(parts)
    if len(whole) <= room:
        return whole
    sizes = {part: len(_json({part: value})) for part, value in parts.items()}
    # What the note takes at most: no part has more entries than this.
    room -= len(_json({"left_out": dict.fromkeys(parts, 10**6)}))
    kept: dict[str, object] = {}
    missing: dict[str, int] = {}
    for place, part in enumerate(sorted(parts, key=sizes.__getitem__)):
        share = room // (len(parts) - place)
        kept[part], gone = (parts[part], 0) if sizes[part] <= share else _cut(part, parts[part], share)
        missing |= {part: gone} if gone else {}
        room -= len(_json({part: kept[part]}))
    return _json({part: kept[part] for part in parts} | {"left_out": missing})


def _cut(part: str, value: object, room: int) -> tuple[object, int]:
    """The first entries of ``value``, as many as ``room`` holds, and how many are left out. A bare value is one."""
    if isinstance(value, dict):
        count = _fitting([_json({name: entry}) for name, entry in value.items()], room - len(_json({part: {}})))
        return dict(list(value.items())[:count]), len(value) - count
    if isinstance(value, list | tuple):
        count = _fitting([_json([entry]) for entry in value], room - len(_json({part: []})))
        return list(value[:count]), len(value) - count
    return None, 1


def _fitting(texts: Iterable[str], room: int) -> int:
    """How many of ``texts`` fit, one after the other. Their brackets stand for the commas between."""
    return sum(taken <= room for taken in itertools.accumulate(map(len, texts)))


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
