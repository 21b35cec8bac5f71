"""The trainers' socket over real sockets: acknowledged after the commit, stored once, refused in sentences."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from typing import Any

import msgspec
import pytest
import zstandard
from scalescope.numerics.exponents import Histograms
from scalescope.packing import PackedHistograms, pack
from scalescope.wire import (
    MAX_FRAME_BYTES,
    Ack,
    Event,
    Heartbeat,
    Layout,
    Parameter,
    Part,
    Record,
    Refused,
    Welcome,
    encode,
)
from scalescope_server.gathering import MAX_GATHERED_BYTES, Gathering
from scalescope_server.ingest import Trainers
from scalescope_server.sockets import FIRST_FRAME_BYTES
from scalescope_server.store import totals
from scalescope_server.store.records import RunId
from websockets.exceptions import ConnectionClosed

from tests.serving import Served, Trainer, bye, hello, layout, sample, skip, steps
from tests.small_link import until

Serve = Callable[..., AbstractContextManager[Served]]


def stored_steps(served: Served, run: str = "run-1") -> list[int]:
    bucket, series = served.store.reader.series(run, ["scale"])
    assert bucket == 1
    return [int(step) for step in series["scale"].step]


def refusal(trainer: Trainer) -> Refused:
    """The refusal, after which the server closes."""
    message = trainer.received()
    while isinstance(message, Ack | Welcome):
        message = trainer.received()
    assert isinstance(message, Refused)
    with pytest.raises(ConnectionClosed):
        trainer.received()
    return message


def test_what_is_acknowledged_can_be_read_by_anyone(served: Served) -> None:
    with served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), steps(1, 0, count=3), sample(2, 0), skip(3, 2))
        # Another connection to the file: only committed rows are visible to it.
        with closing(sqlite3.connect(served.settings.database)) as other:
            assert other.execute("SELECT count(*) FROM step").fetchone() == (3,)
        assert stored_steps(served) == [0, 1, 2]
        trainer.deliver(bye(4))
    assert served.store.reader.latest(RunId("run-1")).state == "finished"


def test_resume_after_a_dropped_connection_stores_each_record_once(served: Served) -> None:
    records: list[Record] = [layout(0), *(steps(n + 1, n) for n in range(6))]
    with served.trainer(hello()) as trainer:
        trainer.deliver(*records[:4])
        trainer.socket.socket.close()
    with served.trainer() as trainer:
        trainer.send(hello())
        welcome = trainer.received()
        assert isinstance(welcome, Welcome)
        assert welcome.durable == 3
        trainer.deliver(*records[2:])
    assert stored_steps(served) == [0, 1, 2, 3, 4, 5]
    ledger = served.store.reader.run(RunId("run-1")).ledger[0]
    assert (ledger.received, ledger.duplicate, ledger.lost) == (7, 2, 0)


def test_many_records_at_once_are_all_stored_and_acknowledged_in_few_commits(served: Served) -> None:
    with served.trainer(hello()) as trainer:
        trainer.deliver(*(steps(n, n) for n in range(300)))
    assert stored_steps(served) == list(range(300))


def test_a_heartbeat_is_kept_and_not_answered(served: Served) -> None:
    with served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), steps(1, 0))
        trainer.send(Heartbeat(at=1.0, step=0, progress_at=1.0, pending=3, dropped=7))
        trainer.deliver(steps(2, 1))
    assert served.store.reader.run(RunId("run-1")).ledger[0].dropped == 7


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (b"", "malformed"),
        (b"\x00\xff nonsense", "malformed"),
        ("text", "malformed"),
        (b"\x93" * 10_000, "malformed"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(shared: Served, first: bytes | str, code: str) -> None:
    with shared.trainer() as trainer:
        trainer.socket.send(first)
        refused = refusal(trainer)
    assert (refused.code, refused.retry) == (code, False)
    assert "expected" in refused.message


def test_an_unknown_protocol_is_refused_with_the_remedy(shared: Served) -> None:
    with shared.trainer() as trainer:
        trainer.send(hello(protocol=99))
        refused = refusal(trainer)
    assert refused.code == "protocol"
    assert "install the same version" in refused.message


def test_a_rank_and_parts_that_cannot_be_are_refused_and_others_are_served(served: Served) -> None:
    with served.trainer() as trainer:
        trainer.send(hello(rank=2, world_size=2))
        assert "expected a rank below 2, got 2" in refusal(trainer).message
    for parts, message in (
        ([Part("sharded", 8, True)], "expected a part for each of the 2 parameters, or none, got 1"),
        ([Part("sharded", 17, True)] * 2, "expected at most 16 elements of 'block.weight', got 17"),
    ):
        with served.trainer(hello()) as trainer:
            trainer.send(msgspec.structs.replace(layout(0), parts=parts))
            refused = refusal(trainer)
            assert (refused.code, refused.retry) == ("malformed", False)
            assert message in refused.message
    with served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), steps(1, 0))
    assert stored_steps(served) == [0]


def test_records_before_hello_are_refused(shared: Served) -> None:
    with shared.trainer() as trainer:
        trainer.send(steps(0, 0))
        assert refusal(trainer).code == "protocol"


def test_a_connection_without_hello_is_closed(serve: Serve) -> None:
    with serve(hello_within_s=0.1) as served, served.trainer() as trainer:
        refused = refusal(trainer)
    assert (refused.code, refused.retry) == ("protocol", True)
    assert "within 0.1 s" in refused.message


def test_a_connection_that_says_nothing_more_is_closed(serve: Serve) -> None:
    with serve(quiet_after_s=0.1) as served, served.trainer(hello()) as trainer, pytest.raises(ConnectionClosed):
        trainer.received()


def bomb(states: int | None) -> PackedHistograms:
    """A gigabyte of zeros in some 30 kB, whose frame states ``states`` bytes, or none."""
    megabyte = bytes(1024 * 1024)
    compressor = zstandard.ZstdCompressor(level=3, write_content_size=states is not None)
    stream = compressor.compressobj(size=-1 if states is None else states)
    parts = [stream.compress(megabyte) for _ in range(1024)]
    return PackedHistograms(rows=2, low=-3, bins=1, width=1, body=b"".join([*parts, stream.flush()]))


@pytest.mark.parametrize("changes", [{"config": '{"a":' * 970 + "1" + "}" * 970}, {"every": 2**63}])
def test_a_hello_that_could_not_be_answered_again_is_refused(shared: Served, changes: dict[str, Any]) -> None:
    with shared.trainer() as trainer:
        trainer.send(hello(**changes))
        # It may have been refused by now.
        with suppress(ConnectionClosed):
            trainer.send(layout(0))
        refused = refusal(trainer)
    assert (refused.code, refused.retry) == ("malformed", False)
    assert shared.get("/api/runs").json()["items"] == []


def test_a_run_deleted_while_its_trainer_goes_on_stays_deleted(served: Served) -> None:
    with served.page("run-1") as page, served.trainer(hello()) as trainer:
        trainer.deliver(layout(0), steps(1, 0))
        page.until(lambda message: message.get("attempted") == 1)
        assert served.call("DELETE", "/api/runs/run-1").status == 204
        page.until(lambda message: message["type"] == "refetch")
        trainer.send(Heartbeat(at=1.0, step=0, progress_at=1.0, pending=0, dropped=0), sample(2, 0))
        refused = refusal(trainer)
        assert (refused.code, refused.retry) == ("unavailable", False)
        assert "was deleted on the server: start the training again" in refused.message
    with served.trainer() as trainer:
        trainer.send(hello())
        assert refusal(trainer).message == refused.message
    assert served.get("/api/runs").json()["items"] == []
    with served.trainer(hello(segment="started-again")) as trainer:
        trainer.deliver(layout(0), steps(1, 0), sample(2, 0))
    assert [run["attempted"] for run in served.get("/api/runs").json()["items"]] == [1]


@pytest.mark.parametrize("states", [1024 * 1024 * 1024, None])
def test_a_zstd_bomb_is_refused_and_what_came_before_it_is_kept(served: Served, states: int | None) -> None:
    packed = bomb(states)
    assert len(packed.body) < 200_000
    with served.trainer(hello()) as trainer:
        trainer.send(layout(0), steps(1, 0), msgspec.structs.replace(sample(2, 0), table=packed), steps(3, 1))
        refused = refusal(trainer)
    assert (refused.code, refused.retry) == ("malformed", False)
    assert "zstd" in refused.message
    assert stored_steps(served) == [0]
    assert served.get("/healthz").status == 200


def test_a_value_that_no_database_holds_is_refused_for_good_and_what_came_before_it_is_kept(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(totals, "_dropped", lambda happening: 2**63)
    bad = Event(sequence=4, step=3, at=1.0, kind="dropped", data="{}")
    with served.trainer(hello()) as trainer:
        trainer.send(layout(0), *(steps(n + 1, n) for n in range(3)), bad, steps(5, 3))
        refused = refusal(trainer)
    assert (refused.code, refused.retry) == ("malformed", False)
    assert "the database cannot hold a value of it" in refused.message
    assert stored_steps(served) == [0, 1, 2]


def test_a_frame_above_the_limit_is_refused_by_its_stated_size(served: Served) -> None:
    with served.trainer(hello()) as trainer:
        # The head of a masked binary frame, and nothing of its content.
        trainer.socket.socket.sendall(b"\x82\xff" + struct.pack(">Q", MAX_FRAME_BYTES + 1) + bytes(4))
        with pytest.raises(ConnectionClosed) as caught:
            trainer.received()
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1009


def test_a_stranger_may_only_begin_a_small_frame(shared: Served) -> None:
    with shared.trainer() as trainer:
        trainer.socket.socket.sendall(b"\x82\xff" + struct.pack(">Q", FIRST_FRAME_BYTES + 1) + bytes(4))
        with pytest.raises(ConnectionClosed) as caught:
            trainer.received()
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1009


def test_a_stranger_may_send_no_more_in_pieces(shared: Served) -> None:
    begun, further = b"\x02\xff", b"\x00\xff"
    half = struct.pack(">Q", FIRST_FRAME_BYTES // 2 + 1) + bytes(4)
    with shared.trainer() as trainer:
        trainer.socket.socket.sendall(begun + half + bytes(FIRST_FRAME_BYTES // 2 + 1) + further + half)
        with pytest.raises(ConnectionClosed) as caught:
            trainer.received()
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1009


def test_trainers_that_leave_with_everything_on_its_way_are_no_failure(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    records: list[Record] = [layout(0), *(steps(n + 1, 50 * n, count=50) for n in range(100))]
    with ExitStack() as staying:
        with serve() as served:
            # uvicorn keeps its log to itself.
            logging.getLogger("uvicorn").addHandler(caplog.handler)
            for number in range(6):
                with served.trainer(hello(f"run-{number}")) as trainer:
                    trainer.send(*records)
                    if number % 2:
                        trainer.socket.socket.close()
            staying.enter_context(served.trainer(hello("staying"))).send(*records)
        logging.getLogger("uvicorn").removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_frame_at_the_limit_is_read(served: Served) -> None:
    with served.trainer(hello()) as trainer:
        trainer.socket.send(bytes(MAX_FRAME_BYTES))
        assert refusal(trainer).code == "malformed"


def test_the_later_of_two_connections_of_one_rank_wins(served: Served) -> None:
    with served.trainer(hello()) as earlier:
        earlier.deliver(layout(0), steps(1, 0))
        with served.trainer(hello()) as later, served.trainer(hello(rank=1)) as neighbour:
            refused = refusal(earlier)
            assert (refused.code, refused.retry) == ("superseded", False)
            later.deliver(steps(2, 1))
            neighbour.deliver(layout(0))
    assert stored_steps(served) == [0, 1]


def test_a_trainer_that_gives_up_waiting_is_not_let_in_later(served: Served) -> None:
    """It may have called another server meanwhile, which would lose its place to a connection that is gone."""
    with served.trainer(hello("patient")) as patient:
        patient.deliver(layout(0))
        with closing(sqlite3.connect(served.settings.database, isolation_level=None)) as locker:
            locker.execute("BEGIN IMMEDIATE")
            patient.send(steps(1, 0))
            until(lambda: served.store.writer._queue.empty())
            with served.trainer() as impatient:
                impatient.send(hello("impatient"))
                until(lambda: not served.store.writer._queue.empty())
            until(lambda: "scalescope_ingest_connections 1" in served.get("/metrics").body.decode())
            locker.execute("ROLLBACK")
        patient.deliver(steps(2, 1))
    assert [run["id"] for run in served.get("/api/runs").json()["items"]] == ["patient"]


def test_a_rank_that_left_does_not_take_its_successors_place_away() -> None:
    trainers = Trainers()
    rank = ("run", "segment", 0)
    first, second, third = asyncio.Event(), asyncio.Event(), asyncio.Event()
    trainers.enter(rank, first)
    trainers.enter(rank, second)
    trainers.leave(rank, first)
    trainers.enter(rank, third)
    assert (first.is_set(), second.is_set(), third.is_set()) == (True, True, False)


def test_small_frames_of_large_tables_are_decoded_a_few_at_a_time(served: Served) -> None:
    rows = 10_000
    parameters = [Parameter(f"p{n}", "", [1], "float32", 1, "fp16") for n in range(rows)]
    large = Layout(sequence=0, parameters=parameters, order="unknown", backward=[])
    packed = pack(Histograms.empty(rows))
    samples = [msgspec.structs.replace(sample(n + 1, n), table=packed) for n in range(40)]
    assert sum(len(encode(record)) for record in samples) < 100_000
    with served.trainer(hello()) as trainer:
        trainer.deliver(large)
        tracemalloc.start()
        trainer.deliver(*samples)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    # All of them at once would hold 800 MB.
    assert peak < 300_000_000


async def test_what_has_gathered_is_taken_whole_and_there_is_no_room_above_the_bound() -> None:
    gathering = Gathering()
    gathering.add(steps(0, 0), 10)
    await gathering.room()
    gathering.add(steps(1, 1), MAX_GATHERED_BYTES)
    waiting = asyncio.create_task(gathering.room())
    for _ in range(5):
        await asyncio.sleep(0)
    assert (gathering.is_full, waiting.done()) == (True, False)
    records, size = await gathering.take()
    assert ([record.sequence for record in records], size) == ([0, 1], MAX_GATHERED_BYTES + 10)
    await waiting
    gathering.add(steps(2, 2), 1)
    gathering.end()
    assert [record.sequence for record in (await gathering.take())[0]] == [2]
    assert await gathering.take() == ((), 0)
