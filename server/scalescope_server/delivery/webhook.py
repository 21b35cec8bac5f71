"""A webhook of our own: the message as JSON, signed, in one POST over a connection to a checked address.

No redirect is followed, and no proxy of the environment is used: either would lead past the check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import h11
import msgspec
from scalescope.version import __version__

from scalescope_server.delivery.addresses import Network
from scalescope_server.delivery.messages import Message
from scalescope_server.delivery.outcome import DELIVERED, Outcome, UndeliverableError
from scalescope_server.delivery.signing import key_of, signed_headers
from scalescope_server.delivery.targets import Resolve, Streams, Target, Trust, open_checked, resolve, system_trust

# From the name's resolution to the answer's status line.
WITHIN_S = 10.0
READ_BYTES = 16_384
REDIRECTS = range(300, 400)
DELIVERED_BY = range(200, 300)
GONE = 410


async def post(
    target: Target,
    secret: str,
    message: Message,
    *,
    now: float,
    allowed: Sequence[Network],
    resolve: Resolve = resolve,
    trust: Trust = system_trust,
    within_s: float = WITHIN_S,
) -> Outcome:
    """Send ``message`` and wait for the status of the answer; no more is read.

    ``now``: seconds since the epoch, what the signature tells.
    """
    body = msgspec.json.encode(message)
    headers = {
        "host": target.netloc,
        "user-agent": f"scalescope/{__version__}",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **signed_headers(key_of(secret), message.key, int(now), body),
    }
    try:
        async with asyncio.timeout(within_s):
            streams = await open_checked(target, allowed, resolve=resolve, trust=trust)
            try:
                return _judge(await _exchange(streams, target.path, headers, body))
            finally:
                # No farewell: a receiver that does not let go keeps nobody.
                streams[1].transport.abort()
    except TimeoutError:
        return Outcome(f"{target.origin} did not answer within {within_s:g} s")
    except (OSError, h11.RemoteProtocolError) as error:
        return Outcome(f"the connection to {target.origin} broke: {error}")
    except UndeliverableError as error:
        return Outcome(str(error), error.final)


async def _exchange(streams: Streams, path: str, headers: dict[str, str], body: bytes) -> h11.Response:
    reader, writer = streams
    ours = h11.Connection(h11.CLIENT)
    request = h11.Request(method="POST", target=path, headers=list(headers.items()))
    for part in (request, h11.Data(data=body), h11.EndOfMessage()):
        writer.write(ours.send(part) or b"")
    await writer.drain()
    while True:
        told = ours.next_event()
        if isinstance(told, h11.Response):
            return told
        if told is h11.NEED_DATA:
            ours.receive_data(await reader.read(READ_BYTES))
        elif not isinstance(told, h11.InformationalResponse):
            raise UndeliverableError("the receiver closed the connection without an answer")


def _judge(answer: h11.Response) -> Outcome:
    status = answer.status_code
    if status in DELIVERED_BY:
        return DELIVERED
    if status in REDIRECTS:
        return Outcome(f"the receiver answered {status}: redirects are not followed, so give the address it leads to")
    return Outcome(f"the receiver answered {status}", final=status == GONE, retry_after_s=_retry_after(answer))


def _retry_after(answer: h11.Response) -> float | None:
    """Its seconds; a date is left alone, since clocks differ."""
    told = next((value for name, value in answer.headers if name == b"retry-after"), b"")
    return float(told) if told.isdigit() and len(told) <= len("86400") else None
