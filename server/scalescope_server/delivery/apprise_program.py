"""The program that sends one message by apprise and ends: ``python -m scalescope_server.delivery.apprise_program``.

It reads a job (JSON) and writes what became of it. The service's address, which holds its secrets, comes by standard
input, so no list of processes shows it, and what the library says of it goes out without any part of it.
"""

from __future__ import annotations

import logging
import mimetypes
import re
import sys
from typing import Literal
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from scalescope_server.delivery.addresses import parse_network
from scalescope_server.delivery.gate import close_gate
from scalescope_server.delivery.services import scheme_of

Kind = Literal["info", "success", "warning", "failure"]

MAX_SAID = 300
# Shorter parts of an address are words such as "to", and hide nothing.
SECRET_LETTERS = 4


class Job(Struct, frozen=True):
    """``url``: of the service. ``allowed``: networks beside the public ones."""

    url: str
    title: str
    text: str
    kind: Kind = "info"
    allowed: tuple[str, ...] = ()


class Answer(Struct, frozen=True):
    """``understood``: apprise can make something of the address. ``refused``: why it may not be sent there."""

    understood: bool
    sent: bool = False
    refused: str | None = None
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
    sys.stdout.buffer.write(msgspec.json.encode(answer(job)))


def answer(job: Job) -> Answer:
    """Do ``job``. This process can do nothing else afterwards."""
    from apprise import Apprise, AppriseAsset, NotifyBase, NotifyFormat, NotifyType
    from apprise.logger import logger

    said = _Said()
    logger.addHandler(said)
    logger.propagate = False
    if scheme_of(job.url) is None:
        return Answer(understood=False)
    mimetypes.init()
    refused: list[str] = []
    close_gate([parse_network(network) for network in job.allowed], refused.append)
    # One address alone: a list of them would hold some that nobody has looked at.
    service = Apprise.instantiate(job.url, asset=AppriseAsset(app_id="Scalescope", async_mode=False))
    if not isinstance(service, NotifyBase):
        return Answer(understood=False, said=_without(job.url, said.lines))
    sent = Apprise(service).notify(
        job.text, title=job.title, notify_type=NotifyType(job.kind), body_format=NotifyFormat.TEXT
    )
    return Answer(True, bool(sent), refused[0] if refused else None, _without(job.url, said.lines))


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
