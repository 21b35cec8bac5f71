"""When a server that is away is tried again."""

from __future__ import annotations

# Each wait is a fifth of the time the server has been away so far, so a server that comes back is found
# within a fifth of its absence (one second after five) and never later than the cap.
FIRST_RETRY_S = 0.1
RETRY_GROWTH = 1.2
RETRY_CAP_S = 15.0


def retry_delay(failures: int, jitter: float) -> float:
    """Seconds to wait after so many failed attempts in a row; ``jitter`` in [0, 1) takes off up to a quarter.

    The jitter keeps a thousand ranks from knocking at the same moment.
    """
    grown = FIRST_RETRY_S * RETRY_GROWTH ** min(failures, 100)
    return min(grown, RETRY_CAP_S) * (1 - jitter / 4)
