"""A file of records that could not be delivered: one for each (server, run, segment, rank).

Layout: the line ``MAGIC``, then blocks of ``length``, ``crc32`` and ``sequence`` (little-endian u32, u32, i64)
and ``length`` bytes. The first block is a :class:`Header`, the others are encoded records with rising
sequences. A process killed while it writes leaves a torn last block; reading stops before it. What is damaged in the
middle (a disk, a machine that lost its power) is passed over, and what lies behind it read on. Both are counted.

A file is locked by whoever has it open, so that ``scalescope push`` leaves a running training's alone.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from scalescope.errors import ScalescopeError
from scalescope.session import Frame
from scalescope.wire import MAX_FRAME_BYTES, Hello

if sys.platform != "win32":
    import fcntl

SUFFIX = ".spool"
MAGIC = b"scalescope spool 1\n"

_MADE_SUFFIX = ".begun"
_BLOCK = struct.Struct("<IIq")
_HEAD = np.dtype([("length", "<u4"), ("checksum", "<u4"), ("sequence", "<i8")])
_HEADER_SEQUENCE = -1
# How much of what is damaged is looked through at once.
_LOOKED_BYTES = 256 * 1024
# No file holds so many records: a number further ahead is no sequence.
_FURTHEST = 2**32


class SpoolError(ScalescopeError):
    """A file that is not ours to read: not a spool file of this version, or in use."""


class SpoolBegunError(SpoolError):
    """A file that ends before its header does: there is nothing in it."""


class Header(msgspec.Struct, frozen=True):
    """For which server a file was written, and the greeting its records belong to."""

    url: str
    hello: Hello


@dataclass(slots=True)
class _Place:
    """Before the block at ``offset``; ``sequence`` is the last one that lies before it."""

    offset: int
    sequence: int = _HEADER_SEQUENCE


class SpoolFile:
    """An open spool file: append at its end, read from its front, forget what was acknowledged.

    ``remaining`` counts the records that are not acknowledged, ``size`` is in bytes, and so is what is ``damaged`` of
    it. Space is given back only when the file is deleted: acknowledged records come off its front, and it is gone once
    all are.
    """

    def __init__(self, path: Path, file: BinaryIO, header: Header) -> None:
        self.path = path
        self.header = header
        self.remaining = 0
        self.damaged = 0
        self.size = file.tell()
        # Where something damaged begins -> where it ends.
        self._gaps: dict[int, int] = {}
        self._file = file
        self._acknowledged = _Place(self.size)
        self._read = _Place(self.size)

    @classmethod
    def create(cls, folder: Path, header: Header) -> SpoolFile:
        """A new, empty file in ``folder``, made with mode 0700 if it is not there. Raises :class:`OSError`."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / _file_name(header)
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        # Locked and with its header before anybody finds it, where an open file can be renamed.
        made = path if sys.platform == "win32" else path.with_suffix(_MADE_SUFFIX)
        # O_EXCL: a link someone else put there is never followed.
        descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        file = os.fdopen(descriptor, "r+b", buffering=0)
        try:
            _lock(path, file)
            _write_all(file, MAGIC + _block(_HEADER_SEQUENCE, msgspec.msgpack.encode(header)))
            if made != path:
                made.rename(path)
        except BaseException:
            file.close()
            made.unlink()
            raise
        return cls(path, file, header)

    @classmethod
    def open(cls, path: Path) -> SpoolFile:
        """The file at ``path`` with the intact part of its records; a torn tail is left out.

        Raises:
            SpoolBegunError: if there is nothing in it, not even a header.
            SpoolError: if it is not a spool file of this version, or another process has it open.
            OSError: if it cannot be read.
        """
        file = path.open("r+b", buffering=0)
        try:
            _lock(path, file)
            spool = cls(path, file, _read_header(path, file))
            spool._scan()
        except BaseException:
            file.close()
            raise
        return spool

    def append(self, frame: Frame) -> None:
        """Add a record with a sequence above all others. Raises :class:`OSError`, and is then as before."""
        block = _block(frame.sequence, frame.data)
        self._file.seek(self.size)
        try:
            _write_all(self._file, block)
        except OSError:
            self._file.truncate(self.size)
            raise
        self.size += len(block)
        self.remaining += 1

    def waiting(self, after: int) -> Iterator[Frame]:
        """The records above ``after``, in order. Reading on from the last call costs nothing extra."""
        if self._read.sequence > after or self._read.offset < self._acknowledged.offset:
            self._read = _Place(self._acknowledged.offset, self._acknowledged.sequence)
        self._skip(self._read, after)
        offset = self._read.offset
        while offset < self.size:
            offset = self._gaps.get(offset, offset)
            length, _, sequence = self._head(offset)
            yield Frame(sequence, self._file.read(length))
            offset += _BLOCK.size + length

    def acknowledge(self, durable: int) -> int:
        """Forget the records up to ``durable``; the answer is how many they were."""
        count = self._skip(self._acknowledged, durable)
        self.remaining -= count
        return count

    def close(self) -> None:
        """Let go of the file; it stays on disk."""
        self._file.close()

    def delete(self) -> None:
        """Remove the file from disk and let go of it."""
        self.path.unlink(missing_ok=True)
        self._file.close()

    def _skip(self, place: _Place, sequence: int) -> int:
        count = 0
        while place.offset < self.size:
            start = self._gaps.get(place.offset, place.offset)
            length, _, found = self._head(start)
            if found > sequence:
                break
            place.offset = start + _BLOCK.size + length
            place.sequence = found
            count += 1
        return count

    def _scan(self) -> None:
        end = self._file.seek(0, os.SEEK_END)
        last = _HEADER_SEQUENCE
        while (start := self._intact_from(self.size, end, last)) is not None:
            if start != self.size:
                self._gaps[self.size] = start
                self.damaged += start - self.size
            length, _, last = self._head(start)
            self.size = start + _BLOCK.size + length
            self.remaining += 1
        self.damaged += end - self.size

    def _intact_from(self, offset: int, end: int, last: int) -> int | None:
        """Where the first intact block begins that lies at ``offset`` or behind it, with a sequence above ``last``."""
        if self._is_intact(offset, end, last):
            return offset
        for first in range(offset, end, _LOOKED_BYTES):
            self._file.seek(first)
            raw = np.frombuffer(self._file.read(_LOOKED_BYTES + _BLOCK.size - 1), np.uint8)
            if len(raw) >= _BLOCK.size:
                heads = sliding_window_view(raw, _BLOCK.size).copy().view(_HEAD)[:, 0]
                likely = (heads["length"] > 0) & (heads["length"] <= MAX_FRAME_BYTES)
                likely &= (heads["sequence"] > last) & (heads["sequence"] <= last + _FURTHEST)
                for place in np.flatnonzero(likely).tolist():
                    if self._is_intact(first + place, end, last):
                        return first + place
        return None

    def _is_intact(self, offset: int, end: int, last: int) -> bool:
        if offset + _BLOCK.size > end:
            return False
        length, checksum, sequence = self._head(offset)
        # A block of zeros has the right checksum: but no record is empty.
        whole = 0 < length <= MAX_FRAME_BYTES and offset + _BLOCK.size + length <= end
        return whole and sequence > last and _checksum(sequence, self._file.read(length)) == checksum

    def _head(self, offset: int) -> tuple[int, int, int]:
        """(length, checksum, sequence) of the block at ``offset``; the file then stands at its content."""
        self._file.seek(offset)
        length, checksum, sequence = _BLOCK.unpack(self._file.read(_BLOCK.size))
        return length, checksum, sequence


