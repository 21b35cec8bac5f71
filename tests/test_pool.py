"""Memory for measurements on their way: lent, given back, bounded. What needs a CUDA device runs where there is one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scalescope.numerics.pool import Lease, Pool

CPU = torch.device("cpu")


class Never:
    """The event of a copy that does not arrive."""

    def query(self) -> bool:
        return False


def taken(pool: Pool, words: int) -> Lease:
    lease = pool.take(words)
    assert lease is not None
    return lease


def test_words_go_there_and_results_come_back() -> None:
    slot = taken(Pool(CPU), 10).slot
    words, results = slot.put(np.arange(4, dtype=np.int64), 3)
    assert words.tolist() == [0, 1, 2, 3]
    assert results.tolist() == [0, 0, 0]
    results += 7
    slot.fetch(4, 7)
    assert slot.arrived()
    assert slot.host[4:7].tolist() == [7, 7, 7]


def test_results_are_zeros_in_a_slot_that_was_used_before() -> None:
    pool = Pool(CPU)
    taken(pool, 10).slot.device.fill_(9)
    assert taken(pool, 10).slot.put(np.zeros(2, np.int64), 5)[1].tolist() == [0] * 5


def test_a_slot_that_is_dropped_is_lent_again_for_any_size_that_it_holds() -> None:
    pool = Pool(CPU)
    lease = taken(pool, 1500)
    first = lease.slot
    other = taken(pool, 1500)
    assert other.slot is not first
    del lease
    assert taken(pool, 2048).slot is first


def test_what_is_lent_is_bounded_and_refusals_are_counted() -> None:
    pool = Pool(CPU, most_bytes=3 * 1024 * 8)
    kept = [taken(pool, 1024), taken(pool, 2000)]
    assert pool.take(10) is None
    assert pool.refused == 1
    kept.clear()
    assert pool.take(10) is not None
    assert pool.refused == 1


def test_one_given_back_while_its_copy_is_under_way_is_not_lent_before_it_arrived() -> None:
    pool = Pool(CPU, most_bytes=1024 * 8)
    lease = taken(pool, 10)
    slot = lease.slot
    slot.event = Never()
    del lease
    assert pool.take(10) is None
    slot.event = None
    assert taken(pool, 10).slot is slot


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_nothing_of_it_makes_the_host_wait_for_a_device() -> None:
    device = torch.device("cuda", 0)
    pool = Pool(device)
    taken(pool, 100)
    torch.cuda.set_sync_debug_mode("error")
    try:
        slot = taken(pool, 100).slot
        slot.put(np.arange(4, dtype=np.int64), 3)[1].add_(1)
        slot.fetch(4, 7)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert slot.arrived()
    assert slot.host[4:7].tolist() == [1, 1, 1]
    assert slot.host.is_pinned()
