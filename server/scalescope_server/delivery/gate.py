"""What a library may do in a process of its own: connect to checked addresses, and nothing else to anybody.

Apprise knows more than a hundred services, each with its own way to connect. Python tells an audit hook of every
connection, whoever makes it, with the address that it is made to: there is where it is checked, after the name was
resolved and after any redirect. A hook cannot be taken out again, so this is for a process that does one thing and
ends.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from scalescope_server.delivery.addresses import Network, refusal

_SENDS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_STARTS = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile"})
# Where programs and what belongs to them are, and nobody's secrets.
_PLACES = {sys.prefix, sys.base_prefix, *site.getsitepackages(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
_READABLE = tuple(str(Path(place).resolve()) + os.sep for place in {*_PLACES, "/usr/share/zoneinfo"} if place)
_HARMLESS = frozenset({os.devnull, "/etc/localtime"})
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class RefusedError(PermissionError):
    """The gate was closed. Libraries take it for a connection that failed, or a file that cannot be read."""


def close_gate(allowed: Sequence[Network], told: Callable[[str, bool], None]) -> None:
    """From now on this process is held to it.

    ``told``: hears why something was refused, and whether it was a connection to an address.
    """

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and _writes(arguments):
            # What libraries would like to keep for the next time: nobody has to know.
            raise RefusedError("files are not written")
        if (why := _refusal(event, arguments, allowed)) is not None:
            told(why, event in _SENDS)
            raise RefusedError(why)

    sys.addaudithook(hook)


def _refusal(event: str, arguments: tuple[object, ...], allowed: Sequence[Network]) -> str | None:
    if event in _SENDS:
        return _of_address(arguments[1], allowed)
    if event == "open":
        return _of_file(arguments[0])
    if event in _STARTS:
        return "programs are not started"
    return None


def _of_address(address: object, allowed: Sequence[Network]) -> str | None:
    # A datagram on a connected socket has none: the connection was looked at.
    if address is None:
        return None
    if not (isinstance(address, tuple) and address and isinstance(address[0], str)):
        return "only the internet is spoken to"
    return refusal(address[0], allowed)


def _writes(arguments: tuple[object, ...]) -> bool:
    flags = arguments[2]
    return not isinstance(arguments[0], int) and isinstance(flags, int) and bool(flags & _WRITES)


def _of_file(path: object) -> str | None:
    if isinstance(path, int):
        return None
    if not isinstance(path, str | bytes | os.PathLike):
        return "files are not read"
    # What is there may be a link to elsewhere.
    named, real = os.fsdecode(path), os.path.realpath(os.fsdecode(path))
    return None if {named, real} & _HARMLESS or real.startswith(_READABLE) else "files are not read"
