"""``scalescope push``: deliver what trainings could not, each file to the server it was written for.

Safe to repeat and to interrupt: the server stores each record once, and a file is deleted only when the
server has acknowledged all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TextIO

from scalescope.connection import TROUBLE, UNAUTHORIZED_ADVICE, Connection, Peer, asks_for_token, final_refusal, reason
from scalescope.errors import CommandError, UsageError
from scalescope.progress import ProgressLine
from scalescope.settings import Settings
from scalescope.spool import SUFFIX, SpoolBegunError, SpoolError, SpoolFile

# A server that takes nothing for so long is not going to.
STALLED_S = 30.0


def push(folder: Path, settings: Settings, out: TextIO) -> int:
    """Deliver every spool file in ``folder``; lines about each go to ``out``. The answer is the exit code.

    Raises:
        UsageError: if there is no such folder, unless it is the default one.
    """
    if not folder.is_dir() and folder != settings.spool:
        raise UsageError(f"{folder}: expected a folder with files of undelivered data, got none")
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    if not paths:
        print(f"nothing to push in {folder}", file=out)
    left = [
        path for number, path in enumerate(paths, 1) if not _delivered(path, f"{number}/{len(paths)}", settings, out)
    ]
    if left:
        print(f"{len(left)} of {len(paths)} files are left in {folder}; push again later", file=out)
    return 1 if left else 0


def _delivered(path: Path, place: str, settings: Settings, out: TextIO) -> bool:
    """Whether all of a file is stored; ``place``: which of how many it is."""
    progress = ProgressLine(out, 0, f"records of file {place}")
    try:
        with closing(SpoolFile.open(path)) as file:
            count = progress.total = file.remaining
            try:
                if count:
                    asyncio.run(deliver(file, _peer(file, settings), lambda: progress.show(count - file.remaining)))
            except KeyboardInterrupt:
                progress.finish(f"{path.name}: {file.remaining} of {count} records are left; push again later")
                raise
            file.delete()
    except FileNotFoundError:
        progress.finish(f"{path.name}: gone meanwhile, another push has delivered it")
        return True
    except SpoolBegunError as error:
        return _removed(path, str(error), progress)
    except (CommandError, SpoolError, OSError) as error:
        progress.finish(f"{path.name}: {error}")
        return False
    damaged = f"; {file.damaged} bytes of it are damaged or cut off, and lost" if file.damaged else ""
    progress.finish(f"{path.name}: {count} records delivered to {file.header.url}{damaged}")
    return True


def _removed(path: Path, why: str, progress: ProgressLine) -> bool:
    """Whether a file that holds nothing is gone."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        progress.finish(f"{why}; it cannot be removed: {error.strerror}")
        return False
    progress.finish(f"{why}; removed")
    return True


async def deliver(file: SpoolFile, peer: Peer, on_progress: Callable[[], None]) -> None:
    """Send the records of ``file`` until all are acknowledged; ``on_progress`` is called as they are.

    Raises:
        CommandError: if the server cannot be reached, refuses, or acknowledges nothing for half a minute.
    """
    done = asyncio.Event()

    def on_change() -> None:
        on_progress()
        if not file.remaining:
            done.set()

    connection = Connection(file.header.hello, file, asyncio.Event(), on_change=on_change)
    try:
        async with asyncio.TaskGroup() as group:
            talking = group.create_task(connection.run(peer))
            await _until_done(done, file)
            talking.cancel()
    except* TROUBLE as troubles:
        # One that closes as soon as it has everything is no failure.
        if file.remaining:
            raise _failure(peer, troubles) from troubles


async def _until_done(done: asyncio.Event, file: SpoolFile) -> None:
    while not done.is_set():
        before = file.remaining
        try:
            async with asyncio.timeout(STALLED_S):
                await done.wait()
        except TimeoutError:
            if file.remaining == before:
                raise TimeoutError(f"it acknowledged nothing for {STALLED_S:g} s") from None


def _peer(file: SpoolFile, settings: Settings) -> Peer:
    # The token belongs to one server: no other gets to see it.
    url = file.header.url
    return Peer(url, settings.token if url == settings.url else None)


def _failure(peer: Peer, trouble: BaseException) -> CommandError:
    while isinstance(trouble, BaseExceptionGroup):
        trouble = trouble.exceptions[0]
    advice = final_refusal(trouble)
    if peer.token is None and asks_for_token(trouble):
        advice = f"{UNAUTHORIZED_ADVICE} and SCALESCOPE_URL to {peer.url}"
    return CommandError(f"not delivered to {peer.url}: {reason(trouble)}" + (f"; {advice}" if advice else ""))
