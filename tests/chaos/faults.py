"""The faults: each plays one round, at random within what it says, and leaves everything running."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.scene import Scene

# What a trainer holds in memory where it is to meet its spool at once.
MEMORY_BYTES = 4096
DISK_BYTES = 16_384


def kill_server(scene: Scene) -> None:
    """The server is killed once or twice, and comes back in a moment or after the training has ended."""
    scene.begin()
    for share in sorted(scene.chance.uniform(0.1, 0.8) for _ in range(scene.chance.randint(1, 2))):
        scene.at(share)
        scene.stage.server.kill()
        scene.end() if scene.maybe(0.2) else scene.soon()
        scene.stage.server.start()


def kill_trainer(scene: Scene) -> None:
    """The training is killed, with the server there or away; sometimes it is started again."""
    scene.begin(memory_bytes=MEMORY_BYTES)
    away = scene.maybe()
    if away:
        scene.at(scene.chance.uniform(0.1, 0.5))
        scene.stage.server.kill()
    scene.at(scene.chance.uniform(0.5, 0.9))
    scene.kill()
    if away:
        scene.stage.server.start()
    again = scene.maybe()
    if again:
        scene.begin()
    scene.push()


def kill_database(scene: Scene) -> None:
    """The database, or one of its processes, is killed and comes back; the server answers all the while."""
    scene.begin()
    scene.at(scene.chance.uniform(0.1, 0.6))
    with scene.healthy():
        if scene.maybe(0.3):
            scene.stage.database.wound()
        else:
            scene.stage.database.kill()
            scene.soon(0.1, 1.5)
            scene.stage.database.start()
        scene.soon(0.1, 0.5)


def cut(scene: Scene) -> None:
    """The line is cut in the middle of frames, of the trainer's and of the server's."""
    scene.begin()
    for share in sorted(scene.chance.uniform(0.05, 0.9) for _ in range(scene.chance.randint(2, 6))):
        scene.at(share)
        scene.stage.proxy.cut(sent=scene.maybe(0.7), short_by=scene.chance.randint(1, 64)).wait(5)


def full_disk(scene: Scene) -> None:
    """The disk of the database is full for a while; the server answers all the while."""
    scene.begin()
    scene.at(scene.chance.uniform(0.1, 0.6))
    with scene.healthy(), scene.stage.database.full(scene.stage.server.pid):
        scene.soon(0.3, 2.0)


def full_spool(scene: Scene) -> None:
    """The server is away and the trainer's disk full: what was given up is counted, and only that is missing."""
    scene.drops = True
    with small_disk(scene.spool) as mounted:
        scene.begin(memory_bytes=MEMORY_BYTES, disk_bytes=0 if mounted else DISK_BYTES)
        scene.at(scene.chance.uniform(0.1, 0.3))
        scene.stage.server.kill()
        scene.at(scene.chance.uniform(0.6, 0.9))
        scene.stage.server.start()
        scene.end()
        scene.push()


def locked(scene: Scene) -> None:
    """Another process locks the database; the server answers all the while."""
    scene.begin(pause_s=1.5 * scene.locked_s / scene.updates)
    scene.at(0.1)
    with scene.healthy(), scene.stage.database.locked():
        scene.soon(scene.locked_s, scene.locked_s)


FAULTS: dict[str, Callable[[Scene], None]] = {
    "kill-server": kill_server,
    "kill-trainer": kill_trainer,
    "kill-database": kill_database,
    "cut": cut,
    "full-disk": full_disk,
    "full-spool": full_spool,
    "locked": locked,
}


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Make ``folder`` a file system of its own that is soon full; False where that is not allowed."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)
