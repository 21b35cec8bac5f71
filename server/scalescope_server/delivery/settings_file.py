"""The settings file of a server, in TOML: what is too much for an option, and what must never come by the API.

.. code-block:: toml

    public_url = "https://scalescope.example.com"    # where links in messages lead
    allow_targets = ["10.1.0.0/16"]                  # networks that channels may reach though they are not public

    [commands.siren]                                 # a channel called "siren"
    arguments = ["/usr/local/bin/siren", "--loud"]
    within_s = 10
"""

from __future__ import annotations

import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from scalescope_server.delivery.addresses import Network, parse_network
from scalescope_server.delivery.channels import NAME
from scalescope_server.delivery.command import DEFAULT_WITHIN_S, LONGEST_WITHIN_S, Command
from scalescope_server.errors import SettingError
from scalescope_server.store.outbox import BROWSER


class _Command(Struct, forbid_unknown_fields=True):
    arguments: list[str]
    within_s: float = DEFAULT_WITHIN_S


class _File(Struct, forbid_unknown_fields=True):
    public_url: str = ""
    allow_targets: list[str] = []
    commands: dict[str, _Command] = {}


@dataclass(frozen=True, slots=True)
class Delivery:
    """How alerts leave the server. ``public_url``: without a slash at its end, "" where it is not told."""

    public_url: str = ""
    allow_targets: tuple[Network, ...] = ()
    commands: dict[str, Command] = field(default_factory=dict)


def read_settings_file(path: Path) -> Delivery:
    """Raises :class:`SettingError`, with what was expected."""
    _check_owner(path)
    try:
        found = msgspec.convert(tomllib.loads(path.read_text()), _File)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise _wrong(path, error) from error
    return Delivery(
        checked_url(found.public_url),
        tuple(_network(path, text) for text in found.allow_targets),
        {name: _command(path, name, told) for name, told in found.commands.items()},
    )


def checked_url(url: str) -> str:
    """The server's public address without a slash at its end. Raises :class:`SettingError`."""
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment):
        raise SettingError(
            f"expected an address such as https://scalescope.example.com, got {url!r}", field="public_url"
        )
    return url.rstrip("/")


def _check_owner(path: Path) -> None:
    """It names programs to be started, so nobody but its owner may write it."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise _wrong(path, error) from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SettingError(f"others may write {path}: run chmod go-w {path}", field="settings")


def _network(path: Path, text: str) -> Network:
    try:
        return parse_network(text)
    except ValueError as error:
        raise _wrong(path, f"allow_targets: {error}") from error


def _command(path: Path, name: str, told: _Command) -> Command:
    if NAME.fullmatch(name) is None or name == BROWSER:
        raise _wrong(path, f'commands.{name}: expected up to 64 letters, digits, blanks, dots, dashes, not "browser"')
    if not told.arguments or not Path(told.arguments[0]).is_absolute():
        raise _wrong(path, f"commands.{name}: expected arguments that begin with the whole path of a program")
    if not 0 < told.within_s <= LONGEST_WITHIN_S:
        raise _wrong(path, f"commands.{name}: expected within_s of more than 0 and at most {LONGEST_WITHIN_S:g}")
    return Command(tuple(told.arguments), told.within_s)


def _wrong(path: Path, why: object) -> SettingError:
    return SettingError(f"the settings file {path} cannot be used: {why}", field="settings")
