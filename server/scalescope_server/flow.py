"""The path of one batch, from a trainer's socket to everyone who waits for it."""

from __future__ import annotations

import asyncio
import time

from scalescope_server.rooms import Rooms
from scalescope_server.store.delivery import Batch, Receipt
from scalescope_server.tasks import may_fail_unheard


async def accept(rooms: Rooms, batch: Batch) -> Receipt:
    """Store ``batch``; the answer comes after the commit, and only then may it be acknowledged.

    Raises:
        StoreError: nothing of the batch was stored.
    """
    began = time.monotonic()
    storing = asyncio.wrap_future(rooms.store.writer.append(batch))
    may_fail_unheard(storing)
    # Waited for by itself: a connection that ends meanwhile does not take its records out of the writer's line.
    await asyncio.wait([storing])
    receipt = storing.result()
    rooms.metrics.committed(receipt, time.monotonic() - began)
    rooms.hub.publish(receipt)
    # Rules and findings are computed apart, never in the way of the acknowledgement.
    rooms.judge.wake(receipt.run)
    return receipt
