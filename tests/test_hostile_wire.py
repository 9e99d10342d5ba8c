"""Attacks by hosts of the underlay, and by guests attached to a wire: they hurt nobody else."""

import socket

import pytest
from scapy.contrib.mpls import MPLS
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, ICMPv6ND_NA, ICMPv6ND_RA, ICMPv6ND_Redirect, ICMPv6NDOptDstLLAddr
from scapy.layers.inet6 import ICMPv6NDOptPrefixInfo, ICMPv6NDOptSrcLLAddr, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment
from scapy.layers.l2 import ARP, GRE, Dot1Q, Ether
from scapy.layers.vxlan import VXLAN
from scapy.packet import Raw

from lab import RawPort, eventually, unharmed
from lab.silence import unwanted
from lab.topology import SEATS, UNDERLAY, host_config, tap, tunnel_routes


A1, A2, B1, B2 = (SEATS[name] for name in ("a1", "a2", "b1", "b2"))
STRANGER = "192.0.2.66"
WIRE_MAC = "02:66:00:00:00:66"
ALL_NODES, ALL_NODES_MAC = "ff02::1", "33:33:00:00:00:01"


@pytest.fixture
def host(lab):
    """Starts host a with guests a1, a2 and b2, a route by MPLS to b1 on host b. The test plays b and a stranger."""
    lab.plug("a")
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2"), "b2": tap("b2")})
    host = lab.host(tunnel_routes(config, "mpls-over-udp", "b1"))
    host.a1, host.a2, host.b2 = (lab.container(host, guest) for guest in ("a1", "a2", "b2"))
    host.mac = lab.namespace("a").run(["cat", "/sys/class/net/up0/address"]).stdout.strip()
    with RawPort(lab.plug("evil"), "up0") as port:
        host.evil = port
        yield host


def underlay(host, source, payload):
    """Makes a packet on the underlay for host a."""
    return bytes(Ether(src=WIRE_MAC, dst=host.mac) / IP(src=source, dst=UNDERLAY["a"]) / payload)


def in_mpls(inner, label=A1.label):
    return UDP(sport=50000, dport=6635, chksum=0) / MPLS(label=label, s=1, ttl=64) / inner


TUNNELS = {
    "mpls-over-udp": lambda inner: in_mpls(inner),
    "mpls-over-gre": lambda inner: GRE(proto=0x8847) / MPLS(label=A1.label, s=1, ttl=64) / inner,
    "vxlan": lambda inner: UDP(sport=50000, dport=4789, chksum=0) / VXLAN(vni=5001, flags=8) / (
        Ether(src=B1.mac, dst=A1.mac) / inner
    ),
}


@pytest.mark.parametrize("tunnel", TUNNELS)
def test_tunnel_packets_of_a_stranger(host, tunnel):
    """A host that is no remote of any nexthop gets nothing in, and is counted."""
    inner = IP(src=B1.address, dst=A1.address) / UDP(sport=1, dport=7777) / b"from nowhere"
    with RawPort(host.a1.namespace, host.a1.device) as seen, unharmed(host, host.a1, host.a2):
        host.evil.send(*[underlay(host, STRANGER, TUNNELS[tunnel](inner))] * 20)
        eventually(lambda: host.drops().get("unknown_remote", 0) >= 20, "drops of unknown_remote")
        assert not unwanted(seen, A1, lambda frame: b"from nowhere" in frame)


def test_tunnel_packets_of_a_remote(host):
    """A host that a nexthop names is heard."""
    inner = IP(src=B1.address, dst=A1.address) / UDP(sport=1, dport=7777) / b"from b"
    with RawPort(host.a1.namespace, host.a1.device) as seen:
        host.evil.send(underlay(host, UNDERLAY["b"], in_mpls(inner)))
        seen.expect(lambda frame: b"from b" in frame, "packet of the remote")


def test_a_flood_of_pings_from_everywhere(host, lab):
    """Pings with spoofed sources, each a connection to a guest that answers, leave others' new connections their
    place."""
    config = host.config.copy()
    remote = {"tunnel": "mpls-over-udp", "remote": UNDERLAY["b"], "label": 999}
    host.apply(config.add("route", network="blue", prefix="198.18.0.0/16", to=[remote]))
    lab.namespace("evil").ip("addr add", UNDERLAY["b"] + "/24 dev up0")
    with unharmed(host, host.a1, host.a2):
        for high in range(40):
            ping = IP(src=f"198.18.{high}.0", dst=B2.address) / ICMP(id=high)
            host.evil.send(*respelled(underlay(host, UNDERLAY["b"], in_mpls(ping, B2.label)), high))
        for port in range(2000, 2100):
            with host.a2.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.sendto(b"x", (A1.address, port))

        def mine():
            flows = host.viaduct("flow", "--match", f"{A2.address} & udp")
            return [flow for flow in flows if 2000 <= flow["destination_port"] < 2100]

        eventually(lambda: len(mine()) == 100, "all connections of a2")


