"""What the rooms above ask of outbox and channels: parts of the store's reader and writer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from scalescope_server.store.announced import Announcement, read_announced
from scalescope_server.store.channels import (
    ChannelRow,
    Traffic,
    add_channel,
    delete_channel,
    list_channels,
    switch_channel,
    traffic,
)
from scalescope_server.store.outbox import Ending, Planner, Taken, due_in, let_go, settle, take
from scalescope_server.store.records import RunId
from scalescope_server.store.snapshots import Snapshots, found_run
from scalescope_server.store.transaction import Transaction

Result = TypeVar("Result")


class OutboxReader(Snapshots):
    """Part of :class:`~scalescope_server.store.reader.Reader`, whose words hold here too."""

    def deliveries_due_in(self) -> float | None:
        """Seconds until something can be taken to be delivered, 0 or less where it can be now; None: nothing waits."""
        with self.reading() as connection:
            return due_in(connection)

    def announced(self, run: RunId) -> list[Announcement]:
        """What pages are to be told of a run's alerts, the newest first. :class:`NotFound`."""
        with self.reading() as connection:
            return read_announced(connection, found_run(connection, run).key)

    def channels(self) -> list[ChannelRow]:
        """All channels by name, with their secrets: not to be shown to anybody."""
        with self.reading() as connection:
            return list_channels(connection)

    def traffic(self) -> dict[str, Traffic]:
        """What of each channel's outbox waits, has arrived, and was given up."""
        with self.reading() as connection:
            return traffic(connection)


class OutboxWriter(ABC):
    """Part of :class:`~scalescope_server.store.writer.Writer`, whose words hold here too."""

    def take_deliveries(self, holder: str, plan: Planner) -> Future[list[Taken]]:
        """Let ``holder`` have what is due, as ``plan`` says, for as long as a lease lasts."""
        return self._submit(lambda transaction: take(transaction.connection, holder, plan))

    def settle_deliveries(self, holder: str, endings: Sequence[Ending]) -> Future[None]:
        """Note what became of attempts of ``holder``, unless another server has taken them over since."""
        return self._submit(lambda transaction: settle(transaction.connection, holder, endings))

    def let_deliveries_go(self, holder: str) -> Future[None]:
        """Let others have at once what ``holder`` was about to send."""
        return self._submit(lambda transaction: let_go(transaction.connection, holder))

    def add_channel(self, channel: ChannelRow) -> Future[bool]:
        """Whether it was added: not where one has its name already, or there are too many."""
        return self._submit(lambda transaction: add_channel(transaction.connection, channel))

    def switch_channel(self, name: str, *, enabled: bool) -> Future[bool]:
        """Whether there is such a channel, which is on or off from now on."""
        return self._submit(lambda transaction: switch_channel(transaction.connection, name, enabled=enabled))

    def delete_channel(self, name: str) -> Future[bool]:
        """Whether there was one. What waits to be told by it will fail, and say so."""
        return self._submit(lambda transaction: delete_channel(transaction.connection, name))

    @abstractmethod
    def _submit(self, work: Callable[[Transaction], Result]) -> Future[Result]:
        """Put ``work`` in line."""
