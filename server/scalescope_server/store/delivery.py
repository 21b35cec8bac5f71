"""What goes into the store, and the answer to it: a batch of one trainer, and what of it became durable."""

from __future__ import annotations

from msgspec import Struct
from scalescope.ledger import Ledger
from scalescope.wire import Hello, Record

from scalescope_server.store.records import RunId


class Batch(Struct, frozen=True):
    """Records of one trainer to be stored together, in the order of their sequences.

    ``weight``: the bytes, about, that storing them holds in memory (see ``weight.weight_of``). ``connection``: the
    number that the connection was given when it was admitted; None: a batch of nobody that is connected.
    """

    hello: Hello
    records: tuple[Record, ...]
    received_at: float
    weight: int
    connection: int | None = None


class Admission(Struct, frozen=True):
    """A connection of one rank that was let in: what is stored of that rank, and the number of the connection.

    Once a later one has been let in, whichever server that is with, nothing more is taken from this one.
    """

    ledger: Ledger
    connection: int


class Receipt(Struct, frozen=True):
    """What became durable: the answer to a :class:`Batch` once it is committed.

    ``durable`` is the highest sequence of the batch, duplicates included. ``steps`` is the half-open range of
    updates of rank 0 that are new, empty as (n, n). ``events`` counts new events, ``ended`` tells of a Bye.
    """

    run: RunId
    rank: int
    durable: int
    stored: int
    duplicates: int
    steps: tuple[int, int]
    samples: int
    events: int
    ended: bool
