"""Where a webhook goes: its address as a user gave it, and a connection to an address that was checked.

A name is resolved once for each connection, everything it resolves to is checked, and the connection is made to one of
these very addresses. So it cannot matter what the name means a moment later. TLS and the Host header keep the name.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from scalescope_server.delivery.addresses import Network, is_numeric, refusal
from scalescope_server.delivery.outcome import UndeliverableError

MAX_URL = 2048
# Of the addresses of one name so many are tried.
MOST_TRIED = 4

# A socket address as getaddrinfo gives it, after its family.
Place = tuple[int, tuple[Any, ...]]
Resolve = Callable[[str, int], Awaitable[Sequence[Place]]]
# Whom to trust for TLS.
Trust = Callable[[], ssl.SSLContext]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,253}")


class BadTargetError(ValueError):
    """The address cannot be one of a webhook. The text does not repeat it: it may hold a secret."""


@dataclass(frozen=True, slots=True)
class Target:
    """A webhook's address in parts. ``path`` holds the query, too, and perhaps secrets: it is not in the repr."""

    tls: bool
    host: str
    port: int
    path: str

    def __repr__(self) -> str:
        return f"Target({self.origin!r})"

    @property
    def origin(self) -> str:
        """Scheme, host and port: what may be shown of it."""
        return f"{'https' if self.tls else 'http'}://{self.netloc}"

    @property
    def netloc(self) -> str:
        """What the Host header holds."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.tls else "http"] else f"{host}:{self.port}"


def parse_target(url: str) -> Target:
    """Raises :class:`BadTargetError`."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode() if ":" not in (parts.hostname or "") else parts.hostname
        port = parts.port
    except ValueError:
        raise BadTargetError("expected an address such as https://hooks.example.com/path") from None
    if parts.scheme not in _PORTS or not host or _HOST.fullmatch(host) is None:
        raise BadTargetError("expected an address such as https://hooks.example.com/path")
    if parts.username is not None or parts.password is not None:
        raise BadTargetError("expected no user and password in the address: the signature says who sends")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if len(url) > MAX_URL or not path.isascii() or re.search(r"[\x00-\x20\x7f]", path):
        raise BadTargetError(f"expected at most {MAX_URL} characters, those of path and query ASCII without blanks")
    return Target(parts.scheme == "https", host, port or _PORTS[parts.scheme], path)


async def resolve(host: str, port: int) -> Sequence[Place]:
    """What the system says. Raises :class:`OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


@functools.cache
def system_trust() -> ssl.SSLContext:
    """Whom the system trusts, read once."""
    return ssl.create_default_context()


async def open_checked(
    target: Target, allowed: Sequence[Network], *, resolve: Resolve = resolve, trust: Trust = system_trust
) -> Streams:
    """A connection to ``target``.

    Raises:
        UndeliverableError: if its name leads nowhere, to where nothing may be sent, or nobody answers there. What a
            name leads to may be another thing a moment later, so it is final for an address alone.
    """
    try:
        places = await resolve(target.host, target.port)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        raise UndeliverableError(f"the name {target.host!r} leads nowhere: {why or error}") from error
    for _, address in places:
        if (why := refusal(str(address[0]), allowed)) is not None:
            raise UndeliverableError(
                f"nothing is sent to {target.host!r}, since {why}: if it should be, add it to allow_targets in the "
                "server's settings file",
                final=is_numeric(target.host),
            )
    # To read whom the system trusts takes longer than the event loop may wait.
    tls = await asyncio.to_thread(trust) if target.tls else None
    reason = "it has no address"
    for place in places[:MOST_TRIED]:
        try:
            return await _connect(place, target, tls)
        except OSError as error:
            reason = error.strerror or str(error)
    raise UndeliverableError(f"no connection to {target.origin}: {reason}")


async def _connect(place: Place, target: Target, tls: ssl.SSLContext | None) -> Streams:
    family, address = place
    with contextlib.ExitStack() as undo:
        connected = socket.socket(family, socket.SOCK_STREAM)
        undo.callback(connected.close)
        connected.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connected, address)
        streams = await asyncio.open_connection(
            sock=connected, ssl=tls, server_hostname=None if tls is None else target.host
        )
        undo.pop_all()
    return streams
