"""Spool files: what was written is read back, up to a torn tail, by one process at a time."""

from __future__ import annotations

import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from scalescope.session import Frame
from scalescope.spool import Header, SpoolBegunError, SpoolError, SpoolFile

from tests.small_server import hello

HEADER = Header("http://127.0.0.1:8765", hello())


def frames(*sequences: int) -> list[Frame]:
    return [Frame(n, b"record %d" % n) for n in sequences]


def written(folder: Path, *sequences: int) -> Path:
    file = SpoolFile.create(folder, HEADER)
    for frame in frames(*sequences):
        file.append(frame)
    file.close()
    return file.path


def test_records_come_back_in_order_with_their_numbers(tmp_path: Path) -> None:
    file = SpoolFile.open(written(tmp_path, 0, 1, 5, 6))
    assert file.header == HEADER
    assert list(file.waiting(-1)) == frames(0, 1, 5, 6)
    assert file.remaining == 4
    file.close()


def test_reading_resumes_after_any_sequence_forwards_and_backwards(tmp_path: Path) -> None:
    file = SpoolFile.open(written(tmp_path, 0, 1, 5, 6))
    assert list(file.waiting(1)) == frames(5, 6)
    assert list(file.waiting(5)) == frames(6)
    assert list(file.waiting(0)) == frames(1, 5, 6)
    assert list(file.waiting(6)) == []
    file.close()


def test_acknowledged_records_are_gone(tmp_path: Path) -> None:
    file = SpoolFile.open(written(tmp_path, 0, 1, 5, 6))
    assert file.acknowledge(3) == 2
    assert list(file.waiting(-1)) == frames(5, 6)
    assert file.acknowledge(3) == 0
    assert file.acknowledge(6) == 2
    assert file.remaining == 0
    file.delete()
    assert not file.path.exists()


def test_a_file_can_be_appended_while_it_is_read(tmp_path: Path) -> None:
    file = SpoolFile.create(tmp_path, HEADER)
    file.append(frames(0)[0])
    assert list(file.waiting(-1)) == frames(0)
    file.append(frames(1)[0])
    assert list(file.waiting(0)) == frames(1)
    file.close()


@pytest.mark.parametrize("lost", range(1, 25))
def test_a_torn_tail_is_left_out_and_the_rest_kept(tmp_path: Path, lost: int) -> None:
    path = written(tmp_path, 0, 1, 2)
    path.write_bytes(path.read_bytes()[:-lost])
    file = SpoolFile.open(path)
    assert list(file.waiting(-1)) == frames(0, 1)
    assert file.damaged == len(frames(2)[0].data) + 16 - lost
    file.append(frames(2)[0])
    assert list(file.waiting(-1)) == frames(0, 1, 2)
    file.close()


def test_a_flipped_bit_ends_the_intact_part(tmp_path: Path) -> None:
    path = written(tmp_path, 0, 1, 2)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    file = SpoolFile.open(path)
    assert list(file.waiting(-1)) == frames(0, 1)
    assert file.damaged == len(frames(2)[0].data) + 16
    file.close()


@pytest.mark.parametrize("nonsense", [bytes(100), b"\xff" * 100, bytes(range(256)) * 2000, b"scalescope"], ids=len)
def test_nonsense_in_the_middle_is_passed_over_and_what_lies_behind_it_is_read(tmp_path: Path, nonsense: bytes) -> None:
    whole = written(tmp_path, 0, 1, 5, 6).read_bytes()
    size = len(frames(0)[0].data) + 16
    path = tmp_path / "damaged.spool"
    # Between blocks, in the middle of one, and in place of one.
    for kept, left_out, intact in (
        (2, 0, (0, 1, 5, 6)),
        (2, 20, (0, 1, 6)),
        (3, size, (0, 5, 6)),
        (4, size, (1, 5, 6)),
    ):
        cut = len(whole) - kept * size
        path.write_bytes(whole[:cut] + nonsense + whole[cut + left_out :])
        file = SpoolFile.open(path)
        assert list(file.waiting(-1)) == frames(*intact)
        damaged = path.stat().st_size - (len(whole) - 4 * size) - len(intact) * size
        assert (file.remaining, file.damaged) == (len(intact), damaged)
        assert file.acknowledge(intact[1]) == 2
        assert list(file.waiting(-1)) == frames(*intact[2:])
        file.append(frames(9)[0])
        assert list(file.waiting(intact[1])) == frames(*intact[2:], 9)
        file.close()


def test_a_tail_of_zeros_is_no_record(tmp_path: Path) -> None:
    """What a machine that lost its power may leave of a file that had grown."""
    path = written(tmp_path)
    path.write_bytes(path.read_bytes() + bytes(100))
    file = SpoolFile.open(path)
    assert (file.remaining, file.damaged, list(file.waiting(-1))) == (0, 100, [])
    file.close()


@pytest.mark.parametrize("content", [b"hello", b"scalescope spool 9\n", b"scalescope spool 9\n" + bytes(100)])
def test_what_is_not_a_spool_file_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.spool"
    path.write_bytes(content)
    with pytest.raises(SpoolError, match="expected a spool file of this version"):
        SpoolFile.open(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("size", [0, 5, 34])
def test_a_file_that_ends_before_its_header_holds_nothing(tmp_path: Path, size: int) -> None:
    path = written(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(SpoolBegunError, match="nothing is in it"):
        SpoolFile.open(path)


def test_a_training_that_is_killed_as_it_begins_a_file_leaves_none_to_deliver(tmp_path: Path) -> None:
    child = f"""
        import os
        from pathlib import Path
        from scalescope import spool
        from tests.test_spool import HEADER
        spool._write_all = lambda file, data: os._exit(9)
        spool.SpoolFile.create(Path({str(tmp_path)!r}), HEADER)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(child)], check=False, cwd=Path(__file__).parents[1])
    assert done.returncode == 9
    assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.glob("*.spool")) == []


def test_a_damaged_header_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, 0)
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    with pytest.raises(SpoolError, match="expected a spool file"):
        SpoolFile.open(path)


def test_a_file_in_use_is_left_alone(tmp_path: Path) -> None:
    file = SpoolFile.create(tmp_path, HEADER)
    with pytest.raises(SpoolError, match="in use by a training that still runs"):
        SpoolFile.open(file.path)
    file.close()
    SpoolFile.open(file.path).close()


def test_only_the_owner_can_read_the_folder_and_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "state" / "spool", 0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_each_server_and_rank_has_a_file_of_its_own(tmp_path: Path) -> None:
    headers = [HEADER, Header("http://other", hello()), Header(HEADER.url, hello(rank=1))]
    for header in headers:
        SpoolFile.create(tmp_path, header).close()
    assert len(list(tmp_path.glob("*.spool"))) == 3


def test_a_link_somebody_put_in_its_place_is_not_followed(tmp_path: Path) -> None:
    path = written(tmp_path, 0)
    path.unlink()
    victim = tmp_path / "victim"
    path.symlink_to(victim)
    with pytest.raises(FileExistsError):
        SpoolFile.create(tmp_path, HEADER)
    assert not victim.exists()
