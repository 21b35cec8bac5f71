"""What lies in a spool file, read without the hook: by the layout that is written down for it."""

from __future__ import annotations

import zlib
from pathlib import Path
from struct import Struct

_MAGIC = b"scalescope spool 1\n"
_HEAD = Struct("<IIq")


def last_spooled(folder: Path) -> tuple[int, int]:
    """(how many records, the highest sequence) of all files in a folder; (0, -1) for none."""
    count, highest = 0, -1
    for path in folder.glob("*.spool"):
        data, offset = path.read_bytes(), len(_MAGIC)
        # The header is the first block, with the sequence -1.
        while offset + _HEAD.size <= len(data):
            length, checksum, sequence = _HEAD.unpack_from(data, offset)
            content = data[offset + _HEAD.size : offset + _HEAD.size + length]
            if len(content) < length or zlib.crc32(content, sequence & 0xFFFFFFFF) != checksum:
                break
            count, highest = count + (sequence >= 0), max(highest, sequence)
            offset += _HEAD.size + length
    return count, highest
