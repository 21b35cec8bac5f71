"""What a record takes in memory once it is decoded.

What waits, and what one transaction takes on, is bounded by this and not by the size on the wire: 8 kB of a
compressed table may stand for 40 MB of counts.
"""

from __future__ import annotations

from scalescope.numerics.exponents import BINS
from scalescope.wire import Record, Sample, Steps

# Counts of 8 bytes for each exponent; zero, inf, nan, amax and the sum of squares.
ROW_BYTES = 8 * (BINS + 5)
# A row of ``step`` on its way into the database is a dictionary, and so is a value that the user logged.
UPDATE_BYTES = 1024
OF_WIRE_STEPS = 32
OF_WIRE = 8


def weight_of(record: Record, wire_bytes: int) -> int:
    """The bytes, about, that storing ``record`` holds at its peak; ``wire_bytes`` are those of its frame."""
    if isinstance(record, Sample):
        return wire_bytes + ROW_BYTES * record.table.rows
    if isinstance(record, Steps):
        return OF_WIRE_STEPS * wire_bytes + UPDATE_BYTES * record.count
    return OF_WIRE * wire_bytes
