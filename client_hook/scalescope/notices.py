"""What the log says about delivery: one line when a trouble begins, one when it ends, one about what is left."""

from __future__ import annotations

import logging
import shlex

from scalescope.connection import reason
from scalescope.outbox import Outbox

# A server whose database is locked for a while is only slow.
SILENT_S = 30.0

_NO_END = "the server will show the run as silent, since it knows of no end"

logger = logging.getLogger("scalescope")


class Notices:
    """The log lines about the server at ``url``, whatever the number of attempts."""

    def __init__(self, url: str) -> None:
        self.in_trouble = False
        self._url = url
        self._told_unsendable = self._told_unfinished = False
        self._acknowledged, self._moved_at = -1, 0.0

    def trouble(self, trouble: BaseException) -> None:
        """There is no connection."""
        if self.in_trouble:
            return
        self.in_trouble = True
        # A warning in both directions: who has read the first wants to read the second.
        logger.warning(
            "scalescope: no connection to %s (%s); the training goes on, its data is kept and sent later",
            self._url,
            reason(trouble),
        )

    def look(self, *, acknowledged: int, pending: int, now: float) -> None:
        """The server is connected; it has acknowledged so many records by ``now``, in seconds, others wait."""
        if not pending or acknowledged != self._acknowledged:
            self._acknowledged, self._moved_at = acknowledged, now
        elif now - self._moved_at >= SILENT_S and not self.in_trouble:
            self.in_trouble = True
            logger.warning(
                "scalescope: %s has acknowledged nothing of what it was sent for %.0f s; the training goes on, its "
                "data is kept",
                self._url,
                now - self._moved_at,
            )

    def answered(self) -> None:
        """The server has answered."""
        if self.in_trouble:
            self.in_trouble = False
            logger.warning("scalescope: %s answers again; what was kept is being sent", self._url)

    def refused(self, refusal: BaseException, advice: str) -> None:
        """The server takes nothing of this run, however often it is asked."""
        logger.warning(
            "scalescope: %s refuses this run: %s; %s; the training goes on and its data is kept",
            self._url,
            reason(refusal),
            advice,
        )

    def unsendable(self, kind: str, error: Exception) -> None:
        """A record has no encoding. Said of the first; the others are counted."""
        if not self._told_unsendable:
            self._told_unsendable = True
            logger.warning("scalescope: a record of kind %s cannot be sent (%r) and is dropped", kind, error)

    def left(self, left: int, outbox: Outbox) -> None:
        """``left`` records were not delivered; what is kept of them is in the file of ``outbox``."""
        kept, path = outbox.spilled, outbox.path
        where = (
            f"kept in {path}, deliver them with: scalescope push {shlex.quote(str(path.parent))}"
            if path
            else "nothing is kept"
        )
        why = f": {outbox.failure}" if outbox.failure else ""
        lost = f" ({left - kept} had no room and are lost{why})" if left > kept else ""
        end = "" if kept else f"; {_NO_END}"
        logger.warning("scalescope: %d records were not delivered to %s: %s%s%s", left, self._url, where, lost, end)

    def unfinished(self, within_s: float, pending: int) -> None:
        """Time was up before the end was told, or what is left kept: the process may be gone soon."""
        if not self._told_unfinished:
            self._told_unfinished = True
            logger.warning(
                "scalescope: the end of this training was not delivered to %s within %g s, and %d records wait: a disk "
                "or a device does not answer; what is not kept before the process ends is lost; %s",
                self._url,
                within_s,
                pending,
                _NO_END,
            )
