"""Work beside the writer's thread: in its order, in one thread, with its failures."""

from __future__ import annotations

import os
import threading

import pytest
from scalescope_server.store.aside import aside


def test_work_is_done_in_the_order_in_which_it_was_given_and_in_one_thread() -> None:
    done: list[int] = []
    futures = [aside(done.append, number) for number in range(50)]
    threads = {aside(threading.get_ident).result() for _ in range(5)}
    assert [future.result() for future in futures] == [None] * 50
    assert done == list(range(50))
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def test_what_fails_is_told_to_whoever_asks_for_the_result() -> None:
    with pytest.raises(ZeroDivisionError):
        aside(divmod, 1, 0).result()
    assert aside(divmod, 7, 2).result() == (3, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes fork")
def test_a_child_has_a_thread_of_its_own() -> None:
    assert aside(divmod, 7, 2).result() == (3, 1)
    child = os.fork()
    if not child:
        os._exit(aside(divmod, 7, 2).result(timeout=30)[0])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
