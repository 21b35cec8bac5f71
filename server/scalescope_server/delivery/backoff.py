"""When a message that did not arrive is tried again, and when it is given up. Pure: randomness is an argument."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from ``first_s`` to ``longest_s``; after ``attempts`` it is given up.

    With the defaults the last attempt is made 54 to 107 minutes after the first, and the first seven within two minutes
    or so.
    """

    first_s: float = 2.0
    longest_s: float = 900.0
    attempts: int = 16

    def is_last(self, attempt: int) -> bool:
        """Whether attempt number ``attempt`` (from 1) is followed by none."""
        return attempt >= self.attempts

    def wait_s(self, attempt: int, drawn: float, asked_s: float | None = None) -> float:
        """Seconds to wait after attempt number ``attempt`` (from 1).

        ``drawn``: from [0, 1), so that many do not come back at the same moment: the wait is between half and all of
        its length. ``asked_s``: what the receiver asked for (Retry-After), which is taken up to ``longest_s``.
        """
        # The exponent is bounded, so that no number of attempts overflows.
        whole = min(self.longest_s, self.first_s * 2.0 ** min(attempt - 1, 60))
        wait = whole * (0.5 + 0.5 * drawn)
        return wait if asked_s is None else min(max(wait, asked_s), self.longest_s)