def respelled(frame, high):
    """Makes copies of a ping with other source addresses and a checksum that fits."""
    at = frame.rindex(bytes([198, 18, high, 0]))
    start = at - 12
    for low in range(1, 250):
        copy = bytearray(frame)
        copy[at + 3] = low
        copy[start + 10 : start + 12] = bytes(2)
        total = sum(copy[start + i] << 8 | copy[start + i + 1] for i in range(0, 20, 2))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        copy[start + 10 : start + 12] = (~total & 0xFFFF).to_bytes(2, "big")
        yield bytes(copy)


def test_packets_cut_anywhere(host):
    """A tunnel packet without its end, at every length: each is counted under some reason, none does harm."""
    inner = IP(src=B1.address, dst=A1.address) / UDP(sport=1, dport=7777) / Raw(b"x" * 20)
    with unharmed(host, host.a1, host.a2):
        for tunnel in TUNNELS.values():
            whole = underlay(host, UNDERLAY["b"], tunnel(inner))
            host.evil.send(*[whole[:length] for length in range(14, len(whole))])


@pytest.fixture
def attached(lab):
    """Starts a network that is attached to the underlay's wire, untagged, with guests a1 and a2; the test plays the
    wire."""
    lab.plug("a")
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2")})
    config.entry("network", "blue")["wire"] = "up0"
    host = lab.host(tunnel_routes(config, "mpls-over-udp", "b1"))
    host.a1, host.a2 = lab.container(host, "a1"), lab.container(host, "a2")
    with RawPort(lab.plug("evil"), "up0") as port, RawPort(host.a1.namespace, host.a1.device) as guest:
        host.evil, host.guest = port, guest
        yield host


def from_a1(destination, payload):
    return Ether(src=A1.mac, dst=WIRE_MAC) / IP(src=A1.address, dst=destination) / payload


def learned(host):
    """Has the bridge know where the stranger of the wire is."""
    host.evil.send(
        Ether(src=WIRE_MAC, dst="ff:ff:ff:ff:ff:ff")
        / IP(src="10.1.1.66", dst="255.255.255.255")
        / UDP(sport=1, dport=1)
    )
    host.guest.send(from_a1("10.1.1.66", UDP(sport=1, dport=2) / b"plainly"))
    host.evil.expect(lambda frame: b"plainly" in frame, "what a guest may send")


def comes_to_the_wire(host, text):
    """Returns the frames with that text that came to the wire before one that a1 sends now."""
    host.guest.send(from_a1("10.1.1.66", UDP(sport=1, dport=2) / b"the last one"))
    return host.evil.before(lambda frame: b"the last one" in frame, lambda frame: text in frame)


@pytest.mark.parametrize("tags", [[7], [0, 7], [7, 8]])
def test_tags_of_a_guest_do_not_reach_the_wire(attached, tags):
    learned(attached)
    frame = Ether(src=A1.mac, dst=WIRE_MAC)
    for tag in tags:
        frame = frame / Dot1Q(vlan=tag)
    frame = frame / IP(src=A1.address, dst="10.1.1.66") / UDP(sport=1, dport=2) / b"into a VLAN"
    with unharmed(attached, attached.a1, attached.a2):
        attached.guest.send(frame, frame)
        eventually(lambda: attached.drops().get("vlan_unexpected", 0) >= 2, "drops of vlan_unexpected")
        assert not comes_to_the_wire(attached, b"into a VLAN")


@pytest.mark.parametrize("tunnel", TUNNELS)
def test_tunnel_packets_of_a_guest_do_not_reach_the_underlay(attached, tunnel):
    """A guest attached to the underlay's wire can't speak to another host's tunnel port."""
    learned(attached)
    inner = IP(src="10.9.9.9", dst="10.9.9.1") / UDP(sport=1, dport=2) / b"into a tunnel"
    with unharmed(attached, attached.a1, attached.a2):
        attached.guest.send(*[from_a1(UNDERLAY["b"], TUNNELS[tunnel](inner))] * 2)
        eventually(lambda: attached.drops().get("underlay_tunnel", 0) >= 2, "drops of underlay_tunnel")
        assert not comes_to_the_wire(attached, b"into a tunnel")


def link_local(seat):
    mac = [int(part, 16) for part in seat.mac.split(":")]
    return f"fe80::{mac[0] ^ 2:x}{mac[1]:02x}:{mac[2]:02x}ff:fe{mac[3]:02x}:{mac[4]:02x}{mac[5]:02x}"


def advertisement():
    return ICMPv6ND_RA() / ICMPv6NDOptSrcLLAddr(lladdr=A1.mac) / ICMPv6NDOptPrefixInfo(prefix="fd66::", prefixlen=64)


def hop(payload, source=None, destination=ALL_NODES):
    return (
        Ether(src=A1.mac, dst=ALL_NODES_MAC) / IPv6(src=source or link_local(A1), dst=destination, hlim=255) / payload
    )


