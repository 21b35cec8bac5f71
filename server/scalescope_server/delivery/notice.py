"""What the judge has to tell of one turn of an alert, as it stands in a row of the outbox."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from scalescope_server.store.digests import digest_of
from scalescope_server.store.records import Single

# "test" is of no rule: somebody tries a channel.
Happened = Literal["fired", "resolved", "test"]
Severity = Literal["info", "warning", "critical"]


class Notice(Struct, frozen=True, kw_only=True):
    """One turn of the alert of ``rule`` on ``run``.

    Attributes:
        firing: which firing of this rule on this run it is, from 1; a resolved one has the number of its firing.
        step: the update at which it turned; None where time passed and no update came.
        at: when that was, in seconds since the epoch.
        first_step: the update from which on the condition held, where ``for`` made it wait.
        value: what the condition compared, as it was at ``step``; ``unit``: in which it is written, being a share of 1
            where that is "%".
        culprit: parameter, rank or code of a finding to blame, if any.
        condition: the rule as a sentence.
        text: the rule's template of the message, "" for the ordinary words.
        scale: the loss scale in force at ``step``.
        unsaid: how many firings right before it were not told of, since the alert flaps.
    """

    rule: str
    severity: Severity
    run: str
    run_name: str
    project: str
    happened: Happened
    firing: int
    step: int | None
    at: float
    first_step: int | None = None
    value: Single = None
    unit: Literal["", "%", "ms", "s"] = ""
    culprit: str | None = None
    scale: Single = None
    condition: str = ""
    text: str = ""
    reason: str = ""
    unsaid: int = 0


def notice_key(notice: Notice, channel: str) -> str:
    """The same for the same turn on the same channel, however often it is judged, and for no other of its alert.

    A rule that is made again under its name counts its firings anew: the outbox tells its alert from the one before.
    """
    named = (notice.rule, notice.run, str(notice.firing), notice.happened, channel)
    return digest_of(named)
