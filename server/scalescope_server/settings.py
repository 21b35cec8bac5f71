"""The server's settings: one frozen object, built in main from arguments and the environment.

Arguments win over the environment: SCALESCOPE_DATABASE, SCALESCOPE_TOKEN, SCALESCOPE_PRUNE_OLDER_THAN,
SCALESCOPE_PUBLIC_URL, SCALESCOPE_SETTINGS (a file, see ``delivery.settings_file``) and SCALESCOPE_ALLOW_HOST (names
separated by commas). They win over the file.

The default database is one place for every command: ``scalescope/scalescope.db`` under ``$XDG_DATA_HOME`` or
``~/.local/share`` (macOS: ``~/Library/Application Support``, Windows: ``%LOCALAPPDATA%``).
"""

from __future__ import annotations

import ipaddress
import math
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scalescope_server.ages import parse_age
from scalescope_server.delivery.settings_file import Delivery, checked_url, read_settings_file
from scalescope_server.errors import SettingError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8765
MAX_PORT = 65_535
DEFAULT_SILENT_AFTER_S = 60.0
# The hook gives a sign of life every 5 s.
MIN_SILENT_AFTER_S = 10.0
# 192 bits: not to be guessed, and short enough to read over the telephone.
TOKEN_BYTES = 24

WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, never bound to


@dataclass(frozen=True, slots=True)
class Settings:
    """How one server runs.

    Attributes:
        host, port: where it listens; port 0 lets the system choose.
        database: a path, ``sqlite:///PATH`` or ``postgresql://USER:PASSWORD@HOST/NAME``. Kept out of the repr, too.
        root_path: the prefix under which a proxy publishes the server, "" or "/prefix".
        token: what callers must show; None is only possible on loopback. Kept out of the repr, so out of logs.
        allow_hosts: names besides the loopback ones and ``host`` that a Host header may hold.
        allow_origins: origins ("https://name:port") besides the server's own whose pages may write.
        silent_after_s: seconds without data or heartbeat after which a run counts as silent.
        hello_within_s: seconds a trainer's connection may stay open without a Hello.
        quiet_after_s: seconds without any frame after which a trainer's connection is closed.
        beat_every_s: seconds between two beats to a page.
        readers: threads that read the database for answers.
        prune_older_than_s: seconds after which only what is around events is kept exactly; None keeps everything.
        delivery: how alerts leave the server.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    database: str = field(default="", repr=False)
    root_path: str = ""
    token: str | None = field(default=None, repr=False)
    allow_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    silent_after_s: float = DEFAULT_SILENT_AFTER_S
    hello_within_s: float = 10.0
    quiet_after_s: float = 120.0
    beat_every_s: float = 5.0
    readers: int = 4
    prune_older_than_s: float | None = None
    delivery: Delivery = field(default_factory=Delivery)

    @property
    def public_url(self) -> str | None:
        """Where people reach it, without a slash at its end; None where that is not known (any free port)."""
        if self.delivery.public_url or self.port == 0:
            return self.delivery.public_url or None
        return f"http://{bracketed(DEFAULT_HOST if self.host in WILDCARDS else self.host)}:{self.port}{self.root_path}"


def read_settings(
    environ: Mapping[str, str],
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    database: str | None = None,
    root_path: str = "",
    token: str | None = None,
    allow_hosts: Sequence[str] = (),
    allow_origins: Sequence[str] = (),
    silent_after_s: float | None = None,
    prune_older_than: str | None = None,
    settings_file: str | None = None,
    public_url: str | None = None,
) -> Settings:
    """The settings of a server that is about to listen.

    A host that is not loopback gets a token of its own when none was given: read it from the answer.

    Raises:
        SettingError: for a port, root path, token, time, address or file that cannot be used.
    """
    if not 0 <= port <= MAX_PORT:
        raise SettingError(f"expected a port from 0 to {MAX_PORT}, got {port}", field="port")
    chosen = token if token is not None else environ.get("SCALESCOPE_TOKEN") or None
    age = prune_older_than or environ.get("SCALESCOPE_PRUNE_OLDER_THAN")
    named = (*allow_hosts, *environ.get("SCALESCOPE_ALLOW_HOST", "").split(","))
    return Settings(
        host=host,
        port=port,
        database=database_of(environ, database),
        root_path=_checked_root_path(root_path),
        token=_checked_token(chosen, host),
        allow_hosts=tuple(name.strip().lower() for name in named if name.strip()),
        allow_origins=tuple(origin.rstrip("/").lower() for origin in allow_origins),
        silent_after_s=DEFAULT_SILENT_AFTER_S if silent_after_s is None else _checked_seconds(silent_after_s),
        prune_older_than_s=parse_age(age, field="prune_older_than") if age else None,
        delivery=_delivery(
            settings_file or environ.get("SCALESCOPE_SETTINGS"), public_url or environ.get("SCALESCOPE_PUBLIC_URL")
        ),
    )


def database_of(environ: Mapping[str, str], database: str | None = None) -> str:
    """The database to use: the argument, else SCALESCOPE_DATABASE, else the default place."""
    return database or environ.get("SCALESCOPE_DATABASE") or str(default_database(environ))


def default_database(environ: Mapping[str, str], platform: str = sys.platform) -> Path:
    """The SQLite file that serve, demo and every reading command use unless told otherwise."""
    home = Path(environ.get("HOME") or Path.home())
    if platform == "win32":
        folder = Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform == "darwin":
        folder = home / "Library" / "Application Support"
    else:
        folder = Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    return folder / "scalescope" / "scalescope.db"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def bracketed(host: str) -> str:
    """``host`` as addresses hold it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _delivery(file: str | None, public_url: str | None) -> Delivery:
    found = read_settings_file(Path(file)) if file else Delivery()
    return replace(found, public_url=checked_url(public_url)) if public_url else found


def _checked_root_path(root_path: str) -> str:
    plain = root_path.rstrip("/")
    if plain and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", plain):
        raise SettingError(f'expected a root path such as "/scalescope", got {root_path!r}', field="root_path")
    return plain


def _checked_seconds(silent_after_s: float) -> float:
    if not MIN_SILENT_AFTER_S <= silent_after_s < math.inf:
        raise SettingError(
            f"expected at least {MIN_SILENT_AFTER_S:g} seconds, got {silent_after_s:g}", field="silent_after"
        )
    return silent_after_s


def _checked_token(token: str | None, host: str) -> str | None:
    if token is None:
        return None if is_loopback(host) else secrets.token_urlsafe(TOKEN_BYTES)
    # It travels in a header and in a URL: anything else would only fail later, and less clearly.
    if not re.fullmatch(r"[\x21-\x7e]{1,512}", token):
        raise SettingError("expected a token of 1 to 512 visible ASCII characters", field="token")
    return token
