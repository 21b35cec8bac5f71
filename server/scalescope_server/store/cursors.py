"""Where a list goes on: the sort key of the last row of a page, as an opaque text."""

from __future__ import annotations

import base64
import binascii
import math
from typing import TypeVar

import msgspec

from scalescope_server.store.errors import BadCursor

Position = TypeVar("Position", tuple[int, int], tuple[float, int])


def packed_cursor(position: tuple[float, int]) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(position)).decode().rstrip("=")


def unpacked_cursor(cursor: str, kind: type[Position]) -> Position:
    """The sort key of the last row. Raises :class:`BadCursor` for a text that is no cursor of this ``kind``."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        position = msgspec.msgpack.decode(raw, type=kind)
    except (binascii.Error, msgspec.DecodeError, ValueError) as error:
        raise BadCursor(cursor) from error
    # Both databases hold 64 bits with a sign, and nothing sorts beside NaN.
    if not all(math.isfinite(part) and abs(part) < 2**63 for part in position):
        raise BadCursor(cursor)
    return position
