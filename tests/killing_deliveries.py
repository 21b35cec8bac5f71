"""A server killed between firing and delivery, again and again: each alert is told at least once, under one key.

``python -m tests.killing_deliveries --rounds 20`` plays more rounds than the tests do, and says what it found.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from scalescope_server.delivery.notice import notice_key
from scalescope_server.store import tables
from scalescope_server.store.alert_records import DeliveryRow
from scalescope_server.store.channels import ChannelRow
from scalescope_server.store.engine import backend_of, open_store
from scalescope_server.store.notices import enter_deliveries
from sqlalchemy import Engine, select

from tests.batches import Dictation, batch, hello
from tests.notices import notice
from tests.receiving import DEADLINE_S, SECRET, Receiver, receiving

SETTINGS = 'allow_targets = ["127.0.0.0/8"]\npublic_url = "https://scale.example.com"\n'
# Of one round, fired while no server runs, and while one does.
FIRED_BEFORE, FIRED_DURING = 2, 3


@dataclass
class Found:
    """``keys``: of what has fired. ``told``: how often each alert was told, by its key; ``messages`` by theirs."""

    keys: list[str] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    contents: dict[str, set[bytes]] = field(default_factory=dict)

    def check(self) -> None:
        assert set(self.told) == set(self.keys), "an alert was invented, or not told"
        assert all(len(content) == 1 for content in self.contents.values()), "a key with two contents"


def play(folder: Path, rounds: int, seed: int) -> Found:
    """So many kills, each with something on its way."""
    draw, found = random.Random(seed), Found()
    database, settings = str(folder / "scalescope.db"), folder / "settings.toml"
    settings.write_text(SETTINGS)
    settings.chmod(0o600)
    with receiving() as receiver, _prepared(database, receiver, rounds) as engine:
        for number in range(rounds):
            found.keys += _fire(engine, f"{number} before", FIRED_BEFORE)
            receiver.hold.clear()
            with _serving(database, settings) as server:
                so_far = len(receiver.received)
                receiver.wait(so_far + 1)
                found.keys += _fire(engine, f"{number} during", FIRED_DURING)
                if draw.random() < 0.5:
                    # The answer is on its way: perhaps it is noted, perhaps not.
                    receiver.hold.set()
                server.kill()
            receiver.hold.set()
        with _serving(database, settings):
            _until_nothing_waits(engine)
        _count(receiver, found)
    return found


@contextmanager
def _prepared(database: str, receiver: Receiver, rounds: int) -> Iterator[Engine]:
    """A run, and for what fires at once a channel each, so that nothing waits for what was told before."""
    with closing(open_store(database)) as store:
        store.writer.append(batch(hello(), Dictation().steps(0, 5))).result()
        config = {"url": receiver.url, "secret": SECRET}
        for name in (f"{number} {when}" for number in range(rounds) for when in ("before", "during")):
            row = ChannelRow(name=name, kind="webhook", config=config, enabled=True, created_at=1.0)
            assert store.writer.add_channel(row).result()
    engine = backend_of(database).writing()
    try:
        yield engine
    finally:
        engine.dispose()


def _fire(engine: Engine, channel: str, count: int) -> list[str]:
    """Let alerts fire: what the judge commits of them is in the outbox."""
    told = [notice(firing=firing) for firing in range(1, count + 1)]
    keys = [notice_key(one, channel) for one in told]
    rows = [
        DeliveryRow(
            id=key,
            channel=channel,
            rule=one.rule,
            firing=one.firing,
            happened=one.happened,
            notice=msgspec.to_builtins(one),
            at=one.at,
        )
        for key, one in zip(keys, told, strict=True)
    ]
    with engine.begin() as connection:
        enter_deliveries(connection, connection.execute(select(tables.run.c.key)).scalar_one(), rows)
    return keys


@contextmanager
def _serving(database: str, settings: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "scalescope.cli", "serve", "--port", "0"]
    command += ["--database", database, "--settings", str(settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert re.search(r":\d+/", process.stdout.readline())
            yield process
        finally:
            process.kill()


def _until_nothing_waits(engine: Engine) -> None:
    row, ends = tables.delivery.c, time.monotonic() + DEADLINE_S * 2
    while time.monotonic() < ends:
        with engine.begin() as connection:
            if not connection.execute(select(row.key).where(row.state == "waiting").limit(1)).all():
                return
        time.sleep(0.05)
    raise AssertionError("something still waits")


def _count(receiver: Receiver, found: Found) -> None:
    for received in receiver.received:
        assert received.is_signed
        found.messages[received.key] += 1
        found.contents.setdefault(received.key, set()).add(received.body)
        found.told.update(alert["key"] for alert in received.message["alerts"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = play(Path(folder), arguments.rounds, arguments.seed)
    found.check()
    again = sum(count > 1 for count in found.messages.values())
    sys.stdout.write(
        f"{arguments.rounds} kills: {len(found.keys)} alerts in {len(found.messages)} messages, "
        f"{again} of them sent again under their key, none lost, none invented\n"
    )


if __name__ == "__main__":
    main()
