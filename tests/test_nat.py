"""Floating addresses: a guest of a private network is known outside by another address."""

import errno
import socket

import pytest
from scapy.layers.l2 import ARP, Ether

from lab import PATIENCE, RawPort, Server
from lab.topology import SEATS, host_config, tap
from lab.traffic import EchoServer, answers, connect, datagram, send_in_vain

A1 = SEATS["a1"]
OUTSIDE, ROUTER = "203.0.113.7", "203.0.113.1"
# linux/in.h
IP_RECVERR = 11


@pytest.fixture
def floating(lab):
    """Starts host a with guest a1 (floating address) and a2 (none); network public lies on a wire with a plain Linux
    machine."""
    lab.plug("a", "ext0", mtu=1500, fabric="outside")
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2")}, wire=False)
    config.add("wire", name="ext0", driver="af-packet", device="ext0")
    config.add("network", name="public", vrf=3, gateways=["203.0.113.254/24"], wire="ext0")
    config.add("route", network="blue", prefix="0.0.0.0/0", to={"network": "public"})
    config.add("route", network="public", prefix="198.51.100.0/24", to={"via": ROUTER})
    config.add("nat", network="blue", inside=A1.address, outside=OUTSIDE, outside_network="public")
    host = lab.host(config)
    server = lab.plug("c", "ext0", mtu=1500, fabric="outside")
    server.ip("addr add", f"{ROUTER}/24", "dev ext0")
    server.ip("addr add 198.51.100.1/24 dev lo")
    return host, lab.container(host, "a1"), lab.container(host, "a2"), Server(server)


def test_outside_reaches_the_guest_by_its_floating_address(floating):
    _, a1, _, server = floating
    server.expect_ping(OUTSIDE)
    with EchoServer(a1, 80):
        assert answers(connect(server, OUTSIDE, 80))
        assert datagram(server, OUTSIDE, 80)


def test_guest_is_seen_outside_by_its_floating_address(floating, lab):
    _, a1, _, server = floating
    with lab.capture("c", "ext0", "not arp") as seen, EchoServer(server, 80):
        a1.expect_ping(ROUTER)
        assert answers(connect(a1, ROUTER, 80))
        assert datagram(a1, ROUTER, 80)
        a1.expect_ping("198.51.100.1")  # behind a router of the outside network
    inside = seen.fields(f"ip.addr == {A1.address}", "frame.number")
    assert inside == [], "an inside address got out"
    assert seen.fields(f"ip.src == {OUTSIDE} && tcp", "frame.number")
    wrong = seen.fields(
        "ip.checksum.status == 0 || udp.checksum.status == 0 || icmp.checksum.status == 0", "frame.number"
    )
    assert wrong == []


def test_guest_reaches_its_own_network_as_itself(floating):
    _, a1, a2, _ = floating
    a1.expect_ping(SEATS["a2"].address)
    with EchoServer(a2, 80) as _:
        assert datagram(a1, SEATS["a2"].address, 80)


def test_icmp_errors_are_translated_within(floating, lab):
    """The server refuses a datagram: the guest's socket must hear of it, so the quoted packet was translated back."""
    _, a1, _, server = floating
    a1.expect_ping(ROUTER)
    with a1.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.settimeout(PATIENCE)
        sender.connect((ROUTER, 4242))
        sender.send(b"x")
        with pytest.raises(ConnectionRefusedError):
            sender.recv(10)
    with server.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.settimeout(PATIENCE)
        sender.connect((OUTSIDE, 4242))
        sender.send(b"x")
        with pytest.raises(ConnectionRefusedError):
            sender.recv(10)


def test_a_router_among_the_guests_tells_of_the_floating_address(floating):
    """The router can't reach the guest behind it; the server's socket must hear of that, so the quoted packet was
    translated. Before the router has an address outside, it speaks for the guest."""
    host, _, a2, server = floating
    behind, outside = "10.7.0.9", "203.0.113.9"
    config = host.config.copy()
    config.entry("guest", "a2").update(router=True, allowed=["10.7.0.0/24"])
    config.add("route", network="blue", prefix="10.7.0.0/24", to={"guest": "a2"})
    config.add("nat", network="blue", inside=behind, outside=outside, outside_network="public")
    host.apply(config)
    a2.namespace.sysctl("net.ipv4.ip_forward", 1)
    a2.namespace.ip("route add unreachable", behind)
    itself = "203.0.113.8"
    named = config.copy().add(
        "nat", network="blue", inside=SEATS["a2"].address, outside=itself, outside_network="public"
    )
    for config, teller in ((config, outside), (named, itself)):
        host.apply(config)
        with server.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.settimeout(PATIENCE)
            sender.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
            sender.connect((outside, 4242))
            sender.send(b"x")
            with pytest.raises(OSError) as raised:
                sender.recv(10)
            assert raised.value.errno == errno.EHOSTUNREACH
            _, [(_, _, error)], _, _ = sender.recvmsg(10, 512, socket.MSG_ERRQUEUE)
        # A `sock_extended_err` of 16 bytes, then the address of who sent the error.
        assert socket.inet_ntoa(error[20:24]) == teller


def test_rules_see_the_inside_address(floating):
    host, a1, _, server = floating
    server.expect_ping(OUTSIDE)
    host.apply(host.config.copy().rule("blue", 10, "drop", to={"cidr": f"{A1.address}/32"}, protocol="udp"))
    with EchoServer(a1, 80):
        send_in_vain(host, "rule_drop", server, OUTSIDE, 80)
        assert answers(connect(server, OUTSIDE, 80))


def test_floating_address_goes_when_its_entry_goes(floating):
    host, a1, _, server = floating
    server.expect_ping(OUTSIDE)
    host.apply(host.config.without("nat", outside=OUTSIDE))
    server.run(["ip", "neigh", "flush", "dev", "ext0"])
    # The gateway's address is asked for after the one that nobody has.
    gateway, ask = "203.0.113.254", lambda address: Ether(dst="ff:ff:ff:ff:ff:ff") / ARP(psrc=ROUTER, pdst=address)
    answer = lambda address: lambda frame: ARP in (packet := Ether(frame)) and packet[ARP].psrc == address
    with RawPort(server.namespace, "ext0") as port:
        mac = port.socket.getsockname()[4]
        for address in (OUTSIDE, gateway):
            question = ask(address)
            question.src = question[ARP].hwsrc = ":".join(f"{byte:02x}" for byte in mac)
            port.send(question)
        assert not port.before(answer(gateway), answer(OUTSIDE), "answer of the gateway")


def test_arp_for_the_floating_address_is_answered_with_the_wires_mac(floating, lab):
    _, _, _, server = floating
    server.expect_ping(OUTSIDE)
    mac = lab.namespace("a").run(["cat", "/sys/class/net/ext0/address"]).stdout.strip()
    assert mac in server.run(["ip", "neigh", "show", OUTSIDE]).stdout