SERVER = UDP(sport=67, dport=68) / BOOTP(op=2, chaddr=bytes.fromhex(A2.mac.replace(":", "")), yiaddr=A2.address)
# Packets that a guest which is neither router nor server must not send, and the reasons of their drops.
LIES = {
    "router advertisement": (lambda: hop(advertisement()), "router_guard"),
    "router advertisement behind an extension": (lambda: hop(IPv6ExtHdrDestOpt() / advertisement()), "router_guard"),
    "redirect": (lambda: hop(ICMPv6ND_Redirect(tgt=link_local(A1), dst="fd00:1::2")), "router_guard"),
    "redirect of IPv4": (
        lambda: Ether(src=A1.mac, dst=A2.mac)
        / IP(src=A1.address, dst=A2.address)
        / ICMP(type=5, code=1, gw=A1.address)
        / IP(src=A2.address, dst="10.1.1.254")
        / UDP(),
        "router_guard",
    ),
    "offer of a DHCP server": (
        lambda: Ether(src=A1.mac, dst="ff:ff:ff:ff:ff:ff")
        / IP(src=A1.address, dst="255.255.255.255")
        / SERVER
        / DHCP(options=[("message-type", "offer"), "end"]),
        "dhcp_guard",
    ),
    "answer of a DHCPv6 server": (
        lambda: hop(UDP(sport=547, dport=546) / Raw(b"\2abc"), destination="ff02::1"),
        "dhcp_guard",
    ),
    "another's link-local address": (
        lambda: hop(ICMPv6EchoRequest(data=b"lie"), source=link_local(A2)),
        "address_spoofed",
    ),
    "advertisement of another's link-local address": (
        lambda: hop(ICMPv6ND_NA(tgt=link_local(A2), S=0, O=1) / ICMPv6NDOptDstLLAddr(lladdr=A1.mac)),
        None,
    ),
}


def reaches(host, frame):
    """Says whether a frame of a1 comes to a2 as it is, before another one that a1 sends behind it. Multicast MACs alone
    are changed by nobody, so the payload tells."""
    payload = bytes(frame)[14:]
    last = Ether(src=A1.mac, dst=A2.mac) / IP(src=A1.address, dst=A2.address) / UDP(sport=1, dport=9) / b"the last one"
    with RawPort(host.a1.namespace, host.a1.device) as liar, RawPort(host.a2.namespace, host.a2.device) as victim:
        liar.send(frame, frame, last)
        came = victim.before(lambda seen: b"the last one" in seen, lambda seen: seen[14:][: len(payload)] == payload)
        return bool(came)


@pytest.mark.parametrize("lie", LIES)
def test_a_guest_plays_router_or_server(host, lie):
    build, reason = LIES[lie]
    with unharmed(host, host.a1, host.a2):
        before = host.drops()
        assert not reaches(host, build())
        if reason:
            eventually(lambda: host.drops().get(reason, 0) - before.get(reason, 0) >= 2, f"drops of {reason}")


def test_a_first_fragment_hides_a_router_advertisement(host):
    """A packet that can't be seen whole is no way round the guard (RFC 7113)."""
    whole = bytes(IPv6ExtHdrDestOpt(nh=58, options=[]) / advertisement())
    first = hop(IPv6ExtHdrFragment(nh=60, offset=0, m=1, id=7) / Raw(whole[:8]))
    with unharmed(host, host.a1, host.a2):
        assert not reaches(host, first)


@pytest.mark.parametrize("key,lie", [("router", "router advertisement"), ("dhcp_server", "offer of a DHCP server")])
def test_a_guest_that_is_router_or_server_may(host, key, lie):
    config = host.config.copy()
    config.entry("guest", "a1")[key] = True
    host.apply(config)
    assert reaches(host, LIES[lie][0]())


def test_one_guest_waits_for_neighbours_that_are_not_there(host):
    """Where one guest has as many packets held as it may, another's first packet to a late neighbour is held all the
    same."""
    config = host.config.copy()
    for number in range(100, 200):
        remote = {"tunnel": "mpls-over-udp", "remote": f"192.0.2.{number}", "label": 999}
        config.add("route", network="blue", prefix=f"10.50.0.{number}/32", to=[remote])
    host.apply(config)
    flooder = host.b2.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM)
    late = host.a2.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with unharmed(host, host.a1, host.a2), flooder, late:
        for _ in range(20):
            for number in range(100, 200):
                flooder.sendto(b"x" * 1000, (f"10.50.0.{number}", 9))
        late.sendto(b"in its place", (B1.address, 9))
        # Asked for while the other one's packets wait.
        wanted = socket.inet_aton(UNDERLAY["b"])
        host.evil.expect(lambda frame: frame[12:14] == b"\x08\x06" and frame[38:42] == wanted, "question for host b")
        ours = {"hwsrc": WIRE_MAC, "psrc": UNDERLAY["b"], "hwdst": host.mac, "pdst": UNDERLAY["a"]}
        host.evil.send(Ether(src=WIRE_MAC, dst=host.mac) / ARP(op="is-at", **ours))
        host.evil.expect(lambda frame: b"in its place" in frame, "packet that was held")
