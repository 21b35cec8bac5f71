"""Writers that die at random points of their transactions, one after the other, on one database.

``python -m tests.dying_writer URL SEED DEATHS``. Each looks at what the dead before it have left, goes on where they
stopped, and dies: at one of its statements, or at any moment. It exits with 0 and prints how many updates each rank has
once the last has looked; a writer that found a half-written transaction says what it found, and is the last.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import count

from scalescope_server.store import tables
from scalescope_server.store.delivery import Batch
from scalescope_server.store.engine import Store, open_store
from scalescope_server.store.origin import ledger_of
from sqlalchemy import event, func, select

from tests.batches import Dictation, batch, hello, histograms
from tests.fresh_folds import stale_levels

# A run is soon longer than a level: 64, then 512.
UPDATES = 120
RECORDS = 6
RANKS = (0, 1)
# What a writer gets to do before it dies at the latest: some transactions, of some thirty statements each.
MOST_STATEMENTS = 300
MOST_S = 0.3


def nth_batch(number: int, rank: int) -> Batch:
    """A layout, a sample, a tally, a probe, an event and updates with their windows."""
    say, first = Dictation(RECORDS * number), number * UPDATES
    values = [float(step) for step in range(first, first + UPDATES)]
    return batch(
        hello(rank=rank),
        say.layout(("w", "fp16")),
        say.sample(first, histograms([0, -20])),
        say.tally(first, update_squares=[1.0], weight_squares=[4.0]),
        say.probe(first, lost=[1.0], reference_nonzero=[2.0]),
        say.event(first, "skip", '{"parameter": "w"}'),
        say.steps(first, UPDATES, (UPDATES, {"zero_grad": True}), loss=values, own=values, skipped=[1.0, 0.0] * 60),
    )


def look(store: Store) -> dict[int, int]:
    """How many batches of each rank there are, each whole, and no level half-written."""
    found = {}
    with store._reading.connect() as connection:
        for ledger in connection.execute(select(tables.ledger)):
            batches, rest = divmod(ledger_of(ledger.ranges).received, RECORDS)
            expected = {tables.step: UPDATES, tables.event: 1, tables.sample: 1, tables.tally: 2}
            counted = {
                table: connection.execute(select(func.count()).where(table.c.rank == ledger.rank)).scalar_one()
                for table in expected
            }
            assert rest == 0, f"a batch of rank {ledger.rank} was entered in part"
            wanted = {table: batches * rows for table, rows in expected.items()}
            assert counted == wanted, f"rank {ledger.rank}: {counted} after {batches} batches"
            found[ledger.rank] = batches
        if found:
            assert stale_levels(connection, "run") == []
    return found


def write_until_death(url: str, chance: random.Random) -> None:
    with closing(open_store(url)) as store:
        done = look(store)
        if chance.random() < 0.6:
            die_at_statement(store, chance.randint(1, MOST_STATEMENTS))
        else:
            # The default is to end the process at once, wherever it is.
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.001, MOST_S))
        for number in count(min(done.values(), default=0)):
            for rank in RANKS:
                store.writer.append(nth_batch(number, rank)).result()


def die_at_statement(store: Store, number: int) -> None:
    """Let the writer die just before so many statements, the commit being one of them."""
    left = iter(range(number, -1, -1))

    def passed(*_: object) -> None:
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(store._writing, "before_cursor_execute", passed)
    event.listen(store._writing, "commit", passed)


def in_a_fork(work: Callable[[], None]) -> int:
    """Do ``work`` in a process of its own; how that ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    work()
    sys.exit(0)


def main() -> int:
    url, seed, deaths = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)

    def last() -> None:
        with closing(open_store(url)) as store:
            print(min(look(store).values()) * UPDATES, flush=True)

    for _ in range(deaths):
        if in_a_fork(partial(write_until_death, url, random.Random(chance.getrandbits(64)))) == 1:
            return 1
    return in_a_fork(last)


if __name__ == "__main__":
    sys.exit(main())
