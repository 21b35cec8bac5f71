"""From a channel's name to the way out: webhook, service or command."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scalescope_server.delivery import apprising, command, webhook
from scalescope_server.delivery.addresses import Network
from scalescope_server.delivery.channels import BadChannelError, Config, Webhook, config_of
from scalescope_server.delivery.command import Command
from scalescope_server.delivery.messages import Message
from scalescope_server.delivery.outcome import Outcome
from scalescope_server.delivery.targets import Resolve, Trust, parse_target, resolve, system_trust
from scalescope_server.store.channels import ChannelRow


@dataclass(frozen=True, slots=True)
class Sender:
    """``allowed``: networks that messages may go to beside the public ones. ``clock``: seconds since the epoch."""

    allowed: tuple[Network, ...] = ()
    commands: Mapping[str, Command] = field(default_factory=dict)
    clock: Callable[[], float] = time.time
    resolve: Resolve = resolve
    trust: Trust = system_trust

    async def send(
        self, name: str, channels: Mapping[str, ChannelRow], message: Message, reached: frozenset[str] = frozenset()
    ) -> Outcome:
        """Send ``message`` to the channel called ``name``: a command of the settings, else one of ``channels``.

        ``reached``: those of its targets that have it already.
        """
        if (found := self.commands.get(name)) is not None:
            return await command.run(found, message)
        row = channels.get(name)
        if row is None:
            return Outcome(f"there is no channel {name!r} any more", final=True)
        if not row.enabled:
            return Outcome(f"the channel {name!r} is switched off", final=True)
        try:
            config = config_of(row.kind, row.config)
        except BadChannelError as error:
            return Outcome(str(error), final=True)
        return await self._send(config, message, reached)

    async def _send(self, config: Config, message: Message, reached: frozenset[str]) -> Outcome:
        if not isinstance(config, Webhook):
            return await apprising.tell(config.url, message, allowed=self.allowed, reached=reached)
        return await webhook.post(
            parse_target(config.url),
            config.secret,
            message,
            now=self.clock(),
            allowed=self.allowed,
            resolve=self.resolve,
            trust=self.trust,
        )
