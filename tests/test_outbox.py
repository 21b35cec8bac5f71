"""The outbox: order, bounds, and a count for everything that is dropped."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scalescope.outbox import FRAME_OVERHEAD_BYTES, Outbox
from scalescope.session import Frame
from scalescope.spool import SpoolFile

from tests.small_server import hello

URL = "http://127.0.0.1:8765"
SIZE = 1000
COST = SIZE + FRAME_OVERHEAD_BYTES


def outbox(folder: Path, *, memory: int = 3, disk: int = 100) -> Outbox:
    """An outbox with room for so many records of ``SIZE`` bytes in memory and on disk."""
    return Outbox(hello(), URL, folder, memory_bytes=memory * COST, disk_bytes=disk * COST)


def put(box: Outbox, *sequences: int, kind: str = "steps") -> None:
    for n in sequences:
        box.put(Frame(n, bytes(SIZE), droppable=kind == "sample"), kind)


def sequences(box: Outbox, after: int = -1) -> list[int]:
    return [frame.sequence for frame in box.waiting(after)]


def test_records_wait_in_order_until_they_are_acknowledged(tmp_path: Path) -> None:
    box = outbox(tmp_path)
    put(box, 0, 1, 2)
    assert sequences(box) == [0, 1, 2]
    assert sequences(box, after=0) == [1, 2]
    box.acknowledge(1)
    assert sequences(box) == [2]
    assert (box.pending, box.acknowledged, box.memory, box.path) == (1, 2, COST, None)


def test_what_memory_cannot_hold_goes_to_the_file_oldest_first(tmp_path: Path) -> None:
    box = outbox(tmp_path, memory=3)
    put(box, *range(10))
    assert (box.memory, box.spilled, box.pending) == (3 * COST, 7, 10)
    assert sequences(box) == list(range(10))
    assert sequences(box, after=4) == list(range(5, 10))
    box.close()


def test_before_it_is_known_whose_they_are_records_stay_in_memory(tmp_path: Path) -> None:
    box = Outbox(None, URL, tmp_path, memory_bytes=3 * COST, disk_bytes=100 * COST)
    put(box, 0, 1, 2)
    put(box, 3)
    assert (sequences(box), box.spilled, box.dropped.total()) == ([1, 2, 3], 0, 1)
    box.belongs_to(hello())
    put(box, 4)
    assert (sequences(box), box.spilled, box.dropped.total()) == ([1, 2, 3, 4], 1, 1)
    box.close()


def test_acknowledgements_empty_the_file_and_then_memory(tmp_path: Path) -> None:
    box = outbox(tmp_path, memory=3)
    put(box, *range(10))
    box.acknowledge(4)
    assert sequences(box) == [5, 6, 7, 8, 9]
    box.acknowledge(8)
    assert sequences(box) == [9]
    assert list(tmp_path.iterdir()) == []
    assert box.acknowledged == 9


def test_the_file_is_made_anew_for_the_next_outage(tmp_path: Path) -> None:
    box = outbox(tmp_path, memory=1)
    put(box, 0, 1)
    box.acknowledge(1)
    put(box, 2, 3)
    assert (sequences(box), box.spilled) == ([2, 3], 1)
    box.close()


def test_samples_are_dropped_first_when_both_are_full(tmp_path: Path) -> None:
    box = outbox(tmp_path, memory=3, disk=2)
    put(box, 0, kind="layout")
    put(box, 1, 2)
    put(box, 3, kind="sample")
    put(box, 4)
    put(box, 5, kind="sample")
    put(box, 6)
    assert (sequences(box), box.dropped) == ([0, 1, 2, 4, 6], {"sample": 2})
    put(box, 7)
    assert (sequences(box), box.dropped) == ([0, 1, 4, 6, 7], {"sample": 2, "steps": 1})
    box.close()


def test_a_layout_outlives_the_steps_that_need_it(tmp_path: Path) -> None:
    box = outbox(tmp_path, memory=3, disk=0)
    put(box, 0, kind="layout")
    put(box, *range(1, 20))
    assert sequences(box) == [0, 18, 19]
    assert box.dropped == {"steps": 17}


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Writing beyond ``size`` bytes fails half-way in this process, as it does on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up_is_one_log_line_and_counted_drops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    box = outbox(tmp_path, memory=2)
    with files_limited_to(3 * SIZE):
        put(box, *range(10))
    assert sequences(box) == [0, 1, 8, 9]
    assert box.dropped == {"steps": 6}
    (line,) = caplog.messages
    assert "cannot keep undelivered data" in line
    assert "set SCALESCOPE_SPOOL" in line
    put(box, 10)
    assert sequences(box) == [0, 1, 8, 9, 10]
    box.close()
    assert box.path is not None
    file = SpoolFile.open(box.path)
    assert [frame.sequence for frame in file.waiting(-1)] == [0, 1, 8]
    file.close()


def test_a_spool_folder_that_cannot_be_made_is_one_log_line_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    box = outbox(blocked / "spool", memory=2)
    put(box, *range(10))
    assert (sequences(box), box.dropped) == ([8, 9], {"steps": 8})
    assert len(caplog.messages) == 1


def test_spilling_at_the_end_leaves_everything_in_the_file(tmp_path: Path) -> None:
    box = outbox(tmp_path)
    put(box, 0, 1, 2)
    box.spill()
    assert (box.memory, box.spilled, box.path is not None) == (0, 3, True)
    box.close()
    assert box.path is not None
    file = SpoolFile.open(box.path)
    assert [frame.sequence for frame in file.waiting(-1)] == [0, 1, 2]
    assert file.header.url == URL
    file.close()


def test_spilling_without_a_disk_drops_counts_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    box = outbox(blocked / "spool")
    put(box, 0, 1)
    box.spill()
    assert (box.pending, box.dropped) == (0, {"steps": 2})
    assert box.failure == "not a directory"
    # Whoever asks for it tells of the end in a line of its own.
    assert caplog.messages == []


def test_spilling_into_too_little_room_gives_up_samples_first(tmp_path: Path) -> None:
    box = outbox(tmp_path, memory=4, disk=3)
    put(box, 0)
    put(box, 1, 2, kind="sample")
    put(box, 3)
    box.spill()
    assert (sequences(box), box.dropped) == ([0, 2, 3], {"sample": 1})
    box.close()


def test_an_outbox_without_records_leaves_no_file(tmp_path: Path) -> None:
    box = outbox(tmp_path)
    box.spill()
    box.close()
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.one_of(st.sampled_from(["sample", "steps", "event"]), st.integers(1, 40)), max_size=60))
def test_every_record_is_waiting_acknowledged_or_counted_as_dropped(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str | int]
) -> None:
    box = outbox(tmp_path_factory.mktemp("spool"), memory=3, disk=4)
    count = 0
    for action in actions:
        if isinstance(action, int):
            box.acknowledge(action)
        else:
            put(box, count, kind=action)
            count += 1
        waiting = sequences(box)
        assert waiting == sorted(waiting)
        assert len(waiting) == box.pending
        assert box.pending + box.acknowledged + box.dropped.total() == count
        assert box.memory <= 3 * COST
    box.close()
