"""One message for a service of apprise: as much of it as the service takes, for each of its targets by itself.

An address may hold several targets (chats, phones, mailboxes), which apprise tells one after the other, and says of all
together whether they have it. Told one by one, those that have it need not be told again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, Protocol

from scalescope_server.delivery.messages import cut, fitted
from scalescope_server.store.digests import digest_of

if TYPE_CHECKING:
    from apprise import NotifyBase

Kind = Literal["info", "success", "warning", "failure"]

# Where services of apprise keep whom they tell.
_NAMES = ("targets", "channels", "channel_ids", "rooms", "users", "topics", "groups")
# A title that goes into the text has so much of it at most.
_TITLES_PART = 3


class Told(Protocol):
    """What is told. ``reached``: the targets that have it already."""

    @property
    def title(self) -> str: ...
    @property
    def lines(self) -> tuple[str, ...]: ...
    @property
    def link(self) -> str | None: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def reached(self) -> tuple[str, ...]: ...


def tell_each(service: NotifyBase, told: Told, reached: Callable[[str], None]) -> bool:
    """Whether all targets have it. ``reached``: hears of each that has it now, if there are several."""
    from apprise.common import OverflowMode

    # What is too long for one message would be several, and is never refused by the service.
    service.overflow_mode = OverflowMode.SPLIT
    longest = service.title_maxlen if service.title_maxlen > 0 else service.body_maxlen // _TITLES_PART
    title = cut(told.title, longest)
    text = fitted(told.lines, told.link, lambda text: _is_one(service, title, text, told.kind))
    everybody = True
    for digest in _one_by_one(service):
        if digest in told.reached:
            continue
        if not _send(service, title, text, told.kind):
            everybody = False
        elif digest is not None:
            reached(digest)
    return everybody


def _send(service: NotifyBase, title: str, text: str, kind: Kind) -> bool:
    from apprise import Apprise, NotifyFormat, NotifyType

    sent = Apprise(service).notify(text, title=title, notify_type=NotifyType(kind), body_format=NotifyFormat.TEXT)
    return bool(sent)


def _is_one(service: NotifyBase, title: str, text: str, kind: Kind) -> bool:
    """Whether the service would send ``text`` in one piece, in the form that it gives it: tried without sending."""
    pieces: list[dict[str, object]] = []

    def count(**piece: object) -> bool:
        pieces.append(piece)
        return True

    vars(service)["send"] = count
    try:
        _send(service, title, text, kind)
    finally:
        del vars(service)["send"]
    return len(pieces) == 1


def _one_by_one(service: NotifyBase) -> Iterator[str | None]:
    """A digest of each target, to which ``service`` is limited then; None alone where it has one, or is not to be."""
    found = {name: vars(service)[name] for name in _NAMES if isinstance(vars(service).get(name), list | tuple | set)}
    several = [(name, target) for name, targets in found.items() for target in targets]
    whole = len(service)
    if several:
        _limit(service, found, *several[0])
    # Some tell all of them with one request, and take no part of it.
    if len(several) < 2 or len(service) * len(several) != whole:
        vars(service).update(found)
        yield None
        return
    for name, target in several:
        _limit(service, found, name, target)
        yield digest_of((name, str(target)))


def _limit(service: NotifyBase, found: Mapping[str, list[object]], name: str, target: object) -> None:
    vars(service).update({other: type(targets)([target] if other == name else []) for other, targets in found.items()})
