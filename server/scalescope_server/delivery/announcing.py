"""What an open page is told of an alert, to show as a notification of the browser. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from scalescope_server.delivery.messages import link, sentence, title
from scalescope_server.delivery.notice import Happened, Notice, Severity


class Announced(Struct, frozen=True, kw_only=True):
    """``key``: the same in every tab, so that it is shown once. ``url``: where a click leads, on this server.

    ``at``: when it happened, in seconds since the epoch.
    """

    key: str
    happened: Happened
    rule: str
    severity: Severity
    title: str
    body: str
    url: str
    at: float


def announced(key: str, told: Mapping[str, object], root_path: str) -> Announced | None:
    """What pages are told of a notice as it was stored; None where another version of this program wrote it."""
    try:
        notice = msgspec.convert(told, Notice)
    except msgspec.ValidationError:
        return None
    return Announced(
        key=key,
        happened=notice.happened,
        rule=notice.rule,
        severity=notice.severity,
        title=title([notice]),
        body=sentence(notice),
        url=link(root_path, [notice]) or root_path,
        at=notice.at,
    )
