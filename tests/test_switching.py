"""Guests of one network on one host: bridging, neighbours, and what a guest may not pretend."""

import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.dhcp6 import DHCP6_Advertise
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import (
    ICMPv6ND_NA,
    ICMPv6ND_RA,
    ICMPv6ND_Redirect,
    ICMPv6NDOptDstLLAddr,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
)
from scapy.layers.l2 import ARP, LLC, SNAP, Dot1Q, Dot3, Ether

from lab import RawPort, eventually
from lab.silence import unwanted
from lab.topology import GATEWAY_MAC, SEATS, host_config, one_host, tap

A1, A2 = SEATS["a1"], SEATS["a2"]


def test_guests_of_a_network_reach_each_other_and_their_gateway(lab):
    _, (a1, a2) = one_host(lab, "a1", "a2")
    for address in (A2.address, A2.address6, "10.1.1.254", "fd00:1::ffff"):
        a1.expect_ping(address)
    a2.expect_ping(A1.address)
    # Bridged inside a network: nobody counts the TTL down.
    assert "ttl=64" in a1.expect_ping(A2.address, 1)


def test_networks_are_apart(lab):
    _, (a1, a3) = one_host(lab, "a1", "a3")
    a1.expect_ping("10.1.1.254")
    a1.expect_no_ping(SEATS["a3"].address, 2)
    a3.expect_no_ping(A1.address, 2)


def test_known_neighbours_are_answered_without_a_broadcast(lab):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    with RawPort(a2.namespace, a2.device) as seen:
        a1.expect_ping(A2.address)
        a1.expect_ping(A2.address6)
        requests = unwanted(seen, A2, lambda frame: ARP in Ether(frame) and Ether(frame).dst == "ff:ff:ff:ff:ff:ff")
    asked = [Ether(frame)[ARP] for frame in requests]  # but for the announcement of a1
    assert not [arp.summary() for arp in asked if arp.psrc == A1.address and arp.pdst != A1.address]
    assert A2.mac in a1.run(["ip", "neigh", "show", A2.address]).stdout


def test_broadcast_reaches_every_other_guest_of_the_network_only(lab):
    _, (a1, a2, a3) = one_host(lab, "a1", "a2", "a3")
    frame = (
        Ether(src=A1.mac, dst="ff:ff:ff:ff:ff:ff")
        / IP(src=A1.address, dst="10.1.1.255")
        / UDP(dport=9999)
        / b"everyone"
    )
    wanted = lambda seen: b"everyone" in seen
    with (
        RawPort(a1.namespace, a1.device) as one,
        RawPort(a2.namespace, a2.device) as two,
        RawPort(a3.namespace, a3.device) as three,
    ):
        one.send(frame)
        two.expect(wanted, "broadcast")
        assert not unwanted(three, SEATS["a3"], wanted)
        assert not unwanted(one, A1, wanted)


def test_gateway_is_answered_by_its_own_mac(lab):
    _, (a1,) = one_host(lab, "a1")
    a1.expect_ping("10.1.1.254")
    assert GATEWAY_MAC in a1.run(["ip", "neigh", "show", "10.1.1.254"]).stdout


LINK_LOCAL = {seat: f"fe80::ff:fe00:{0x100 + seat.number:x}" for seat in (A1, A2)}  # of their MACs
ETHERNET = Ether(src=A1.mac, dst=A2.mac)
LINK = IPv6(src=LINK_LOCAL[A1], dst=LINK_LOCAL[A2], hlim=255)
OFFER = BOOTP(op=2, yiaddr="10.1.1.66") / DHCP(options=[("message-type", "offer"), "end"])

# Packets that guests may send which are routers or DHCP servers.
ROUTERS = {
    "advertisement": ETHERNET / LINK / ICMPv6ND_RA(),
    "redirect": ETHERNET / LINK / ICMPv6ND_Redirect(tgt=LINK_LOCAL[A1], dst="fd00:9::1"),
    "redirect of IPv4": ETHERNET
    / IP(src=A1.address, dst=A2.address)
    / ICMP(type=5, code=1, gw=A1.address)
    / IP(dst="8.8.8.8")
    / UDP(),
}
SERVERS = {
    "offer": ETHERNET / IP(src=A1.address, dst=A2.address) / UDP(sport=67, dport=68) / OFFER,
    "DHCPv6 advertise": ETHERNET / LINK / UDP(sport=547, dport=546) / DHCP6_Advertise(),
}

