"""What servers on one database tell each other: which run changed, no more. What changed is read from the store.

Between two moments of telling, of each run only the newest is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from scalescope_server.store.records import RunId


class Telegram(Struct, array_like=True, frozen=True):
    """A run changed.

    ``seen_at`` is the watermark: when it last gave a sign of life by the clock of the server that heard it, seconds
    since the epoch; None where something else changed, a finding or its name. ``gone``: it was deleted.
    """

    run: RunId
    seen_at: float | None = None
    gone: bool = False


Heard = Callable[[Sequence[Telegram]], None]


class Telegraph(Protocol):
    """The way to the other servers."""

    listening: bool

    def start(self, heard: Heard) -> None:
        """Begin to tell and to listen. ``heard`` is called in a thread of the telegraph's own; it returns at once."""

    def tell(self, telegram: Telegram) -> None:
        """Let the other servers know. Any thread; returns at once, and never fails: they look by themselves, too."""

    def stop(self) -> None:
        """Tell what waits, and end."""


class Alone:
    """No other server can have the database."""

    listening = False

    def start(self, heard: Heard) -> None: ...

    def tell(self, telegram: Telegram) -> None: ...

    def stop(self) -> None: ...


def merged(earlier: Telegram | None, later: Telegram) -> Telegram:
    """Both in one."""
    if earlier is None:
        return later
    seen = [at for at in (earlier.seen_at, later.seen_at) if at is not None]
    return Telegram(later.run, max(seen, default=None), earlier.gone or later.gone)
