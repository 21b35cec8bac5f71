"""Messages by apprise: Slack, Discord, Teams, e-mail and others, each sent by a process of its own.

A process may be ended when its time is over, has nothing of the server's environment (no proxies, no ``.netrc``), and
can be held to checked addresses whatever service it speaks to (see ``gate``).
"""

from __future__ import annotations

import asyncio
import os
import re
import site
import sys
from collections.abc import Sequence

import msgspec

from scalescope_server.delivery.addresses import Network
from scalescope_server.delivery.apprise_program import Answer, Job
from scalescope_server.delivery.apprise_targets import Kind
from scalescope_server.delivery.messages import Message, lines_of
from scalescope_server.delivery.outcome import DELIVERED, Outcome

PROGRAM = ("-P", "-s", "-m", "scalescope_server.delivery.apprise_program")
WITHIN_S = 15.0
# Whom to trust, where that is not the usual; and what Windows cannot do without.
KEPT = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "SYSTEMROOT")
# No folder, so nothing of the user's is found in it.
NOWHERE = os.path.join(os.path.abspath(os.sep), "nonexistent")  # noqa: PTH100, PTH118 - as text, of no file

_KINDS: dict[str, Kind] = {"critical": "failure", "warning": "warning", "info": "info"}


async def tell(
    url: str,
    message: Message,
    *,
    allowed: Sequence[Network],
    reached: frozenset[str] = frozenset(),
    within_s: float = WITHIN_S,
) -> Outcome:
    """Send ``message`` to the service at ``url``, there to all targets but those that are ``reached`` already."""
    over = all(told.happened == "resolved" for told in message.alerts)
    job = Job(
        url=url,
        title=harmless(message.title),
        lines=tuple(map(harmless, lines_of(message.alerts))),
        link=message.url,
        kind="success" if over else _KINDS[message.severity],
        allowed=tuple(str(network) for network in allowed),
        reached=tuple(sorted(reached)),
    )
    said: list[bytes] = []
    try:
        await _ask(job, said, within_s)
        answer = msgspec.json.decode(said.pop() if said else b"", type=Answer)
    except TimeoutError:
        outcome = Outcome(f"the service did not take it within {within_s:g} s")
    except (OSError, msgspec.DecodeError):
        outcome = Outcome("apprise does not run: see that pip install 'scalescope[server]' has installed it")
    else:
        outcome = _judge(answer)
    return outcome if outcome.error is None else msgspec.structs.replace(outcome, reached=_digests(said))


def _judge(answer: Answer) -> Outcome:
    if answer.sent:
        return DELIVERED
    if answer.refused is not None:
        why = f"nothing is sent there, since {answer.refused}"
        hint = "if it should be, add it to allow_targets in the server's settings file"
        return Outcome(f"{why}: {hint}", final=answer.final)
    if not answer.understood:
        return Outcome(f"apprise does not understand the address: {answer.said}", final=True)
    return Outcome(f"the service did not take it: {answer.said or 'it does not say why'}")


def harmless(text: str) -> str:
    """``text`` without what chats take for a call of everybody, or of somebody ("@channel", "<!here>")."""
    # A mark of no width after it: read as it was, and no mention any more.
    return text.replace("@", "@\u200b").replace("<!", "<\u200b!").replace("<#", "<\u200b#")


async def _ask(job: Job, said: list[bytes], within_s: float) -> None:
    """Let the program do ``job``; ``said`` gets its lines as they come, also those of one that is ended.

    Raises :class:`TimeoutError`.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *PROGRAM,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=_environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(within_s):
            process.stdin.write(msgspec.json.encode(job))
            process.stdin.close()
            while line := await process.stdout.readline():
                said.append(line)
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _digests(said: Sequence[bytes]) -> frozenset[str]:
    """Whom the program has reached, of its whole lines."""
    return frozenset(line.decode().strip() for line in said if re.fullmatch(rb"[0-9a-f]+\n", line))


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    # Where the server's own packages are: those of its user would not be found without a home.
    packages = os.pathsep.join([*site.getsitepackages(), site.getusersitepackages()])
    return {**kept, "PYTHONPATH": packages, "HOME": NOWHERE, "USERPROFILE": NOWHERE, "LANG": "C.UTF-8"}
