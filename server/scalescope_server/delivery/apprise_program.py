"""The program that sends one message by apprise and ends: ``python -m scalescope_server.delivery.apprise_program``.

It reads a job (JSON) and writes a line for each target that it has reached, as soon as it has, and what became of the
job in the last one. The service's address, which holds its secrets, comes by standard input, so no list of processes
shows it, and what the library says of it goes out without any part of it.
"""

from __future__ import annotations

import logging
import mimetypes
import re
import sys
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct

from scalescope_server.delivery.addresses import is_numeric, parse_network
from scalescope_server.delivery.apprise_targets import Kind, tell_each
from scalescope_server.delivery.gate import close_gate
from scalescope_server.delivery.services import scheme_of

MAX_SAID = 300
# Shorter parts of an address are words such as "to", and hide nothing.
SECRET_LETTERS = 4


class Job(Struct, frozen=True):
    """``url``: of the service. ``lines``, ``link``: the text. ``allowed``: networks beside the public ones.

    ``reached``: the targets that have it already.
    """

    url: str
    title: str
    lines: tuple[str, ...]
    link: str | None = None
    kind: Kind = "info"
    allowed: tuple[str, ...] = ()
    reached: tuple[str, ...] = ()


class Answer(Struct, frozen=True):
    """``understood``: apprise can make something of the address. ``sent``: all targets have it.

    ``refused``: why it may not be sent there; ``final``: nor at any other time.
    """

    understood: bool
    sent: bool = False
    refused: str | None = None
    final: bool = False
    said: str = ""


class _Said(logging.Handler):
    """Keeps what apprise warned of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    _say(msgspec.json.encode(answer(job, lambda digest: _say(digest.encode()))))


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def answer(job: Job, reached: Callable[[str], None]) -> Answer:
    """Do ``job``. This process can do nothing else afterwards. ``reached``: hears of each target that has it now."""
    from apprise import Apprise, AppriseAsset, NotifyBase
    from apprise.logger import logger

    said = _Said()
    logger.addHandler(said)
    logger.propagate = False
    if scheme_of(job.url) is None:
        return Answer(understood=False)
    mimetypes.init()
    refused: list[tuple[str, bool]] = []
    close_gate([parse_network(network) for network in job.allowed], lambda *why: refused.append(why))
    # One address alone: a list of them would hold some that nobody has looked at.
    service = Apprise.instantiate(job.url, asset=AppriseAsset(app_id="Scalescope", async_mode=False))
    if not isinstance(service, NotifyBase):
        return Answer(understood=False, said=_without(job.url, said.lines))
    sent = tell_each(service, job, reached)
    why, of_address = refused[0] if refused else (None, False)
    final = why is not None and not (of_address and _is_named(job.url))
    return Answer(True, sent, why, final, _without(job.url, said.lines))


def _is_named(url: str) -> bool:
    """Whether the address holds a name, which may lead elsewhere a moment later."""
    try:
        return not is_numeric(urlsplit(url).hostname or "")
    except ValueError:
        return True


def _without(url: str, lines: list[str]) -> str:
    """The last of ``lines``, with every part of ``url`` left out that may be a secret."""
    told = re.sub(r"\s+", " ", lines[-1]).strip() if lines else ""
    parts = {found for text in (url, unquote(url)) for found in re.split(r"[/:@?&=,;+\s]+", text.partition("://")[2])}
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= SECRET_LETTERS:
            told = told.replace(part, "…")
    return told[:MAX_SAID]


if __name__ == "__main__":
    main()
