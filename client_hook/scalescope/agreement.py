"""How several ranks come to be one run: they ask, rank 0 says which, and no training waits for it.

It is said in the key-value store through which the ranks have met, never by a collective: in one a rank that is not
watched takes no part. The store is asked in a thread of its own, since an answer may never come.

The n-th ``watch`` of a rank belongs with the n-th of rank 0. A launcher may start all ranks again on the store of
their first start, so what stands there may be of the dead: each rank asks with a number that nobody else has, and
only who lives answers to that.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Meta

from scalescope.wire import Hello, Id, Name, Text

# How long a rank waits for rank 0, which may have a data set to prepare first. Its records wait in memory meanwhile.
PATIENCE_S = 60.0
# And how long once its training is over.
LAST_PATIENCE_S = 1.0
# From one look to the next: a thousand ranks may be looking.
FIRST_LOOK_S = 0.01
LOOK_GROWTH = 1.5
SLOWEST_LOOK_S = 1.0

logger = logging.getLogger("scalescope")

T = TypeVar("T")


class Store(Protocol):
    """What is used of a store of ``torch.distributed``. Each may raise RuntimeError; none waits for a key."""

    def add(self, key: str, amount: int, /) -> int: ...

    def set(self, key: str, value: str, /) -> object: ...

    def check(self, keys: list[str], /) -> bool: ...

    def get(self, key: str, /) -> bytes: ...


class Meeting(NamedTuple):
    """Whether the ranks are together now, and then their store; which raises RuntimeError where they have none."""

    lasts: Callable[[], bool]
    store: Callable[[], Store]


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What the greetings of all ranks have in common; the fields are those of :class:`~scalescope.wire.Hello`."""

    run: Id
    segment: Id
    started_at: float
    resumed: bool
    project: Name
    name: Name | None
    tags: Annotated[list[Name], Meta(max_length=64)]
    config: Text


class NotAgreedError(Exception):
    """Raised where a rank does not learn, or does not take, what rank 0 says; the text says why."""


class Agreement:
    """One rank's part in it, for its ``watch`` of this ``number``. Used by one event loop."""

    def __init__(self, number: int, meeting: Meeting, *, patience_s: float = PATIENCE_S) -> None:
        self._meeting = meeting
        self._patience_s = patience_s
        self._key = f"scalescope/{number}"
        # Called where there is no agreement, in the loop's thread.
        self.on_alone: Callable[[], None] | None = None
        self._timeout: asyncio.Timeout | None = None
        self._over = threading.Event()

    async def greeting(self, proposed: Hello) -> Hello:
        """The greeting to use: on rank 0 the proposed one, at once; on others that of rank 0's run.

        Where that is not to be had in time it is the proposed one as well, with a log line.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Hello] = loop.create_future()
        work, given = (self._say, (proposed,)) if proposed.rank == 0 else (self._ask, (proposed, loop, future))
        threading.Thread(target=work, args=given, name="scalescope-agreement", daemon=True).start()
        if proposed.rank == 0:
            return proposed
        try:
            async with asyncio.timeout(self._patience_s) as self._timeout:
                return await future
        except TimeoutError:
            _tell("rank 0 did not say in time which run it records")
        except NotAgreedError as error:
            _tell(str(error))
        finally:
            self._timeout = None
            self._over.set()
        if self.on_alone is not None:
            self.on_alone()
        return proposed

    def hasten(self) -> None:
        """The training is over: wait only a moment more. In the loop's thread."""
        self._patience_s = min(self._patience_s, LAST_PATIENCE_S)
        timeout = self._timeout
        if timeout is not None and (end := timeout.when()) is not None and not timeout.expired():
            timeout.reschedule(min(end, asyncio.get_running_loop().time() + LAST_PATIENCE_S))

    def end(self) -> None:
        """Nobody is told any more. From any thread."""
        self._over.set()

    def _say(self, hello: Hello) -> None:
        """Rank 0: answer whoever asks, until the end."""
        said = False
        try:
            store = self._awaited(self._met)
            store.set(f"{self._key}/said/{hello.segment}", msgspec.json.encode(shared(hello)).decode())
            said = True
            for ticket in itertools.count(1):
                asking = self._awaited(partial(self._read, store, f"{self._key}/ask/{ticket}"))
                store.set(f"{self._key}/answer/{asking.decode()}", hello.segment)
        except NotAgreedError:
            # The end.
            return
        except (RuntimeError, UnicodeDecodeError) as error:
            # A store that is gone later than that can be asked by nobody.
            if not said:
                logger.warning("scalescope: the other ranks cannot be told which run this is: %s", _first_line(error))

    def _ask(self, proposed: Hello, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Hello]) -> None:
        """Any other rank."""
        # RuntimeError: the loop has ended meanwhile, and nobody waits any more.
        with suppress(RuntimeError):
            try:
                greeting = joined(proposed, self._answer())
            except (RuntimeError, NotAgreedError) as error:
                loop.call_soon_threadsafe(_fail, future, NotAgreedError(_first_line(error)))
            else:
                loop.call_soon_threadsafe(_succeed, future, greeting)

    def _answer(self) -> bytes:
        store = self._awaited(self._met)
        mine = secrets.token_hex(8)
        ticket = store.add(f"{self._key}/asked", 1)
        store.set(f"{self._key}/ask/{ticket}", mine)
        segment = self._awaited(partial(self._read, store, f"{self._key}/answer/{mine}"))
        return store.get(f"{self._key}/said/{segment.decode()}")

    def _met(self) -> Store | None:
        return self._meeting.store() if self._meeting.lasts() else None

    def _read(self, store: Store, key: str) -> bytes | None:
        if not self._meeting.lasts():
            # To ask a store that went with it makes torch complain on the terminal.
            raise NotAgreedError("the process group was destroyed")
        return store.get(key) if store.check([key]) else None

    def _awaited(self, look: Callable[[], T | None]) -> T:
        pause_s = FIRST_LOOK_S
        while (found := look()) is None:
            if self._over.wait(pause_s):
                raise NotAgreedError("nobody waits for it any more")
            pause_s = min(pause_s * LOOK_GROWTH, SLOWEST_LOOK_S)
        return found


def shared(hello: Hello) -> Shared:
    """What rank 0, which greets with ``hello``, says to the others."""
    return Shared(**{name: getattr(hello, name) for name in Shared.__struct_fields__})


def joined(hello: Hello, said: bytes) -> Hello:
    """The greeting of a rank that would greet with ``hello``, after rank 0 ``said`` that.

    Raises:
        NotAgreedError: if this rank was given another run to go on with, or if that is nothing that rank 0 says.
    """
    try:
        of_rank_0 = msgspec.json.decode(said, type=Shared)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAgreedError(f"rank 0 has another version of scalescope: {error}") from error
    if hello.resumed and hello.run != of_rank_0.run:
        raise NotAgreedError(f"this rank was given run {hello.run}, rank 0 records run {of_rank_0.run}")
    return msgspec.structs.replace(hello, **msgspec.structs.asdict(of_rank_0))


def _succeed(future: asyncio.Future[Hello], greeting: Hello) -> None:
    if not future.done():
        future.set_result(greeting)


def _fail(future: asyncio.Future[Hello], error: NotAgreedError) -> None:
    if not future.done():
        future.set_exception(error)


def _first_line(error: Exception) -> str:
    """Torch adds a stack of C++."""
    return str(error).partition("\n")[0] or type(error).__name__


def _tell(reason: str) -> None:
    logger.warning("scalescope: %s: this rank is recorded apart, as a segment of its own", reason)
