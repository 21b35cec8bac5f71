"""``scalescope runs`` and ``scalescope findings``: read from a database file or from a server, print a table.

Both sources give the same structs as the HTTP API. Text from trainers goes to a terminal here, so whatever is
not printable in it is replaced: an escape sequence must not reach the terminal.
"""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from scalescope_server.answers import ErrorAnswer, FindingsAnswer, RunLine, RunsAnswer, run_line
from scalescope_server.errors import ServerError, UnavailableError
from scalescope_server.findings.words import scale_text
from scalescope_server.store.engine import Store
from scalescope_server.store.records import FindingRow, RunId

TIMEOUT_S = 10.0
MAX_CELL = 40

Answer = TypeVar("Answer")


class Source(Protocol):
    """Where a reading command gets its answers."""

    def runs(self, limit: int) -> RunsAnswer: ...

    def findings(self, run: str) -> FindingsAnswer: ...


@dataclass(frozen=True, slots=True)
class DatabaseSource:
    store: Store

    def runs(self, limit: int) -> RunsAnswer:
        found, following = self.store.reader.runs(limit=limit)
        return RunsAnswer([run_line(summary) for summary in found], following)

    def findings(self, run: str) -> FindingsAnswer:
        self.store.reader.latest(RunId(run))
        return FindingsAnswer(self.store.reader.findings(RunId(run)), None)


@dataclass(frozen=True, slots=True)
class ServerSource:
    """A server at ``url``, an address such as "http://127.0.0.1:8765" with or without a path.

    ``timeout_s``: how long an answer may take.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    timeout_s: float = TIMEOUT_S

    def runs(self, limit: int) -> RunsAnswer:
        return self.get(f"/api/runs?limit={limit}", RunsAnswer)

    def findings(self, run: str) -> FindingsAnswer:
        return self.get(f"/api/runs/{quote(run, safe='')}/findings", FindingsAnswer)

    def get(self, path: str, shape: type[Answer]) -> Answer:
        """What it answers.

        Raises:
            UnavailableError: if it does not.
            ServerError: if it says that something is wrong, or does not answer like a server of ours.
        """
        return self._decoded(self._fetched("GET", path), shape)

    def post(self, path: str, body: object, shape: type[Answer]) -> Answer:
        """The same, asked with ``body`` as JSON."""
        return self._decoded(self._fetched("POST", path, msgspec.json.encode(body)), shape)

    def text(self, path: str) -> str:
        """The same as text."""
        return self._fetched("GET", path).decode()

    def _decoded(self, body: bytes, shape: type[Answer]) -> Answer:
        try:
            return msgspec.json.decode(body, type=shape)
        except msgspec.DecodeError as error:
            raise ServerError(f"{self.url} does not answer like a Scalescope server: {error}") from error

    def _fetched(self, method: str, path: str, body: bytes | None = None) -> bytes:
        try:
            status, answer = self._fetch(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(f"no answer from {self.url}: {error}") from error
        if status >= http.client.BAD_REQUEST:
            raise ServerError(self._decoded(answer, ErrorAnswer).error.message)
        return answer

    def _fetch(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.netloc, timeout=self.timeout_s)
        try:
            headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
            headers |= {} if body is None else {"content-type": "application/json"}
            connection.request(method, parts.path.rstrip("/") + path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def runs_table(runs: Sequence[RunLine]) -> str:
    """One line a run, the newest first."""
    head = ("RUN", "PROJECT", "NAME", "STATE", "ATTEMPTED", "APPLIED", "SKIPPED", "SCALE", "WORST")
    return table(
        head,
        [
            (
                run.id,
                run.project,
                run.name,
                run.state,
                str(run.attempted),
                str(run.applied),
                str(run.skipped),
                scale_text(run.scale) if isinstance(run.scale, float | int) else run.scale or "-",
                run.worst or "-",
            )
            for run in runs
        ],
    )


def findings_text(findings: Sequence[FindingRow]) -> str:
    """A paragraph a finding: what, where, and what to do."""
    return "\n\n".join(_finding_text(finding) for finding in findings)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, in printable text."""
    cells = [[printable(cell)[:MAX_CELL] for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


def _finding_text(finding: FindingRow) -> str:
    where = f"steps {finding.first_step} to {'now' if finding.last_step is None else finding.last_step}"
    lines = [f"{finding.severity.upper()} {finding.code} ({where})", f"  {finding.sentence}", f"  {finding.advice}"]
    return "\n".join(printable(line) for line in lines if line.strip())


def printable(text: str) -> str:
    """``text`` as a terminal may show it, whoever wrote it."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)
