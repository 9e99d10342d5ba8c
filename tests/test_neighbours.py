"""Neighbours as Linux hosts see it: who is told that one does not answer, how they are asked, what is announced."""

import socket

import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.layers.vxlan import VXLAN

from lab import PATIENCE, RawPort, Server, eventually
from lab.topology import GATEWAY_MAC, NETWORKS, SEATS, UNDERLAY, host_config, tap

A1, A2 = SEATS["a1"], SEATS["a2"]
OUTSIDE, ROUTER, ROUTER6 = "203.0.113.7", "203.0.113.1", "fd00:3::1"
STRANGER = "02:de:ad:00:00:01"
PEER_MAC = "02:66:00:00:00:66"
SO_RCVBUFFORCE = 33


def config_of(*guests):
    """Configures host a, whose network public lies on a wire with a plain Linux machine; network blue has a second
    subnet."""
    config = host_config("a", {guest: tap(guest) for guest in guests}, wire=False)
    config.entry("network", "blue")["gateways"] = [*NETWORKS["blue"]["gateways"], "10.1.2.254/24", "fd00:12::ffff/64"]
    config.add("wire", name="ext0", driver="af-packet", device="ext0")
    config.add("network", name="public", vrf=3, gateways=["203.0.113.254/24", "fd00:3::ffff/64"], wire="ext0")
    config.add("route", network="blue", prefix="0.0.0.0/0", to={"network": "public"})
    config.add("nat", network="blue", inside=A1.address, outside=OUTSIDE, outside_network="public")
    return config


@pytest.fixture
def host(lab):
    lab.plug("a", "ext0", mtu=1500, fabric="outside")
    host = lab.host(config_of("a1", "a2"))
    host.a1, host.a2 = lab.container(host, "a1"), lab.container(host, "a2")
    host.server = Server(lab.plug("c", "ext0", mtu=1500, fabric="outside"))
    host.server.namespace.ip("addr add", f"{ROUTER}/24", "dev ext0")
    host.server.namespace.ip("addr add", f"{ROUTER6}/64", "dev ext0 nodad")
    return host


def wire_mac(host):
    """Returns the MAC that gateways have on the wire."""
    return host.namespace.run(["cat", "/sys/class/net/ext0/address"]).stdout.strip()


def neighbour(machine, address):
    """Returns what a machine knows of a neighbour."""
    return machine.run(["ip", "neigh", "show", address]).stdout


def test_who_pings_a_dead_neighbour_is_told(host):
    for target, words in (
        ("10.1.2.9", "From 10.1.1.254 icmp_seq=1 Destination Host Unreachable"),
        ("203.0.113.99", "From 10.1.1.254 icmp_seq=1 Destination Host Unreachable"),
        ("fd00:12::9", "From fd00:1::ffff icmp_seq=1 Destination unreachable: Address unreachable"),
    ):
        received, output = host.a1.ping(target, 1, timeout=PATIENCE)
        assert received == 0 and words in output, output
    assert host.drops()["no_neighbour"] >= 3


def test_known_neighbours_are_asked_alone_and_only_those_in_use(host, lab):
    """Of two neighbours, one of which is pinged all the time, another one but once, only the first is asked again,
    alone."""
    server = host.server.namespace
    server.ip("addr add 203.0.113.2/24 dev ext0")
    # It has no questions of its own, by which it would be heard of.
    for address in (OUTSIDE, "203.0.113.254"):
        server.ip("neigh replace", address, "lladdr", wire_mac(host), "dev ext0 nud permanent")
    host.a1.expect_ping("203.0.113.2", 1)
    host.a1.expect_ping(ROUTER, 1)
    with lab.capture("c", "ext0", "arp") as seen:
        pings = host.a1.background(["ping", "-n", "-i", 0.5, ROUTER])
        question = f"arp.opcode == 1 && arp.dst.proto_ipv4 == {ROUTER}"
        eventually(lambda: seen.fields(question, "frame.number"), "a question", timeout=600, interval=5)
        pings.stop()
    asked = "arp.opcode == 1 && arp.src.hw_mac == " + wire_mac(host) + " && arp.src.proto_ipv4 == 203.0.113.254"
    assert seen.fields(f"{asked} && eth.dst == ff:ff:ff:ff:ff:ff", "arp.dst.proto_ipv4") == [], "a broadcast"
    assert {row[0] for row in seen.fields(asked, "arp.dst.proto_ipv4")} == {ROUTER}


def test_floating_addresses_are_announced(host):
    other = "203.0.113.8"
    host.server.namespace.ip("neigh replace", other, "lladdr", STRANGER, "dev ext0 nud stale")
    host.apply(
        host.config.copy().add("nat", network="blue", inside=A2.address, outside=other, outside_network="public")
    )
    eventually(lambda: wire_mac(host) in neighbour(host.server, other), "the announcement")


