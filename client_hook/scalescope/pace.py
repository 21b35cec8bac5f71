"""How soon the link's thread looks for news again: at once as far as its share of a CPU allows.

The interpreter runs one thread at a time, so what this one takes, a training of small operations waits for. A batch
costs about as much whether it holds one update or five: the wait after it is such that it was ``SHARE`` of the time.

While there is news, looking is cheaper for the training than being woken, which costs it a system call an update
(60 us on a busy machine, against 0.1). A look in vain doubles the wait for the next.
"""

from __future__ import annotations

SHARE = 0.003
SOONEST_S = 0.02
# A page shows what is a fifth of a second old as live. What is measured on a device becomes drainable without anybody
# calling us, so that one who sleeps until woken looks as often.
LATEST_S = 0.2
# While the server is away nobody waits for anything.
AWAY_S = 0.25


class Pace:
    """The waits between the looks of one thread."""

    def __init__(self) -> None:
        self._wait_s = SOONEST_S
        self._cpu_s: float | None = None

    def wait_s(self, *, found: bool, away: bool, cpu_s: float | None) -> float:
        """Seconds from a look to the next one.

        Args:
            found: whether there was news.
            away: whether the server is.
            cpu_s: CPU seconds that the thread has taken so far; None where the system does not tell.
        """
        if found:
            spent_s = 0.0 if cpu_s is None or self._cpu_s is None else cpu_s - self._cpu_s
            self._wait_s = min(max(spent_s / SHARE, SOONEST_S), LATEST_S)
            self._cpu_s = cpu_s
        else:
            self._wait_s = min(2 * self._wait_s, LATEST_S)
        return AWAY_S if away else self._wait_s
