"""The signature of a webhook, as https://www.standardwebhooks.com has it, so that its libraries can verify it.

``webhook-id`` is the idempotency key: the same each time the same message is sent. ``webhook-timestamp`` is when this
attempt was made (whole seconds since the epoch). ``webhook-signature`` holds ``v1,`` and the base64 of the HMAC-SHA256
over ``{id}.{timestamp}.{body}``, so neither of the three can be changed, and an old message is not taken for a new one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping

SECRET_PREFIX = "whsec_"  # noqa: S105 - what secrets begin with
# As long as the hash at least: shorter ones are guessed, longer ones are hashed first.
SECRET_BYTES = (24, 64)
VERSION = "v1"


class BadSecretError(ValueError):
    """The text is no secret of a webhook."""


def key_of(secret: str) -> bytes:
    """The bytes that ``secret`` ("whsec_" and base64) stands for. Raises :class:`BadSecretError`."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    least, most = SECRET_BYTES
    if not secret.startswith(SECRET_PREFIX) or not least <= len(key) <= most:
        # Never what came: it may be a secret that lacks a letter.
        raise BadSecretError(
            f'expected "{SECRET_PREFIX}" and {least} to {most} random bytes in base64: make them with '
            f'echo "{SECRET_PREFIX}$(openssl rand -base64 32)"'
        )
    return key


def signature(key: bytes, message: str, timestamp: int, body: bytes) -> str:
    signed = b".".join((message.encode(), str(timestamp).encode(), body))
    return f"{VERSION},{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"


def signed_headers(key: bytes, message: str, timestamp: int, body: bytes) -> Mapping[str, str]:
    """What goes with ``body`` when it is sent as ``message`` at ``timestamp``."""
    return {
        "webhook-id": message,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(key, message, timestamp, body),
    }
