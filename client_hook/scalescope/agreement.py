"""How several ranks come to be one run: rank 0 says which, the others read it, and no training waits for it.

It is said in the key-value store through which the ranks have met, never by a collective: in one a rank that is not
watched takes no part. The store is asked in a thread of its own, since an answer may never come.

The n-th ``watch`` of a rank belongs with the n-th of rank 0. Each rank also counts, in the store, how often it has
come to its n-th: where all are started again on the store of their first start, nobody hears what was said then.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Protocol, TypeVar

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


# The store once the ranks have met, None before. Raises RuntimeError where they meet without one.
FindStore = Callable[[], Store | None]


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

    def __init__(self, number: int, find_store: FindStore, *, patience_s: float = PATIENCE_S) -> None:
        self._number = number
        self._find_store = find_store
        self._patience_s = patience_s
        self._timeout: asyncio.Timeout | None = None
        self._over = threading.Event()

    async def greeting(self, proposed: Hello) -> Hello:
        """The greeting to use: on rank 0 the proposed one, at once; on others that of rank 0's run.

        Where that is not to be had in time it is the proposed one as well, with a log line.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Hello] = loop.create_future()
        threading.Thread(
            target=self._seek, args=(proposed, loop, future), name="scalescope-agreement", daemon=True
        ).start()
        if proposed.rank == 0:
            future.add_done_callback(_tell_if_unheard)
            loop.call_later(self._patience_s, self._over.set)
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
        return proposed

    def hasten(self) -> None:
        """The training is over: wait only a moment more. In the loop's thread."""
        self._patience_s = min(self._patience_s, LAST_PATIENCE_S)
        timeout = self._timeout
        if timeout is not None and not timeout.expired() and (end := timeout.when()) is not None:
            timeout.reschedule(min(end, asyncio.get_running_loop().time() + LAST_PATIENCE_S))

    def _seek(self, proposed: Hello, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Hello]) -> None:
        # RuntimeError: the loop has ended meanwhile, and nobody asks any more.
        with suppress(RuntimeError):
            try:
                greeting = self._agreed(proposed)
            except (RuntimeError, NotAgreedError) as error:
                reason = NotAgreedError(str(error).partition("\n")[0] or type(error).__name__)
                loop.call_soon_threadsafe(_answer, future, reason)
            else:
                loop.call_soon_threadsafe(_answer, future, greeting)

    def _agreed(self, proposed: Hello) -> Hello:
        store = self._awaited(self._find_store)
        key = f"scalescope/{self._number}"
        start = store.add(f"{key}/starts/{proposed.rank}", 1)
        key = f"{key}/{start}"
        if proposed.rank == 0:
            store.set(key, msgspec.json.encode(shared(proposed)).decode())
            return proposed
        return joined(proposed, self._awaited(lambda: store.get(key) if store.check([key]) else None))

    def _awaited(self, look: Callable[[], T | None]) -> T:
        pause_s = FIRST_LOOK_S
        while (found := look()) is None:
            if self._over.wait(pause_s):
                raise NotAgreedError("the ranks did not meet in time")
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


def _answer(future: asyncio.Future[Hello], answer: Hello | NotAgreedError) -> None:
    if future.done():
        return
    if isinstance(answer, Hello):
        future.set_result(answer)
    else:
        future.set_exception(answer)


def _tell(reason: str) -> None:
    logger.warning("scalescope: %s: this rank is recorded apart, as a segment of its own", reason)


def _tell_if_unheard(future: asyncio.Future[Hello]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        logger.warning("scalescope: the other ranks cannot be told which run this is: %s", error)