def _file_name(header: Header) -> str:
    server = hashlib.sha256(header.url.encode()).hexdigest()[:12]
    hello = header.hello
    return f"{hello.run}_{hello.segment}_{hello.rank}_{server}{SUFFIX}"


def _block(sequence: int, data: bytes) -> bytes:
    return _BLOCK.pack(len(data), _checksum(sequence, data), sequence) + data


def _checksum(sequence: int, data: bytes) -> int:
    return zlib.crc32(data, sequence & 0xFFFFFFFF)


def _read_header(path: Path, file: BinaryIO) -> Header:
    refusal = SpoolError(f"{path}: expected a spool file of this version of scalescope, got something else")
    head = file.read(len(MAGIC) + _BLOCK.size)
    if not head.startswith(MAGIC[: len(head)]):
        raise refusal
    if len(head) < len(MAGIC) + _BLOCK.size:
        raise SpoolBegunError(f"{path}: nothing is in it; the process that began it was killed at once")
    length, checksum, sequence = _BLOCK.unpack(head[len(MAGIC) :])
    data = file.read(min(length, MAX_FRAME_BYTES))
    if sequence != _HEADER_SEQUENCE or _checksum(sequence, data) != checksum:
        raise refusal
    try:
        return msgspec.msgpack.decode(data, type=Header)
    except msgspec.DecodeError as error:
        raise refusal from error


def _write_all(file: BinaryIO, data: bytes) -> None:
    # An unbuffered write may take only a part: on a full disk the next one then says so.
    written = 0
    while written < len(data):
        written += file.write(data[written:])


def _lock(path: Path, file: BinaryIO) -> None:
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SpoolError(f"{path}: in use by a training that still runs, or by another push") from error
    except OSError:
        # Some network file systems know no locks. Delivering twice is harmless, losing the data is not.
        return
