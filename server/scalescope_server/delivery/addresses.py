"""Which addresses a channel may be sent to: those of the public internet, and what the settings allow beside them.

Otherwise whoever may set up a channel could let the server talk to what only the server can reach: its own ports, the
machines beside it, the metadata service of a cloud. An address is checked, never a name: what a name means may change.

Sources: the special-purpose registries of IANA for IPv4 and IPv6 (RFC 6890), RFC 6598 (carriers' shared space),
RFC 6052 and RFC 8215 (NAT64), RFC 4291 (IPv4-mapped), RFC 3056 (6to4), RFC 4380 (Teredo).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# By name, so that a refusal says what the address is. The first that matches is told.
_REFUSED: tuple[tuple[str, str], ...] = (
    ("169.254.169.254/32", "a cloud's metadata service"),
    ("100.100.100.200/32", "a cloud's metadata service"),
    ("168.63.129.16/32", "a cloud's own service"),
    ("fd00:ec2::254/128", "a cloud's metadata service"),
    ("fd20:ce::254/128", "a cloud's metadata service"),
    ("0.0.0.0/8", "this machine"),
    ("127.0.0.0/8", "this machine (loopback)"),
    ("10.0.0.0/8", "a private network"),
    ("172.16.0.0/12", "a private network"),
    ("192.168.0.0/16", "a private network"),
    ("100.64.0.0/10", "a carrier's shared network"),
    ("169.254.0.0/16", "link-local"),
    ("224.0.0.0/4", "multicast"),
    ("255.255.255.255/32", "broadcast"),
    ("240.0.0.0/4", "reserved"),
    ("192.0.0.0/24", "reserved"),
    ("192.88.99.0/24", "reserved"),
    ("192.0.2.0/24", "for documentation"),
    ("198.51.100.0/24", "for documentation"),
    ("203.0.113.0/24", "for documentation"),
    ("198.18.0.0/15", "for benchmarks"),
    ("::/128", "this machine"),
    ("::1/128", "this machine (loopback)"),
    ("fe80::/10", "link-local"),
    ("fc00::/7", "a private network"),
    ("fec0::/10", "a private network"),
    ("ff00::/8", "multicast"),
    ("64:ff9b:1::/48", "a network's own NAT64"),
    ("2001:db8::/32", "for documentation"),
    ("3fff::/20", "for documentation"),
    ("2001::/23", "reserved"),
)
REFUSED = tuple((ipaddress.ip_network(network), what) for network, what in _REFUSED)
# All that is given out of IPv6 so far.
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_6TO4 = ipaddress.IPv6Network("2002::/16")


def refusal(address: str, allowed: Sequence[Network] = ()) -> str | None:
    """Why nothing may be sent to ``address`` (numeric), None where it may. ``allowed``: what the settings add.

    An IPv4 address inside an IPv6 one (mapped, NAT64, 6to4) is looked at as what it leads to, by what is allowed too.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return f"{address!r} is no address"
    embedded = _embedded(found)
    if any(_is_in(each, network) for each in (found, embedded) if each is not None for network in allowed):
        return None
    what = _what(found if embedded is None else embedded)
    return None if what is None else f"{address} is {what}"


def is_numeric(host: str) -> bool:
    """Whether ``host`` is an address itself, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def parse_network(text: str) -> Network:
    """An address or a network ("10.1.0.0/16") of the settings. Raises :class:`ValueError`."""
    return ipaddress.ip_network(text.strip())


def _what(address: Address) -> str | None:
    for network, what in REFUSED:
        if _is_in(address, network):
            return what
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_V6:
        return "reserved"
    return None


def _is_in(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 one leads to, if it leads to one."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if address in _6TO4:
        return ipaddress.IPv4Address((int(address) >> 80) & 0xFFFF_FFFF)
    return None
