"""The conversation without sockets: both ends against each other over a line that loses and repeats."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec
import pytest
from scalescope.ledger import Ledger
from scalescope.session import WINDOW_BYTES, Frame, ServerSession, SessionError, State, TrainerSession, ack
from scalescope.wire import PROTOCOL, Event, Heartbeat, Hello, Record, Refused, Welcome, decode_from_server, encode

from tests.test_wire import HELLO


def record(sequence: int, size: int = 2) -> Frame:
    event = Event(sequence=sequence, step=sequence, at=0.0, kind="growth", data=" " * size)
    return Frame(sequence, encode(event))


def opened(durable: int = -1) -> TrainerSession:
    session = TrainerSession(HELLO)
    session.open()
    session.receive(encode(Welcome(durable=durable, server="x")))
    return session


def test_nothing_is_sent_before_the_welcome() -> None:
    session = TrainerSession(HELLO)
    assert session.sendable([record(0)]) == []
    session.open()
    assert session.sendable([record(0)]) == []


def test_each_frame_is_sent_once_and_in_order() -> None:
    session, frames = opened(), [record(0), record(1)]
    assert session.sendable(frames) == [frame.data for frame in frames]
    assert session.sendable([*frames, record(2)]) == [record(2).data]


def test_what_the_welcome_says_is_durable_is_not_sent_again() -> None:
    assert opened(durable=1).sendable([record(0), record(1), record(2)]) == [record(2).data]


def test_a_full_window_waits_for_an_acknowledgement() -> None:
    session, big = opened(), WINDOW_BYTES // 16_000 + 1
    frames = [record(n, 16_000) for n in range(big)]
    sent = session.sendable(frames)
    assert 0 < len(sent) < big
    session.receive(ack(len(sent) - 1))
    assert session.sendable(frames) == [frame.data for frame in frames[len(sent) :]]


def test_a_full_window_is_not_looked_through_again() -> None:
    session = opened()
    frames = [record(n, size=WINDOW_BYTES // 2) for n in range(4)]
    assert len(session.sendable(frames)) < len(frames)
    assert session.sendable(frame for frame in frames if pytest.fail("it was looked at")) == []


def test_a_frame_larger_than_the_window_travels_alone() -> None:
    huge = Frame(0, bytes(WINDOW_BYTES + 1))
    session = opened()
    assert session.sendable([huge, record(1)]) == [huge.data]
    session.receive(ack(0))
    assert session.sendable([huge, record(1)]) == [record(1).data]


def test_a_refusal_ends_the_session_and_says_why() -> None:
    session = TrainerSession(HELLO)
    session.open()
    with pytest.raises(SessionError, match="wrong token") as caught:
        session.receive(encode(Refused(code="token", message="wrong token", retry=False)))
    assert caught.value.refusal.code == "token"
    assert session.state is State.CLOSED


def test_an_answer_out_of_turn_or_unreadable_ends_the_session() -> None:
    session = TrainerSession(HELLO)
    session.open()
    with pytest.raises(SessionError, match="expected Welcome, got Ack"):
        session.receive(ack(3))
    with pytest.raises(SessionError, match="expected Ack, got Welcome"):
        opened().receive(encode(Welcome(durable=1, server="x")))
    with pytest.raises(SessionError, match="expected a message of protocol"):
        opened().receive(b"nonsense")


def test_a_session_is_opened_once() -> None:
    session = TrainerSession(HELLO)
    session.open()
    with pytest.raises(RuntimeError, match="expected a session that is new, got one that is greeting"):
        session.open()


def refusal(*frames: bytes) -> Refused:
    """What the last of ``frames`` is answered; the ones before are accepted."""
    server = ServerSession()
    for frame in frames[:-1]:
        server.receive(frame)
    with pytest.raises(SessionError) as caught:
        server.receive(frames[-1])
    return caught.value.refusal


def test_the_server_wants_hello_first_and_once() -> None:
    assert refusal(record(0).data).message == "expected Hello first, got Event"
    assert "second one" in refusal(encode(HELLO), encode(HELLO)).message


def test_an_unknown_protocol_is_refused_with_the_remedy() -> None:
    found = refusal(encode(msgspec.structs.replace(HELLO, protocol=PROTOCOL + 1)))
    assert found.code == "protocol"
    assert "install the same version" in found.message
    assert not found.retry


def test_a_rank_outside_its_world_is_refused() -> None:
    assert refusal(encode(msgspec.structs.replace(HELLO, rank=1))).message == "expected a rank below 1, got 1"


def test_sequences_must_rise_within_a_connection() -> None:
    assert refusal(encode(HELLO), record(5).data, record(5).data).message == "expected a sequence above 5, got 5"


def test_nonsense_is_refused_as_malformed() -> None:
    assert refusal(b"\xc1").code == "malformed"


def test_a_heartbeat_has_no_sequence_and_is_always_welcome() -> None:
    server = ServerSession()
    server.receive(encode(HELLO))
    beat = Heartbeat(at=1.0, step=3, progress_at=1.0, pending=0, dropped=0)
    assert server.receive(encode(beat)) == beat


@dataclass
class Store:
    """What a server keeps: the ledger and the records, both or neither."""

    ledger: Ledger = field(default_factory=Ledger)
    kept: list[int] = field(default_factory=list)

    def commit(self, records: list[Record]) -> None:
        for found in records:
            if found.sequence not in self.ledger:
                self.ledger = self.ledger.add(found.sequence)
                self.kept.append(found.sequence)


def converse(rng: random.Random, store: Store, waiting: list[Frame]) -> list[Frame]:
    """One connection that breaks at a random moment. The answer is what the trainer still holds."""
    trainer, server = TrainerSession(HELLO), ServerSession()
    server.receive(trainer.open())
    trainer.receive(server.welcome(store.ledger, "x"))
    for _ in range(rng.randrange(6)):
        sent = trainer.sendable(waiting)
        arrived = [server.receive(data) for data in sent[: rng.randrange(len(sent) + 1)]]
        records = [message for message in arrived if isinstance(message, Record)]
        if rng.random() < 0.3:
            break
        store.commit(records)
        if not records or rng.random() < 0.3:
            break
        durable = trainer.receive(ack(records[-1].sequence))
        waiting = [frame for frame in waiting if frame.sequence > durable]
        if len(records) < len(sent):
            break
    return waiting


@pytest.mark.parametrize("seed", range(60))
def test_over_any_line_each_record_is_stored_exactly_once_and_in_order(seed: int) -> None:
    rng, store = random.Random(seed), Store()
    waiting = [record(n) for n in range(40)]
    for _ in range(400):
        waiting = converse(rng, store, waiting)
        if not waiting and store.ledger.contiguous == 39:
            break
    assert store.kept == list(range(40))


def test_the_welcome_tells_the_ledger() -> None:
    server = ServerSession()
    assert isinstance(server.receive(encode(HELLO)), Hello)
    welcome = decode_from_server(server.welcome(Ledger(((0, 4), (7, 9))), "0.1.0"))
    assert welcome == Welcome(durable=4, server="0.1.0")
