"""The built-in rules in the rule book."""

from __future__ import annotations

from scalescope_server.rules.pack import built_in
from scalescope_server.store.writer import Writer
from scalescope_server.watching.book import spec_of
from scalescope_server.watching.notices import ended


def enter_pack(writer: Writer, at: float) -> int:
    """Bring them to this program's version; how many have changed. Those that a user has edited stay as they are."""
    pack = built_in()
    return writer.enter_pack([spec_of(rule) for rule in pack.rules], pack.version, at, ended).result()
