"""Messages by apprise: Slack, Discord, Teams, e-mail and others, each sent by a process of its own.

A process may be ended when its time is over, has nothing of the server's environment (no proxies, no ``.netrc``), and
can be held to checked addresses whatever service it speaks to (see ``gate``).
"""

from __future__ import annotations

import asyncio
import os
import site
import sys
from collections.abc import Sequence

import msgspec

from scalescope_server.delivery.addresses import Network
from scalescope_server.delivery.apprise_program import Answer, Job, Kind
from scalescope_server.delivery.messages import Message
from scalescope_server.delivery.outcome import DELIVERED, Outcome

PROGRAM = ("-P", "-s", "-m", "scalescope_server.delivery.apprise_program")
WITHIN_S = 15.0
# Whom to trust, where that is not the usual; and what Windows cannot do without.
KEPT = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "SYSTEMROOT")
# No folder, so nothing of the user's is found in it.
NOWHERE = os.path.join(os.path.abspath(os.sep), "nonexistent")  # noqa: PTH100, PTH118 - as text, of no file

_KINDS: dict[str, Kind] = {"critical": "failure", "warning": "warning", "info": "info"}


async def tell(url: str, message: Message, *, allowed: Sequence[Network], within_s: float = WITHIN_S) -> Outcome:
    """Send ``message`` to the service at ``url``."""
    over = all(told.happened == "resolved" for told in message.alerts)
    job = Job(
        url=url,
        title=harmless(message.title),
        text=harmless(message.text),
        kind="success" if over else _KINDS[message.severity],
        allowed=tuple(str(network) for network in allowed),
    )
    try:
        answer = await _ask(job, within_s)
    except TimeoutError:
        return Outcome(f"the service did not take it within {within_s:g} s")
    except (OSError, msgspec.DecodeError):
        return Outcome("apprise does not run: see that pip install 'scalescope[server]' has installed it")
    if answer.sent:
        return DELIVERED
    if answer.refused is not None:
        why = f"nothing is sent there, since {answer.refused}"
        return Outcome(f"{why}: if it should be, add it to allow_targets in the server's settings file", final=True)
    if not answer.understood:
        return Outcome(f"apprise does not understand the address: {answer.said}", final=True)
    return Outcome(f"the service did not take it: {answer.said or 'it does not say why'}")


def harmless(text: str) -> str:
    """``text`` without what chats take for a call of everybody, or of somebody ("@channel", "<!here>")."""
    # A mark of no width after it: read as it was, and no mention any more.
    return text.replace("@", "@\u200b").replace("<!", "<\u200b!").replace("<#", "<\u200b#")


async def _ask(job: Job, within_s: float) -> Answer:
    """Let the program do ``job``. Raises :class:`TimeoutError`, and :class:`msgspec.DecodeError` where it broke."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *PROGRAM,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=_environment(),
    )
    try:
        async with asyncio.timeout(within_s):
            told, _ = await process.communicate(msgspec.json.encode(job))
        return msgspec.json.decode(told, type=Answer)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    # Where the server's own packages are: those of its user would not be found without a home.
    packages = os.pathsep.join([*site.getsitepackages(), site.getusersitepackages()])
    return {**kept, "PYTHONPATH": packages, "HOME": NOWHERE, "USERPROFILE": NOWHERE, "LANG": "C.UTF-8"}
