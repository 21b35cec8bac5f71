"""Ranks agree on their run through a real store of torch, whatever that does; and nobody waits who need not."""

from __future__ import annotations

import asyncio
import operator
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from scalescope.agreement import Agreement, Meeting, NotAgreedError, Shared, joined, shared
from scalescope.wire import Hello
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, Store, TCPStore

from tests.small_server import DEADLINE_S, hello


def tcp(_: Path) -> Store:
    return TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)


# A connection of its own, as the hook uses it; torch has no type for it.
own: Callable[[Store], Store] = operator.methodcaller("clone")

STORES: dict[str, Callable[[Path], Store]] = {
    "tcp": tcp,
    "file": lambda folder: FileStore(str(folder / "store"), 2),
    "hash": lambda _: HashStore(),
    "prefix": lambda folder: PrefixStore("pg", tcp(folder)),
}


@pytest.fixture
def store() -> Store:
    return HashStore()


def proposal(rank: int, run: str = "", **changes: object) -> Hello:
    return msgspec.structs.replace(hello(run or f"run-{rank}", f"segment-{rank}", rank), **changes)


def meeting(store: Store) -> Meeting:
    return Meeting(lambda: True, lambda: own(store))


def agree(meeting: Meeting, *proposals: Hello, number: int = 1, patience_s: float = DEADLINE_S) -> list[Hello]:
    """The greetings of ranks that begin together."""

    async def all_of() -> list[Hello]:
        agreements = [Agreement(number, meeting, patience_s=patience_s) for _ in proposals]
        try:
            return list(await asyncio.gather(*map(Agreement.greeting, agreements, proposals)))
        finally:
            for agreement in agreements:
                agreement.hasten()
                agreement.end()

    return asyncio.run(all_of())


@pytest.mark.parametrize("kind", STORES)
def test_the_others_greet_with_what_rank_0_says(kind: str, tmp_path: Path) -> None:
    store = STORES[kind](tmp_path)
    first = proposal(0, started_at=7.0, project="speech", name="a name", tags=["one"], config='{"width": 8}')
    greetings = agree(meeting(store), proposal(1), first, proposal(2))
    assert greetings[1] == first
    for greeting, rank in ((greetings[0], 1), (greetings[2], 2)):
        assert shared(greeting) == shared(first)
        assert (greeting.rank, greeting.world_size) == (rank, rank + 1)


def test_rank_0_goes_on_at_once_and_is_heard_when_the_ranks_have_met(store: Store) -> None:
    met = threading.Event()
    late = Meeting(met.is_set, lambda: store)

    async def meet() -> Hello:
        first = Agreement(1, late)
        assert (await first.greeting(proposal(0))).run == "run-0"
        waiting = asyncio.create_task(Agreement(1, late).greeting(proposal(1)))
        await asyncio.sleep(0)
        assert not waiting.done()
        met.set()
        try:
            return await waiting
        finally:
            first.end()

    assert asyncio.run(meet()).run == "run-0"


def test_the_nth_watch_of_a_rank_belongs_with_the_nth_of_rank_0(store: Store) -> None:
    assert [one.run for one in agree(meeting(store), proposal(0, "second"), proposal(1), number=2)] == ["second"] * 2
    assert [one.run for one in agree(meeting(store), proposal(0, "first"), proposal(1), number=1)] == ["first"] * 2


def test_ranks_that_are_started_again_on_the_same_store_do_not_hear_what_was_said_before(store: Store) -> None:
    agree(meeting(store), proposal(0, "before"), proposal(1), proposal(2))
    # This time a rank asks before rank 0 is there; and one that failed before it could ask leaves nothing amiss.
    assert [one.run for one in agree(meeting(store), proposal(1), proposal(0, "after"))] == ["after"] * 2


def test_a_rank_that_hears_nothing_in_time_is_a_run_of_its_own(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    alone = proposal(1)
    assert agree(meeting(store), alone, patience_s=0.05) == [alone]
    (line,) = caplog.messages
    assert "rank 0 did not say in time" in line
    assert "recorded apart" in line


def test_a_rank_whose_training_is_over_waits_only_a_moment_more(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    async def ended() -> Hello:
        agreement = Agreement(1, meeting(store), patience_s=1000.0)
        waiting = asyncio.create_task(agreement.greeting(proposal(1)))
        await asyncio.sleep(0)
        agreement.hasten()
        agreement.hasten()
        return await waiting

    began = time.monotonic()
    assert asyncio.run(ended()).run == "run-1"
    assert time.monotonic() - began < DEADLINE_S
    assert len(caplog.messages) == 1


def test_a_store_that_fails_costs_a_log_line_on_each_rank(caplog: pytest.LogCaptureFixture) -> None:
    def gone() -> Store:
        raise RuntimeError("the store is gone\nand here is a stack of C++")

    async def all_of() -> list[str]:
        greetings = [await Agreement(1, Meeting(lambda: True, gone)).greeting(proposal(rank)) for rank in range(2)]
        return [greeting.run for greeting in greetings]

    assert asyncio.run(all_of()) == ["run-0", "run-1"]
    assert sorted(caplog.messages) == [
        "scalescope: the other ranks cannot be told which run this is: the store is gone",
        "scalescope: the store is gone: this rank is recorded apart, as a segment of its own",
    ]


def test_a_rank_that_was_given_another_run_stays_with_it(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    mine = proposal(1, "mine", resumed=True)
    assert agree(meeting(store), proposal(0, "theirs"), mine)[1] == mine
    assert "this rank was given run mine, rank 0 records run theirs" in caplog.text


def test_a_run_that_all_ranks_were_given_is_one_segment(store: Store) -> None:
    first, second = agree(meeting(store), *(proposal(rank, "ours", resumed=True) for rank in range(2)))
    assert (second.run, second.segment, second.resumed) == ("ours", first.segment, True)


@pytest.mark.parametrize("said", [b"", b"{}", b"[]", b"\xff", b'{"run": "a b"}'])
def test_what_is_not_of_rank_0_is_not_believed(said: bytes) -> None:
    with pytest.raises(NotAgreedError, match="another version"):
        joined(proposal(1), said)


def test_what_is_said_fits_the_wire() -> None:
    said = msgspec.json.encode(shared(proposal(0)))
    assert msgspec.json.decode(said, type=Shared).segment == "segment-0"


def test_neither_the_training_s_own_wait_nor_python_is_held_up(tmp_path: Path) -> None:
    store = tcp(tmp_path)
    patience = timedelta(seconds=DEADLINE_S)

    def wait_as_a_training_does() -> None:
        with suppress(RuntimeError):
            store.wait(["what comes at the end"], patience)

    training = threading.Thread(target=wait_as_a_training_does)
    training.start()
    assert agree(meeting(store), proposal(1), proposal(0))[0].run == "run-0"
    assert training.is_alive()
    own(store).set("what comes at the end", "")
    training.join(DEADLINE_S)
    assert not training.is_alive()
