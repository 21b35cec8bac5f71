"""What a channel is: where it leads and by what secret, checked when it is set up, and what of it may be shown. Pure.

What is kept is what sending needs, so secrets are kept as they were given, in the database alone: whoever can read that
can read them. They are not in any answer of the API, in no log line and in no export.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from scalescope_server.delivery.services import SCHEMES, scheme_of
from scalescope_server.delivery.signing import BadSecretError, key_of
from scalescope_server.delivery.targets import MAX_URL, BadTargetError, parse_target
from scalescope_server.store.outbox import BROWSER

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")


class BadChannelError(ValueError):
    """A channel that cannot be. The text holds no secret; ``field`` names what is to blame."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class Webhook(Struct, frozen=True, tag_field="kind", tag="webhook", forbid_unknown_fields=True):
    """A signed POST to ``url``."""

    url: str
    secret: str

    @property
    def shown(self) -> str:
        return f"{parse_target(self.url).origin}/…"

    def __repr__(self) -> str:
        return f"Webhook({self.shown!r})"


class Service(Struct, frozen=True, tag_field="kind", tag="apprise", forbid_unknown_fields=True):
    """One of the services that apprise knows; its address holds the tokens."""

    url: str

    @property
    def shown(self) -> str:
        return f"{scheme_of(self.url)}://…"

    def __repr__(self) -> str:
        return f"Service({self.shown!r})"


Config = Webhook | Service


def check_channel(name: str, config: Config, reserved: Mapping[str, object]) -> None:
    """Whether a channel may be set up like that. ``reserved``: names that are taken by the settings file.

    Raises:
        BadChannelError: if not.
    """
    if NAME.fullmatch(name) is None:
        raise BadChannelError("expected a name of up to 64 letters, digits, blanks, dots, dashes", "name")
    if name == BROWSER:
        raise BadChannelError(f"{name!r} is what open pages are told: choose another name", "name")
    if name in reserved:
        raise BadChannelError(f"the server's settings file has a command called {name!r}: choose another name", "name")
    try:
        if isinstance(config, Webhook):
            key_of(config.secret)
            parse_target(config.url)
    except BadSecretError as error:
        raise BadChannelError(str(error), "secret") from None
    except BadTargetError as error:
        raise BadChannelError(str(error), "url") from None
    if isinstance(config, Service):
        _check_service(config)


def config_of(kind: str, config: Mapping[str, object]) -> Config:
    """A channel as it is stored.

    Raises:
        BadChannelError: if another version of this program has stored something else.
    """
    try:
        found: Config = msgspec.convert({**config, "kind": kind}, Webhook | Service)
    except msgspec.ValidationError:
        raise BadChannelError("another version of this server set it up: set it up anew", "kind") from None
    return found


def _check_service(service: Service) -> None:
    if len(service.url) > MAX_URL or scheme_of(service.url) is None:
        raise BadChannelError(
            f"expected an address of apprise that begins with one of {', '.join(sorted(SCHEMES))} and '://'; "
            "for anything else set up a webhook",
            "url",
        )
