"""What other servers do: told apart by looking, and passed on to those whom it concerns."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import msgspec
from scalescope_server.errors import UnavailableError
from scalescope_server.neighbours import Neighbours, changes
from scalescope_server.store.errors import Unavailable
from scalescope_server.store.marks import Mark
from scalescope_server.store.records import RunId
from scalescope_server.store.telegrams import Alone, Heard, Telegram, merged

from tests.serving import DEADLINE_S

A, B = RunId("a"), RunId("b")
MARK = Mark(seen_at=1.0, attempted=1, length=1, ending=None, name="a", judged=1)


def test_a_run_that_moved_or_is_new_or_was_judged_has_changed() -> None:
    later, judged = msgspec.structs.replace(MARK, seen_at=2.0), msgspec.structs.replace(MARK, judged=2)
    assert changes({A: MARK}, {A: MARK}, ()) == []
    assert changes({A: MARK}, {A: later}, ()) == [Telegram(A, 2.0)]
    assert changes({A: MARK}, {A: judged, B: MARK}, ()) == [Telegram(A, 1.0), Telegram(B, 1.0)]


def test_a_run_is_gone_only_if_it_was_looked_for() -> None:
    assert changes({A: MARK, B: MARK}, {}, {B}) == [Telegram(B, gone=True)]


def test_of_two_telegrams_nothing_is_lost() -> None:
    first = merged(None, Telegram(A, 5.0))
    assert merged(merged(first, Telegram(A)), Telegram(A, 4.0)) == Telegram(A, 5.0)
    assert merged(first, Telegram(A, gone=True)) == Telegram(A, 5.0, gone=True)


class Line(Alone):
    """A telegraph that says what a test lets it."""

    def __init__(self) -> None:
        self.ended = False

    def start(self, heard: Heard) -> None:
        self.say = heard

    def stop(self) -> None:
        self.ended = True


@dataclass
class Room:
    """Listens and judges."""

    told: asyncio.Queue[Telegram] = field(default_factory=asyncio.Queue)
    judged: list[RunId] = field(default_factory=list)
    telling: set[RunId] = field(default_factory=set)

    def heard(self, telegram: Telegram) -> None:
        self.told.put_nowait(telegram)

    def followed(self) -> AbstractSet[RunId]:
        return {A}

    def shown(self) -> AbstractSet[RunId]:
        return self.telling

    def hear(self, run: RunId) -> None:
        self.judged.append(run)


async def test_what_is_told_and_what_is_only_seen_are_passed_on_while_the_database_comes_and_goes() -> None:
    looks: list[Mapping[RunId, Mark] | Exception] = [
        {A: MARK},
        Unavailable("away"),
        UnavailableError("too many"),
        {A: msgspec.structs.replace(MARK, seen_at=2.0)},
        {A: msgspec.structs.replace(MARK, seen_at=2.0, attempted=2)},
        {},
    ]

    async def marks(runs: Collection[RunId]) -> Mapping[RunId, Mark]:
        found = looks.pop(0) if looks else {}
        if isinstance(found, Exception):
            raise found
        return found

    room, line = Room(), Line()
    working = asyncio.create_task(Neighbours(line, room, room, marks, look_every_s=0.01).run())
    async with asyncio.timeout(DEADLINE_S):
        assert [await room.told.get() for _ in range(2)] == [Telegram(A, 2.0)] * 2
        assert await room.told.get() == Telegram(A, gone=True)
        assert room.judged == [A]
        await asyncio.to_thread(line.say, [Telegram(B, 3.0)])
        assert await room.told.get() == Telegram(B, 3.0)
    assert room.judged == [A, B]
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert line.ended


async def test_a_run_that_was_told_of_and_never_seen_is_missed_all_the_same() -> None:
    async def marks(runs: Collection[RunId]) -> Mapping[RunId, Mark]:
        return {}

    room = Room(telling={B})
    working = asyncio.create_task(Neighbours(Line(), room, room, marks, look_every_s=0.01).run())
    async with asyncio.timeout(DEADLINE_S):
        assert await room.told.get() == Telegram(B, gone=True)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
