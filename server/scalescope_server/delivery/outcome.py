"""What became of one attempt to send a message."""

from __future__ import annotations

from msgspec import Struct


class Outcome(Struct, frozen=True):
    """``error``: why it did not arrive, in a sentence that holds no secret; None where it did.

    ``final``: trying again would be of no use. ``retry_after_s``: what the receiver asks to wait, if it does.
    ``reached``: where there are several targets, by digest, those that have it though others do not.
    """

    error: str | None = None
    final: bool = False
    retry_after_s: float | None = None
    reached: frozenset[str] = frozenset()


DELIVERED = Outcome()


class UndeliverableError(Exception):
    """A message cannot be sent now; ``final``: nor later. The text is a sentence that holds no secret."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final
