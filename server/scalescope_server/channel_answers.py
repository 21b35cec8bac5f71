"""The answers' shapes about channels: nothing of their addresses and secrets that may not be shown."""

from __future__ import annotations

from msgspec import Struct


class ChannelLine(Struct, frozen=True, kw_only=True):
    """A channel as it may be shown. ``kind``: webhook, apprise or command.

    ``target``: scheme, host and port of a webhook, the scheme of a service. ``waiting``, ``delivered``, ``failed``: how
    many notifications; ``error``: why the last that did not arrive did not. ``tried_at``, ``arrived``: when the last
    was tried, in seconds since the epoch, and whether it had arrived; null where none was. Tests are not among them.
    """

    name: str
    kind: str
    target: str
    enabled: bool
    waiting: int
    delivered: int
    failed: int
    error: str | None
    tried_at: float | None
    arrived: bool | None


class ChannelsAnswer(Struct, frozen=True):
    items: list[ChannelLine]
    next: str | None


class TrialAnswer(Struct, frozen=True):
    """Whether a test has arrived, why not, and how long it took."""

    delivered: bool
    error: str | None
    took_s: float


# What the description of the API (OpenAPI) names.
SHAPES = (ChannelLine, ChannelsAnswer, TrialAnswer)