def test_guests_that_come_are_announced_to_local_peers(host):
    """Peers learn of guest a1, which goes and comes with another MAC."""
    for address in (A1.address, A1.address6):
        host.a2.namespace.ip("neigh replace", address, "lladdr", STRANGER, "dev", host.a2.device, "nud stale")
    config, mac = host.config.copy(), "02:00:00:00:01:aa"
    host.apply(config.without("guest", name="a1").without("nat", outside=OUTSIDE))
    config.entry("guest", "a1")["mac"] = mac
    host.apply(config)
    for address in (A1.address, A1.address6):
        eventually(lambda address=address: mac in neighbour(host.a2, address), f"the announcement of {address}")


def test_a_switch_that_snoops_learns_the_groups(lab):
    """A Linux bridge that looks into MLD hands solicitations on to the host only because that reports the groups."""
    lab.plug("a", "ext0", mtu=1500, fabric="outside")
    lab.namespace("outside").ip("link set br0 type bridge mcast_snooping 1")
    lab.host(config_of("a1"))
    mdb = ["bridge", "mdb", "show", "dev", "br0"]
    for group in ("ff02::1:ff00:ffff",):
        eventually(lambda group=group: group in lab.namespace("outside").run(mdb).stdout, f"a report of {group}")


def test_a_probe_for_a_free_address_is_not_answered(lab):
    """A prefix's route within the subnet says of none of its addresses that it is taken; a gateway's is."""
    lab.plug("a")
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2")})
    del config.entry("guest", "a1")["addresses"]
    hop = {"tunnel": "mpls-over-udp", "remote": UNDERLAY["b"], "label": 100}
    config.add("route", network="blue", prefix="10.1.1.64/26", to=[hop])
    host = lab.host(config)
    a1 = lab.container(host, "a1")

    def probe(address):
        return a1.run(["arping", "-D", "-c", 2, "-w", 4, "-I", a1.device, address], check=False).returncode

    assert probe("10.1.1.70") == 0, "free"
    assert probe("10.1.1.254") == 1, "the gateway's"
    assert probe(A2.address) == 1, "another guest's"


def test_one_tenant_s_errors_silence_no_other(lab):
    """Behind one wire, by VXLAN, 300 packets of one tenant expire; then another's gets its error, and one that is too
    long."""
    lab.plug("a")
    config = host_config("a", {"a1": tap("a1"), "a3": tap("a3")})
    for network in ("blue", "red"):
        hop = {"tunnel": "vxlan", "remote": UNDERLAY["b"], "vni": NETWORKS[network]["vni"]}
        config.add("flood", network=network, to=[hop])
    config.entry("guest", "a1")["mtu"] = 1300
    host = lab.host(config)
    mac = lab.namespace("a").run(["cat", "/sys/class/net/up0/address"]).stdout.strip()

    def inner(network, packet):
        outer = Ether(src=PEER_MAC, dst=mac) / IP(src=UNDERLAY["b"], dst=UNDERLAY["a"]) / UDP(sport=50000, dport=4789)
        frame = Ether(src="02:66:00:00:00:01", dst=GATEWAY_MAC) / packet
        return outer / VXLAN(vni=NETWORKS[network]["vni"]) / frame

    def errors(kind, network):
        """Makes a test of frames: whether it tells somebody of that network something of that kind."""

        def is_one(frame):
            packet = Ether(frame)
            told = VXLAN in packet and ICMP in packet[VXLAN] and packet[VXLAN].vni == NETWORKS[network]["vni"]
            return told and packet[VXLAN][ICMP].type == kind

        return is_one

    with RawPort(lab.plug("evil"), "up0") as port:
        port.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)  # none of the errors is to be lost
        port.send(Ether(src=PEER_MAC, dst=mac) / ARP(op=1, hwsrc=PEER_MAC, psrc=UNDERLAY["b"], pdst=UNDERLAY["a"]))
        port.expect(lambda frame: frame[12:14] == b"\x08\x06" and frame[20:22] == b"\0\2", "answer")
        expired = IP(src="10.1.1.11", dst=A1.address, ttl=1) / UDP(sport=1, dport=2)
        for _ in range(30):
            port.send(*[inner("blue", expired)] * 10)
        port.send(inner("red", IP(src="10.2.2.11", dst="10.2.2.254", ttl=9) / UDP(sport=1, dport=2)))
        port.expect(errors(3, "red"), "error of the other tenant")
        long = IP(src="10.1.1.11", dst=A1.address, flags="DF") / UDP(sport=1, dport=2) / bytes(1400)
        port.send(*[inner("blue", expired)] * 200, inner("blue", long))
        port.expect(errors(3, "blue"), "word of what is too long")
    assert host.drops()["ttl_expired"] >= 300
