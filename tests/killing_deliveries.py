"""A server killed between firing and delivery, again and again: each alert is told at least once, under one key.

In each round some alerts wait in the outbox when it starts, and a trainer sends the update at which a rule fires: it is
killed while the first are on their way and the last is judged, or is not yet.

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
from scalescope_server.rules.spec import Rule
from scalescope_server.store import tables
from scalescope_server.store.alert_records import DeliveryRow
from scalescope_server.store.channels import ChannelRow
from scalescope_server.store.engine import backend_of, open_store
from scalescope_server.store.notices import delivery_id, enter_deliveries
from scalescope_server.store.outbox import BROWSER
from scalescope_server.watching.book import spec_of
from sqlalchemy import Engine, func, select

from tests.batches import Dictation, batch
from tests.batches import hello as another
from tests.notices import notice
from tests.receiving import DEADLINE_S, SECRET, Receiver, receiving
from tests.serving import Address, hello, steps

SETTINGS = 'allow_targets = ["127.0.0.0/8"]\npublic_url = "https://scale.example.com"\n'
# A server is killed so soon after the update at which the rule fires.
LONGEST_S = 0.3
# Of one round, what waits when the server starts.
WAITING = 3
RULE = Rule("below one", "when scale < 1", channels=("chat",))
# What the built-in rules say of these runs is not asked for.
OURS = {RULE.name, notice().rule}


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
            found.keys += _enter(engine, f"channel {number}")
            receiver.hold.clear()
            so_far = len(receiver.received)
            with _serving(database, settings) as server:
                receiver.wait(so_far + 1)
                _fire(server.address, f"run-{number}")
                if draw.random() < 0.5:
                    # The answers are on their way: perhaps they are noted, perhaps not.
                    receiver.hold.set()
                time.sleep(draw.random() * LONGEST_S)
                server.process.kill()
            receiver.hold.set()
        with _serving(database, settings):
            _until_nothing_waits(engine, len(found.keys) + rounds)
        found.keys += _fired(engine)
        _count(receiver, found)
    return found


@contextmanager
def _prepared(database: str, receiver: Receiver, rounds: int) -> Iterator[Engine]:
    """A run, and for each round a channel, so that nothing waits for what was told before."""
    with closing(open_store(database)) as store:
        store.writer.append(batch(another(), Dictation().steps(0, 5))).result()
        config = {"url": receiver.url, "secret": SECRET}
        for name in ("chat", *(f"channel {number}" for number in range(rounds))):
            row = ChannelRow(name=name, kind="webhook", config=config, enabled=True, created_at=1.0)
            assert store.writer.add_channel(row).result()
        store.writer.add_rule(spec_of(RULE), time.time()).result()
    engine = backend_of(database).writing()
    try:
        yield engine
    finally:
        engine.dispose()


def _enter(engine: Engine, channel: str) -> list[str]:
    """Let alerts have fired: what the judge commits of them is in the outbox."""
    told = [notice(firing=firing) for firing in range(1, WAITING + 1)]
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
        enter_deliveries(connection, connection.execute(select(func.min(tables.run.c.key))).scalar_one(), rows)
    return keys


def _fire(server: Address, run: str) -> None:
    """Let a rule fire on a run of its own."""
    with server.trainer(hello(run, world_size=1)) as trainer:
        trainer.deliver(steps(0, 0, 3), steps(1, 3, 1, scale=[0.5]))


def _fired(engine: Engine) -> list[str]:
    """The keys under which it is told that the rule fires, on each run."""
    row = tables.alert.c
    alerts = select(row.key, tables.run.c.id).join(tables.run, tables.run.c.key == row.run).where(row.name == RULE.name)
    alerts = alerts.where(row.firings > 0)
    with engine.begin() as connection:
        found = connection.execute(alerts).all()
    return [delivery_id(alert, notice_key(notice(rule=RULE.name, run=run), "chat")) for alert, run in found]


@dataclass(frozen=True)
class _Server:
    process: subprocess.Popen[str]
    address: Address


@contextmanager
def _serving(database: str, settings: Path) -> Iterator[_Server]:
    command = [sys.executable, "-m", "scalescope.cli", "serve", "--port", "0"]
    command += ["--database", database, "--settings", str(settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            port = re.search(r":(\d+)/", process.stdout.readline())
            assert port is not None
            yield _Server(process, Address(int(port[1])))
        finally:
            process.kill()


def _until_nothing_waits(engine: Engine, fired: int) -> None:
    """Until all that has fired is judged and told."""
    row, ends = tables.delivery.c, time.monotonic() + DEADLINE_S * 2
    ours = select(row.state).where(row.rule.in_(OURS), row.channel != BROWSER)
    states: list[str] = []
    while time.monotonic() < ends:
        with engine.begin() as connection:
            states = list(connection.execute(ours).scalars())
        if len(states) >= fired and "waiting" not in states:
            return
        time.sleep(0.05)
    raise AssertionError(f"{fired} have fired, and the outbox has {Counter(states)}")


def _count(receiver: Receiver, found: Found) -> None:
    for received in receiver.received:
        assert received.is_signed
        found.contents.setdefault(received.key, set()).add(received.body)
        ours = [alert["key"] for alert in received.message["alerts"] if alert["rule"] in OURS]
        found.told.update(ours)
        found.messages[received.key] += bool(ours)


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
