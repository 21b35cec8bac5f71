"""Where nothing is sent: by address, whatever form it comes in, and what the settings allow."""

from __future__ import annotations

import ipaddress

import pytest
from scalescope_server.delivery.addresses import parse_network, refusal


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("0.0.0.0", "this machine"),
        ("10.1.2.3", "private"),
        ("172.31.255.255", "private"),
        ("192.168.0.1", "private"),
        ("100.64.0.1", "carrier"),
        ("100.127.255.255", "carrier"),
        ("169.254.169.254", "metadata"),
        ("100.100.100.200", "metadata"),
        ("fd00:ec2::254", "metadata"),
        ("168.63.129.16", "cloud"),
        ("169.254.0.1", "link-local"),
        ("224.0.0.1", "multicast"),
        ("239.255.255.250", "multicast"),
        ("255.255.255.255", "broadcast"),
        ("240.0.0.1", "reserved"),
        ("192.0.2.1", "documentation"),
        ("198.18.0.1", "benchmarks"),
        ("::", "this machine"),
        ("::1", "loopback"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("fc00::1", "private"),
        ("fdff::1", "private"),
        ("fec0::1", "private"),
        ("ff02::1", "multicast"),
        ("2001:db8::1", "documentation"),
        ("2001::1", "reserved"),
        ("64:ff9b:1::a00:1", "NAT64"),
        ("4000::1", "reserved"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:a9fe:a9fe", "metadata"),
        ("::127.0.0.1", "reserved"),
        ("64:ff9b::10.0.0.1", "private"),
        ("64:ff9b::a9fe:a9fe", "metadata"),
        ("2002:7f00:1::", "loopback"),
        ("2002:c0a8:1::1", "private"),
    ],
)
def test_what_only_the_server_can_reach_is_refused_and_named(address: str, what: str) -> None:
    assert what in (refusal(address) or "")


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.63.255.255", "100.128.0.1", "2606:4700::1111", "64:ff9b::8.8.8.8"],
)
def test_public_addresses_may_be_sent_to(address: str) -> None:
    assert refusal(address) is None


def test_python_calls_nothing_public_that_is_refused_and_the_other_way_round() -> None:
    for network in ipaddress.ip_network("0.0.0.0/0").subnets(new_prefix=12):
        address = network.network_address + 1
        # What Python's own table has beside ours is of the same registry.
        assert (refusal(str(address)) is None) == (address.is_global and not address.is_multicast), address


@pytest.mark.parametrize("text", ["localhost", "", "127.1", "0x7f.0.0.1", "2130706433", "1.2.3.4:80"])
def test_what_is_no_address_is_refused(text: str) -> None:
    assert "no address" in (refusal(text) or "")


def test_the_settings_allow_networks_in_any_form_of_their_addresses_and_no_others() -> None:
    allowed = [parse_network("127.0.0.1"), parse_network("10.1.0.0/16"), parse_network("fd12::/16")]
    for address in ("127.0.0.1", "::ffff:127.0.0.1", "10.1.255.1", "64:ff9b::10.1.0.1", "fd12::5"):
        assert refusal(address, allowed) is None
    for address in ("127.0.0.2", "10.2.0.1", "fd13::1", "::1"):
        assert refusal(address, allowed) is not None


@pytest.mark.parametrize("text", ["10.0.0.1/8", "lab", "10.0.0.0/33", ""])
def test_a_network_of_the_settings_is_one_or_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"IPv4 or IPv6|host bits"):
        parse_network(text)
