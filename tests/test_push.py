"""Pushing spool files over real sockets: repeatable, interruptible, and only to the right server."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from scalescope import push as push_module
from scalescope.errors import UsageError
from scalescope.push import push
from scalescope.session import Frame
from scalescope.settings import Settings, read_settings
from scalescope.spool import Header, SpoolFile
from scalescope.wire import Bye, Steps, encode
from scalescope_server.store.records import RunId

from tests.serving import Served
from tests.small_server import Shelf, free_port, hello, serving


def spooled(folder: Path, url: str, *, count: int = 10, rank: int = 0) -> Path:
    file = SpoolFile.create(folder, Header(url, hello(rank=rank)))
    for n in range(count):
        file.append(Frame(n, encode(Steps(sequence=n, first=n, count=1, at=bytes(8), columns={}))))
    file.append(Frame(count, encode(Bye(sequence=count, at=0.0, reason="finished", detail=""))))
    file.close()
    return file.path


def settings(url: str, folder: Path, token: str | None = None) -> Settings:
    return read_settings({"SCALESCOPE_SPOOL": str(folder)}, url=url, token=token)


def test_all_files_are_delivered_and_deleted(tmp_path: Path) -> None:
    shelf, out = Shelf(), io.StringIO()
    with serving(shelf) as server:
        path = spooled(tmp_path, server.url)
        assert push(tmp_path, settings(server.url, tmp_path), out) == 0
    assert shelf.ledger.ranges == ((0, 10),)
    assert [h.run for h in shelf.hellos] == ["run"]
    assert list(tmp_path.iterdir()) == []
    assert out.getvalue() == f"{path.name}: 11 records delivered to {server.url}\n"


def test_more_than_one_window_is_delivered(tmp_path: Path) -> None:
    shelf = Shelf()
    with serving(shelf) as server:
        file = SpoolFile.create(tmp_path, Header(server.url, hello()))
        for n in range(12):
            file.append(Frame(n, encode(Steps(sequence=n, first=n, count=1, at=bytes(2**20), columns={}))))
        file.close()
        assert push(tmp_path, settings(server.url, tmp_path), io.StringIO()) == 0
    assert shelf.ledger.ranges == ((0, 11),)


def test_a_dead_server_leaves_the_file_and_a_second_push_delivers_it(tmp_path: Path) -> None:
    shelf, out = Shelf(), io.StringIO()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    path = spooled(tmp_path, url)
    assert push(tmp_path, settings(url, tmp_path), out) == 1
    assert f"{path.name}: not delivered to {url}: " in out.getvalue()
    assert "1 of 1 files are left" in out.getvalue()
    with serving(shelf, port=port):
        assert push(tmp_path, settings(url, tmp_path), out) == 0
    assert shelf.ledger.ranges == ((0, 10),)


def test_a_push_cut_off_in_the_middle_is_finished_by_the_next_without_repetition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf, out = Shelf(), io.StringIO()
    with serving(shelf, manner="no acks") as server, monkeypatch.context() as patch:
        patch.setattr(push_module, "STALLED_S", 0.3)
        path = spooled(tmp_path, server.url)
        assert push(tmp_path, settings(server.url, tmp_path), out) == 1
        assert "it acknowledged nothing for 0.3 s" in out.getvalue()
        assert path.exists()
    with serving(shelf, port=server.port):
        assert push(tmp_path, settings(server.url, tmp_path), out) == 0
    assert (shelf.ledger.received, shelf.duplicates, path.exists()) == (11, 0, False)


def test_a_file_that_comes_again_is_not_sent_again(tmp_path: Path) -> None:
    shelf = Shelf()
    with serving(shelf) as server:
        path = spooled(tmp_path, server.url)
        copy = path.read_bytes()
        assert push(tmp_path, settings(server.url, tmp_path), io.StringIO()) == 0
        path.write_bytes(copy)
        assert push(tmp_path, settings(server.url, tmp_path), io.StringIO()) == 0
    assert (shelf.ledger.received, shelf.duplicates) == (11, 0)


def test_of_a_damaged_file_all_that_is_intact_is_delivered_and_the_damage_told(tmp_path: Path) -> None:
    shelf, out = Shelf(), io.StringIO()
    with serving(shelf) as server:
        path = spooled(tmp_path, server.url)
        data = bytearray(path.read_bytes())
        data[len(data) // 2 : len(data) // 2 + 30] = bytes(30)
        path.write_bytes(data)
        assert push(tmp_path, settings(server.url, tmp_path), out) == 0
    assert 8 <= shelf.ledger.received < 11
    assert shelf.ledger.missing == 11 - shelf.ledger.received
    assert f"{shelf.ledger.received} records delivered to {server.url}; " in out.getvalue()
    assert out.getvalue().endswith(" bytes of it are damaged or cut off, and lost\n")


def test_the_damage_at_a_files_very_end_is_told_as_well(tmp_path: Path) -> None:
    shelf, out = Shelf(), io.StringIO()
    with serving(shelf) as server:
        path = spooled(tmp_path, server.url)
        path.write_bytes(path.read_bytes()[:-3])
        size = path.stat().st_size
        assert push(tmp_path, settings(server.url, tmp_path), out) == 0
    assert shelf.ledger.received == 10
    told = re.search(
        r": 10 records delivered to .*; (\d+) bytes of it are damaged or cut off, and lost\n$", out.getvalue()
    )
    assert told is not None
    assert 16 < int(told[1]) < size


def test_a_file_that_holds_nothing_is_removed_and_told(tmp_path: Path) -> None:
    out = io.StringIO()
    path = spooled(tmp_path, "http://127.0.0.1:1")
    path.write_bytes(path.read_bytes()[:20])
    assert push(tmp_path, settings("http://127.0.0.1:1", tmp_path), out) == 0
    assert "nothing is in it; the process that began it was killed at once; removed" in out.getvalue()
    assert not path.exists()


def test_a_file_that_holds_nothing_and_may_not_be_removed_keeps_no_other(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, whole = spooled(tmp_path, "http://127.0.0.1:1"), spooled(tmp_path, served.url, count=10)
    begun.write_bytes(begun.read_bytes()[:20])
    unlink = Path.unlink

    def refuse(path: Path, *args: bool, **kwargs: bool) -> None:
        if path == begun:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(Path, "unlink", refuse)
    out = io.StringIO()
    assert push(tmp_path, settings(served.url, tmp_path), out) == 1
    assert "it cannot be removed: Permission denied" in out.getvalue()
    assert begun.exists()
    assert not whole.exists()


def pushed(folder: Path, url: str) -> int:
    return push(folder, settings(url, folder), io.StringIO())


def test_the_same_file_pushed_twice_at_once_is_stored_once(served: Served, tmp_path: Path) -> None:
    path = spooled(tmp_path / "one", served.url, count=300)
    twin = tmp_path / "two" / path.name
    twin.parent.mkdir()
    twin.write_bytes(path.read_bytes())
    with ThreadPoolExecutor() as pushing:
        # The later of the two takes over where the earlier has not come to its end, which then says so.
        list(pushing.map(lambda file: pushed(file.parent, served.url), (path, twin)))
    assert [pushed(file.parent, served.url) for file in (path, twin)] == [0, 0]
    ledger = served.store.reader.run(RunId("run")).ledger[0]
    assert (ledger.received, ledger.lost) == (301, 0)
    steps = served.store.reader.series("run", ["attempted"])[1]["attempted"].step
    assert steps.tolist() == list(range(300))


def test_a_file_that_another_push_delivers_meanwhile_is_delivered(tmp_path: Path) -> None:
    out = io.StringIO()
    (tmp_path / "a.spool").symlink_to(tmp_path / "delivered")
    assert push(tmp_path, settings("http://a", tmp_path), out) == 0
    assert out.getvalue() == "a.spool: gone meanwhile, another push has delivered it\n"


@pytest.mark.skipif(sys.platform == "win32", reason="there an interrupt goes to the whole console")
def test_an_interrupted_push_says_what_is_left_and_leaves_it(tmp_path: Path) -> None:
    shelf = Shelf()
    with serving(shelf, manner="no acks") as server:
        path = spooled(tmp_path, server.url)
        command = [sys.executable, "-m", "scalescope.cli", "push", str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as pushing:
            shelf.until(lambda s: s.ledger.received == 11)
            pushing.send_signal(signal.SIGINT)
            out, err = pushing.communicate(timeout=60)
    assert (pushing.returncode, err) == (1, "scalescope: interrupted\n")
    assert out == f"{path.name}: 11 of 11 records are left; push again later\n"
    assert path.exists()


def test_each_file_goes_only_to_the_server_it_was_written_for(tmp_path: Path) -> None:
    ours, theirs = Shelf(), Shelf()
    with serving(ours) as one, serving(theirs) as other:
        spooled(tmp_path, one.url)
        spooled(tmp_path, other.url, rank=1, count=3)
        assert push(tmp_path, settings(one.url, tmp_path), io.StringIO()) == 0
    assert (ours.ledger.received, theirs.ledger.received) == (11, 4)


def test_the_token_is_shown_only_to_the_server_it_is_for(tmp_path: Path) -> None:
    shelf, out = Shelf(), io.StringIO()
    with serving(shelf, token="secret") as server:
        spooled(tmp_path, server.url)
        assert push(tmp_path, settings("http://elsewhere:1", tmp_path, "secret"), out) == 1
        assert f"set SCALESCOPE_TOKEN to the token of that server and SCALESCOPE_URL to {server.url}" in out.getvalue()
        assert push(tmp_path, settings(server.url, tmp_path, "secret"), out) == 0
    assert shelf.ledger.received == 11


def test_what_a_server_wants_of_push_is_told_in_full(
    serve: Callable[..., AbstractContextManager[Served]], tmp_path: Path
) -> None:
    out, spool = io.StringIO(), tmp_path / "spool"
    spool.mkdir()
    with serve(token="secret") as server:
        spooled(spool, server.url)
        assert push(spool, settings("http://elsewhere:1", tmp_path, "secret"), out) == 1
        wanted = f"; set SCALESCOPE_TOKEN to the token of that server and SCALESCOPE_URL to {server.url}\n"
        assert wanted in out.getvalue()
    with serve() as server:
        spooled(spool, server.url, rank=1)
        with server.trainer(hello(rank=1)):
            pass
        assert server.call("DELETE", "/api/runs/run").status == 204
        assert push(spool, settings(server.url, tmp_path), out) == 1
    assert "was deleted on the server" in out.getvalue()
    assert "names the cause and SCALESCOPE_URL" not in out.getvalue()


def test_a_file_in_use_or_not_ours_is_told_and_the_others_delivered(tmp_path: Path) -> None:
    shelf, out = Shelf(), io.StringIO()
    with serving(shelf) as server:
        running = SpoolFile.create(tmp_path, Header(server.url, hello(rank=2)))
        (tmp_path / "a.spool").write_text("hello")
        spooled(tmp_path, server.url)
        assert push(tmp_path, settings(server.url, tmp_path), out) == 1
        running.close()
    assert "in use by a training that still runs" in out.getvalue()
    assert "a.spool: " in out.getvalue()
    assert "2 of 3 files are left" in out.getvalue()
    assert shelf.ledger.received == 11


def test_a_file_that_holds_nothing_intact_is_deleted(tmp_path: Path) -> None:
    SpoolFile.create(tmp_path, Header("http://127.0.0.1:1", hello())).close()
    assert push(tmp_path, settings("http://127.0.0.1:1", tmp_path), io.StringIO()) == 0
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_push_is_said(tmp_path: Path) -> None:
    out = io.StringIO()
    folder = tmp_path / "never made"
    assert push(folder, settings("http://a", folder), out) == 0
    assert out.getvalue() == f"nothing to push in {folder}\n"


def test_a_folder_that_is_not_there_is_bad_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a folder with files of undelivered data"):
        push(tmp_path / "typo", settings("http://a", tmp_path), io.StringIO())
