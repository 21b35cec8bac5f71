"""Where the hook sends, how often it samples and where it keeps what it could not send.

An argument of ``watch`` wins over the environment, which wins over the default. A bad argument is the
programmer's and raises at once; a bad environment variable is the operator's, met when a training of days is
about to start, so it is told in one log line and the default is used.
"""

from __future__ import annotations

import logging
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from scalescope.errors import SettingError

DEFAULT_URL = "http://127.0.0.1:8765"
DEFAULT_EVERY = 10
# No training has more updates; the wire's whole numbers have 64 bits.
MAX_EVERY = 10**9

logger = logging.getLogger("scalescope")

Value = TypeVar("Value")

_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """The hook's settings, fixed when it starts.

    Attributes:
        url: the server, without a trailing slash; may have a path when it is served below one.
        token: sent as ``Authorization: Bearer``; kept out of the repr, so out of logs.
        run: the run to join or resume; None gives it a new id.
        every: updates from one periodic sample to the next.
        adapts: whether that is the fewest, and a budget decides: nobody has chosen it.
        spool: folder for data that could not be delivered.
        off: watch nothing.
    """

    url: str
    token: str | None = field(repr=False)
    run: str | None
    every: int
    adapts: bool
    spool: Path
    off: bool


def read_settings(
    environ: Mapping[str, str],
    *,
    url: str | None = None,
    token: str | None = None,
    run: str | None = None,
    every: int | None = None,
) -> Settings:
    """The settings in force.

    Raises:
        SettingError: if an argument cannot be used. The environment never raises.
    """
    chosen = _chosen("every", every, environ, "SCALESCOPE_EVERY", _every, None)
    return Settings(
        url=_chosen("url", url, environ, "SCALESCOPE_URL", parse_url, DEFAULT_URL),
        token=_chosen("token", token, environ, "SCALESCOPE_TOKEN", _token, None),
        run=_chosen("run", run, environ, "SCALESCOPE_RUN", _run, None),
        every=DEFAULT_EVERY if chosen is None else chosen,
        adapts=chosen is None,
        spool=_chosen("spool", None, environ, "SCALESCOPE_SPOOL", _folder, state_folder(environ) / "spool"),
        off=_chosen("off", None, environ, "SCALESCOPE_OFF", _switch, default=False),
    )


def state_folder(environ: Mapping[str, str]) -> Path:
    """Where Scalescope keeps what outlives a process: XDG_STATE_HOME, or the platform's own place."""
    if sys.platform == "win32" and "LOCALAPPDATA" in environ:
        return Path(environ["LOCALAPPDATA"]) / "scalescope"
    state = Path(environ.get("XDG_STATE_HOME", ""))
    if state.is_absolute():
        return state / "scalescope"
    try:
        return Path.home() / ".local" / "state" / "scalescope"
    except RuntimeError:  # a container's user without a home
        return Path(tempfile.gettempdir()) / "scalescope"


def parse_url(name: str, value: object) -> str:
    """The server's address in the one form that is compared and stored. Raises :class:`SettingError`."""
    expected = 'the address of a server, such as "http://127.0.0.1:8765"'
    text = value.strip().rstrip("/") if isinstance(value, str) else ""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise SettingError(name, expected=expected, got=value) from error
    plain = re.fullmatch(r"[\x21-\x7e]+", text) and not (parts.query or parts.fragment or "@" in parts.netloc)
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not plain:
        raise SettingError(name, expected=expected, got=value)
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path}"


def ingest_url(url: str) -> str:
    """The WebSocket address that trainers send to on the server at ``url``."""
    return "ws" + url.removeprefix("http") + "/api/ingest"


def _chosen(
    name: str,
    argument: object,
    environ: Mapping[str, str],
    variable: str,
    parse: Callable[[str, object], Value],
    default: Value,
) -> Value:
    if argument is not None:
        return parse(name, argument)
    # An empty variable is how a shell script says "not set".
    if not environ.get(variable):
        return default
    try:
        return parse(variable, environ[variable])
    except SettingError as error:
        logger.warning("scalescope: %s; the default is used", error)
        return default


def _token(name: str, value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[\x21-\x7e]{1,512}", value):
        # The token itself stays out of the message.
        raise SettingError(name, expected="a token of 1 to 512 visible ASCII characters", got="something else")
    return value


def _run(name: str, value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value):
        raise SettingError(name, expected="a run id of 1 to 64 letters, digits, '.', '_' or '-'", got=value)
    return value


def _every(name: str, value: object) -> int:
    try:
        every = int(value) if isinstance(value, (int, str)) else 0
    except ValueError:
        every = 0
    if not 1 <= every <= MAX_EVERY:
        raise SettingError(name, expected=f"a whole number of updates from 1 to {MAX_EVERY}", got=value)
    return every


def _folder(name: str, value: object) -> Path:
    try:
        folder = Path(str(value)).expanduser()
    except RuntimeError as error:
        raise SettingError(name, expected="a folder", got=value) from error
    return folder.absolute()


def _switch(name: str, value: object) -> bool:
    word = str(value).strip().lower()
    if word not in _WORDS:
        raise SettingError(name, expected='"1" to watch nothing or "0" to watch', got=value)
    return _WORDS[word]