FORGERIES = {
    **{f"router_guard, {name}": frame for name, frame in ROUTERS.items()},
    "router_guard, behind an option": ETHERNET / LINK / IPv6ExtHdrDestOpt() / ICMPv6ND_RA(),
    "router_guard, in a fragment": ETHERNET / LINK / IPv6ExtHdrFragment(m=1, nh=58) / ICMPv6ND_RA(),
    "router_guard, behind a tag": ETHERNET / Dot1Q(vlan=0) / LINK / ICMPv6ND_RA(),
    **{f"dhcp_guard, {name}": frame for name, frame in SERVERS.items()},
    "snap": Dot3(src=A1.mac, dst=A2.mac) / LLC() / SNAP(code=0x86DD) / LINK / ICMPv6ND_RA(),
    "address_spoofed, link-local": ETHERNET / IPv6(src=LINK_LOCAL[A2], dst=A2.address6) / UDP() / b"forged",
    "neighbour_spoofed, link-local": ETHERNET
    / LINK
    / ICMPv6ND_NA(tgt=LINK_LOCAL[A2], R=0, S=0, O=1)
    / ICMPv6NDOptDstLLAddr(lladdr=A1.mac),
    "mac_spoofed": Ether(src="02:00:00:00:66:66", dst=A2.mac)
    / IP(src=A1.address, dst=A2.address)
    / ICMP()
    / b"forged",
    "address_spoofed": Ether(src=A1.mac, dst=A2.mac) / IP(src="10.1.1.99", dst=A2.address) / ICMP() / b"forged",
    "address_spoofed, v6": Ether(src=A1.mac, dst=A2.mac) / IPv6(src="fd00:1::99", dst=A2.address6) / UDP() / b"forged",
    "neighbour_spoofed": Ether(src=A1.mac, dst=A2.mac)
    / ARP(op=2, hwsrc=A1.mac, psrc="10.1.1.254", hwdst=A2.mac, pdst=A2.address),
    "neighbour_spoofed, MAC": Ether(src=A1.mac, dst=A2.mac)
    / ARP(op=2, hwsrc="02:00:00:00:66:66", psrc=A1.address, hwdst=A2.mac, pdst=A2.address),
    "neighbour_spoofed, v6": Ether(src=A1.mac, dst=A2.mac)
    / IPv6(src=A1.address6, dst=A2.address6, hlim=255)
    / ICMPv6ND_NA(tgt="fd00:1::ffff", R=1, S=0, O=1)
    / ICMPv6NDOptDstLLAddr(lladdr=A1.mac),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_packets_are_dropped_by_name(lab, forgery):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    a1.expect_ping(A2.address)
    reason = forgery.split(",")[0]
    before = host.drops().get(reason, 0)
    frame = bytes(FORGERIES[forgery])
    with RawPort(a1.namespace, a1.device) as sender, RawPort(a2.namespace, a2.device) as receiver:
        sender.send(frame)
        eventually(lambda: host.drops().get(reason, 0) == before + 1, f"drop {reason}")
        assert not unwanted(receiver, A2, lambda seen: seen[:len(frame)] == frame)


def test_routers_and_dhcp_servers_may_send_what_they_do(lab):
    config = host_config("a", {"a1": {**tap("a1"), "router": True, "dhcp_server": True}, "a2": tap("a2")}, wire=False)
    host = lab.host(config)
    a1, a2 = lab.container(host, "a1"), lab.container(host, "a2")
    with RawPort(a1.namespace, a1.device) as sender, RawPort(a2.namespace, a2.device) as receiver:
        for frame in map(bytes, (*ROUTERS.values(), *SERVERS.values())):
            sender.send(frame)
            receiver.expect(lambda seen, frame=frame: seen[:len(frame)] == frame, "the same frame")
    # A container's kernel may send to all before the other container is there.
    assert not set(host.drops()) - {"no_member"}


def test_guest_that_is_not_checked_is_named(lab):
    config = host_config(
        "a", {"a1": {**tap("a1"), "mac": None, "addresses": None, "label": None}, "a2": tap("a2")}, wire=False
    )
    host = lab.host(config)
    told = 'guest "a1": what it sends is not checked'
    for command in (("apply", host.file), ("check", host.file), ("status",)):
        assert told in host.call(*command).stdout, command
    for command in ("apply", "check"):
        [warning] = host.viaduct(command, host.file)
        assert (warning["what"], warning["object"]) == ("warning", 'guest "a1"')
    [warning] = host.viaduct("status")["warnings"]
    assert warning["object"] == 'guest "a1"' and "`mac` and `addresses`" in warning["message"]


def test_forwarding_guest_may_send_for_its_prefixes(lab):
    config = host_config("a", {"a1": {**tap("a1"), "allowed": ["10.7.0.0/16"]}, "a2": tap("a2")}, wire=False)
    config.add("route", network="blue", prefix="10.7.0.0/16", to={"guest": "a1"})
    host = lab.host(config)
    a1, a2 = lab.container(host, "a1"), lab.container(host, "a2")
    a1.namespace.ip("addr add 10.7.1.1/32 dev lo")
    a2.expect_ping("10.7.1.1")
    assert not host.drops().get("address_spoofed")


def test_unlearned_mac_is_learned_and_shown(lab):
    config = host_config(
        "a", {"a1": {**tap("a1"), "mac": None, "addresses": None, "label": None}, "a2": tap("a2")}, wire=False
    )
    host = lab.host(config)
    a1, a2 = lab.container(host, "a1"), lab.container(host, "a2")
    a1.namespace.ip("addr add 10.1.1.50/24 dev", a1.device)
    a2.expect_ping("10.1.1.50")
    mac = a1.run(["cat", f"/sys/class/net/{a1.device}/address"]).stdout.strip()
    entries = host.viaduct("bridge", "--network", "blue")
    assert any(entry["mac"] == mac for entry in entries), entries
