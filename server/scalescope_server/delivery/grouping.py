"""What goes out as one message: what one run has to tell one channel, so that a storm is one message. Pure.

The first goes at once. Whatever comes within ``WINDOW_S`` of an attempt waits until it is over and then goes out
together, so a channel is told of a run once in ten seconds at most, and a single alert is told without a delay.

What once went into a message stays in it: an attempt that is made again has the same key and the same content, whatever
has come meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from scalescope_server.store.digests import digest_of
from scalescope_server.store.outbox import WINDOW_S, Parcel, Plan, Waiting

# More of them are the next message: no channel takes one without an end.
MOST_IN_ONE = 100
# Messages that one server sends at once; and to one channel.
MOST_AT_ONCE = 16
MOST_TO_ONE = 4
# A channel that has one on its way gets room for another only while there are fewer than these: what hangs takes half
# of the room at most, unless as many channels hang as there is room.
SHARED = 8

NOTHING: Mapping[str, int] = {}


def plan(
    rows: Sequence[Waiting],
    rests: Mapping[tuple[int, str], float],
    now: float,
    *,
    sending: Mapping[str, int] = NOTHING,
) -> Plan:
    """What becomes of ``rows``. ``rests``: until when a run does not tell a channel anything new.

    ``sending``: how many messages are on their way to each channel. What there is no room for stays due.
    """
    again: dict[str, list[Waiting]] = {}
    new: dict[tuple[int, str], list[Waiting]] = {}
    for row in sorted(rows, key=lambda row: row.key):
        if row.message is None:
            new.setdefault((row.run, row.channel), []).append(row)
        else:
            again.setdefault(row.message, []).append(row)
    tried = [_parcel(message, group) for message, group in again.items()]
    parcels: list[Parcel] = []
    later: dict[int, float] = {}
    for place, group in new.items():
        until = rests.get(place, now)
        # A clock that was set back keeps nothing for longer than a window.
        if now < until <= now + WINDOW_S:
            later |= {row.key: until for row in group}
        else:
            first, rest = group[:MOST_IN_ONE], group[MOST_IN_ONE:]
            parcels.append(_parcel(message_key(first), first))
            later |= {row.key: now + WINDOW_S for row in rest}
    # What is new first: what was tried before has failed before.
    return Plan(tuple(_with_room([*parcels, *tried], sending)), later)


def message_key(rows: Sequence[Waiting]) -> str:
    """The idempotency key of a message: of a single row its own."""
    keys = tuple(row.id for row in rows)
    return keys[0] if len(keys) == 1 else digest_of(keys)


def _with_room(parcels: Sequence[Parcel], sending: Mapping[str, int]) -> Iterator[Parcel]:
    """By turns, one for each channel before any has another; ``parcels`` in the order of their worth."""
    to, left = Counter(sending), list(parcels)
    for turn in range(MOST_TO_ONE):
        room, put_off = MOST_AT_ONCE if turn == 0 else SHARED, []
        for parcel in left:
            if to[parcel.channel] <= turn and to.total() < room:
                to[parcel.channel] += 1
                yield parcel
            else:
                put_off.append(parcel)
        left = put_off


def _parcel(message: str, rows: Sequence[Waiting]) -> Parcel:
    return Parcel(message, rows[0].channel, tuple(row.key for row in rows))
