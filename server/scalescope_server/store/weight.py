"""What a record takes in memory once it is decoded.

What waits, and what one transaction takes on, is bounded by this and not by the size on the wire: 8 kB of a
compressed table may stand for 40 MB of counts.
"""

from __future__ import annotations

from scalescope.numerics.exponents import BINS
from scalescope.wire import Event, Layout, Probe, Record, Sample, Setup, Steps

# Of a sample its rows of counts, in 8 bytes each, are held of the exponents that it has, or as many as those that are
# added up with it have: as a rule a fifth of all.
LEAST_BINS = BINS // 4
# Beside them zero, inf, nan, amax and the sum of squares.
VALUES = 5
# A row on its way into the database is a dictionary: an update, a value that the user logged, a parameter, a module.
DICTIONARY_BYTES = 1024
# A record that tells nothing is an object, a row, and what is to be folded of it.
RECORD_BYTES = 4096
OF_WIRE_STEPS = 32
# Two letters of JSON make an object of 64 bytes.
OF_WIRE_JSON = 32
OF_WIRE = 8


def weight_of(record: Record, wire_bytes: int) -> int:
    """The bytes, about, that storing ``record`` holds at its peak; ``wire_bytes`` are those of its frame."""
    return RECORD_BYTES + _content(record, wire_bytes)


def _content(record: Record, wire_bytes: int) -> int:
    if isinstance(record, Sample):
        return wire_bytes + 8 * (max(record.table.bins, LEAST_BINS) + VALUES) * record.table.rows
    if isinstance(record, Steps):
        return OF_WIRE_STEPS * wire_bytes + DICTIONARY_BYTES * record.count
    if isinstance(record, Layout):
        return OF_WIRE * wire_bytes + DICTIONARY_BYTES * (len(record.parameters) + len(record.modules))
    return (OF_WIRE_JSON if isinstance(record, Event | Probe | Setup) else OF_WIRE) * wire_bytes
