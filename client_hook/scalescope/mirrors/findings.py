"""The findings of a run, asked of the server, and what of them is news."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote, urlsplit

import msgspec

from scalescope.mirrors.mirror import Finding, Severity

ASK_WITHIN_S = 1.0
# Findings of a run are a handful; an answer beyond this is another server's.
_MAX_ANSWER_BYTES = 1024 * 1024

# What makes one finding, whatever becomes of it.
Key = tuple[str, str, int]


class _Row(msgspec.Struct):
    code: str
    subject: str
    severity: Severity
    sentence: str
    advice: str
    first_step: int
    last_step: int | None


class _Answer(msgspec.Struct):
    items: list[_Row]


def ask(url: str, token: str | None, run: str) -> list[Finding]:
    """What the server at ``url`` has found of ``run``.

    Raises:
        OSError: if it cannot be reached in time, or answers anything else.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=ASK_WITHIN_S)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request("GET", f"{parts.path}/api/runs/{quote(run)}/findings", headers=headers)
        response = connection.getresponse()
        body = response.read(_MAX_ANSWER_BYTES)
        if response.status != http.client.OK:
            raise OSError(f"it answered HTTP {response.status}")
        rows = msgspec.json.decode(body, type=_Answer).items
    except (http.client.HTTPException, msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise OSError(f"it answered something else: {error}") from error
    finally:
        connection.close()
    return [Finding(**msgspec.structs.asdict(row)) for row in rows]


class News:
    """Tells what is to be echoed of one answer after the other."""

    def __init__(self) -> None:
        self._told: dict[Key, Finding] = {}

    def of(self, found: Sequence[Finding], *, last: bool = False) -> list[Finding]:
        """What is new, has another severity, or is gone. A sentence counts up with the run: told anew at the last."""
        now = {(each.code, each.subject, each.first_step): each for each in found}
        news = [finding for key, finding in now.items() if self._is_news(key, finding, last=last)]
        gone = [replace(told, withdrawn=True) for key, told in self._told.items() if key not in now]
        self._told = {key: finding if finding in news else self._told[key] for key, finding in now.items()}
        return news + gone

    def _is_news(self, key: Key, finding: Finding, *, last: bool) -> bool:
        told = self._told.get(key)
        return told is None or told.severity != finding.severity or (last and told != finding)
