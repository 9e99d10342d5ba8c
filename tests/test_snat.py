"""Many guests behind one outside address of a wire's network, and ports of it that lead to guests."""

import errno
import socket
from contextlib import ExitStack

import pytest

from lab import PATIENCE, Server, eventually
from lab.netns import cable
from lab.topology import SEATS, host_config, tap
from lab.traffic import EchoServer, answers, arrived, connect, connect_in_vain, datagram, dropping

A1, A2 = SEATS["a1"], SEATS["a2"]
SHARED, SHARED6 = "203.0.113.5", "2001:db8:113::5"
ROUTER, ROUTER6 = "203.0.113.1", "2001:db8:113::1"
BEYOND = "198.51.100.9"
# linux/in.h
IP_RECVERR = 11


@pytest.fixture
def shared(lab):
    """Starts host a with guests a1 and a2 behind one address per family; network public lies on a wire with a plain
    Linux router, behind which is one more machine."""
    lab.plug("a", "ext0", mtu=1500, fabric="outside")
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2")}, wire=False)
    config.add("wire", name="ext0", driver="af-packet", device="ext0")
    gateways = ["203.0.113.254/24", "2001:db8:113::ffff/64"]
    config.add("network", name="public", vrf=3, gateways=gateways, wire="ext0")
    config.add("route", network="public", prefix="198.51.100.0/24", to={"via": ROUTER})
    config.entry("network", "blue")["snat"] = [SHARED, SHARED6]
    host = lab.host(config)
    router, beyond = lab.plug("c", "ext0", mtu=1500, fabric="outside"), lab.namespace("d")
    cable(router, "in0", beyond, "in0", mtu=1500)
    for namespace in (router, beyond):
        for where in ("all", "default"):
            namespace.sysctl(f"net.ipv6.conf.{where}.disable_ipv6", 0)
    router.sysctl("net.ipv4.ip_forward", 1)
    router.ip("addr add", f"{ROUTER}/24", "dev ext0")
    router.ip("addr add", f"{ROUTER6}/64", "dev ext0 nodad")
    router.ip("addr add 198.51.100.1/24 dev in0")
    beyond.ip("addr add", f"{BEYOND}/24", "dev in0")
    beyond.ip("route add default via 198.51.100.1")
    return host, lab.container(host, "a1"), lab.container(host, "a2"), Server(router), Server(beyond)


def opened(guest, port, address):
    """Makes a TCP connection to port 80 from this port of a guest."""
    connection = guest.namespace.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE)
    connection.bind(("", port))
    connection.connect((address, 80))
    return connection


def test_guests_are_seen_outside_by_the_shared_address(shared, lab):
    host, a1, a2, router, beyond = shared
    with lab.capture("c", "ext0", "not arp") as seen, EchoServer(router, 80), EchoServer(beyond, 80):
        for guest in (a1, a2):
            for address in (ROUTER, BEYOND, ROUTER6):
                guest.expect_ping(address)
            for address in (ROUTER, BEYOND):
                assert answers(connect(guest, address, 80))
                assert datagram(guest, address, 80)
        # Long segments, both ways.
        assert b"".join(transferred(connect(a1, BEYOND, 80), 400_000)) == bytes(400_000)
    with EchoServer(router, 81, socket.AF_INET6):
        assert answers(connect(a1, ROUTER6, 81)) and datagram(a2, ROUTER6, 81)
    inside = f"ip.addr == {A1.address} || ip.addr == {A2.address} || ipv6.addr == {A1.address6}"
    assert seen.fields(inside, "frame.number") == [], "an inside address got out"
    assert seen.fields(f"ip.src == {SHARED} && tcp", "frame.number")
    wrong = "ip.checksum.status == 0 || udp.checksum.status == 0 || icmp.checksum.status == 0"
    assert seen.fields(wrong, "frame.number") == []
    router.expect_ping(SHARED)
    blocks = {row["inside"]: (row["outside"], row["ports"]) for row in host.viaduct("nat")}
    assert blocks[A1.address][0] == blocks[A2.address][0] == SHARED and len(set(blocks.values())) == 4, blocks
    explained = host.call("explain", "--in", "a1", f"{A1.address} > {ROUTER} / tcp 40000 > 80 syn").stdout
    assert SHARED in explained, explained


def transferred(connection, size):
    """Sends zeros on a connection whose other end echoes, and yields what comes back."""
    with connection:
        for _ in range(size // 10_000):
            connection.sendall(bytes(10_000))
            left = 10_000
            while left:
                part = connection.recv(left)
                assert part, "the connection ended"
                left -= len(part)
                yield part


def test_two_guests_use_one_port_to_one_server(shared):
    host, a1, a2, router, _ = shared
    with EchoServer(router, 80), opened(a1, 40_000, ROUTER) as one, opened(a2, 40_000, ROUTER) as other:
        assert answers(one, b"one") and answers(other, b"other") and answers(one, b"again")
        rows = host.viaduct("flow", "--match", f"{SHARED} & tcp")
        ends = {row["source"]: row["source_outside"] for row in rows}
        assert set(ends) == {A1.address, A2.address}, rows
        assert {end["address"] for end in ends.values()} == {SHARED}
        assert len({end["port"] for end in ends.values()}) == 2, ends


def test_nobody_opens_connections_to_guests(shared):
    host, a1, _, router, _ = shared
    router.expect_ping(SHARED)
    with EchoServer(a1, 80):
        connect_in_vain(host, "snat_unknown", router, SHARED, 80)


def test_icmp_errors_are_translated_within(shared):
    """A refused datagram, and one whose TTL ends at the router: the guest's socket must hear of both."""
    _, a1, _, router, _ = shared
    a1.expect_ping(BEYOND)
    for address, ttl, expected in ((ROUTER, 64, errno.ECONNREFUSED), (BEYOND, 2, errno.EHOSTUNREACH)):
        with a1.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.settimeout(PATIENCE)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
            sender.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
            sender.connect((address, 4242))
            sender.send(b"x")
            with pytest.raises(OSError) as raised:
                sender.recv(10)
            assert raised.value.errno == expected


def test_connections_outlive_the_daemon(shared):
    host, a1, a2, router, beyond = shared
    with EchoServer(beyond, 80), ExitStack() as stack:
        connections = [stack.enter_context(opened(guest, 40_000, BEYOND)) for guest in (a1, a2)]
        both = lambda: all(answers(connection) for connection in connections)
        assert both()
        host.kill()
        host.start()
        assert both()
        host.replace()
        assert both()
        host.stop()
        host.start()
        assert both()
        # The ports of old connections are not given to new ones.
        assert answers(opened(a1, 40_000 + 512, BEYOND)) and both()


def test_one_guests_ports_end_and_another_has_its_own(shared):
    host, a1, a2, router, _ = shared
    config = host.config.copy()
    config.entry("network", "blue")["snat_ports"] = 16
    host.apply(config)
    with EchoServer(router, 80), ExitStack() as stack:
        for port in range(40_000, 40_016):
            assert answers(stack.enter_context(opened(a1, port, ROUTER)))
        connect_in_vain(host, "snat_ports", a1, ROUTER, 80)
        assert answers(stack.enter_context(opened(a2, 40_000, ROUTER)))
        # To another destination, the same ports do.
        assert datagram(a1, ROUTER, 80)


def seen_from(guest, port, server, address):
    """Sends a datagram from this port of a guest to a server, and returns the source that the server sees."""
    with (
        server.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        guest.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.settimeout(PATIENCE)
        receiver.bind((address, 4242))
        sender.bind(("", port))
        sender.sendto(b"x", (address, 4242))
        return receiver.recvfrom(10)[1]


def test_a_guests_port_is_the_same_for_all_destinations(shared):
    host, a1, a2, router, beyond = shared
    config = host.config.copy()
    config.entry("network", "blue")["snat_mapping"] = "endpoint-independent"
    host.apply(config)
    for guest in (a1, a2):
        guest.expect_ping(BEYOND)
    # Both ports stand for the same one of a block of 512.
    ends = [(guest, port) for guest in (a1, a2) for port in (40_000, 40_512)]
    first = [seen_from(guest, port, router, ROUTER) for guest, port in ends]
    assert {address for address, _ in first} == {SHARED} and len(set(first)) == len(ends), first
    everywhere = lambda: [
        [seen_from(guest, port, server, address) for guest, port in reversed(ends)][::-1]
        for server, address in ((beyond, BEYOND), (router, ROUTER))
    ]
    assert everywhere() == [first, first]
    host.kill()
    host.start()
    assert everywhere() == [first, first], "after a crash"
    host.replace()
    assert everywhere() == [first, first], "after a replacement"
    explained = host.call("explain", "--in", "a1", f"{A1.address} > {ROUTER} / udp 40000 > 99").stdout
    assert "for all destinations" in explained and f"port {first[0][1]}" in explained, explained


def test_ports_of_the_shared_address_lead_to_guests(shared):
    host, a1, a2, router, beyond = shared
    to = {"guest": "a1", "port": 80}
    config = host.config.copy().add("forward", network="blue", outside=SHARED, protocol="tcp", port=8080, to=to)
    config.add("forward", network="blue", outside=SHARED6, protocol="tcp", port=8080, to=to)
    config.add("forward", network="blue", outside=SHARED, protocol="udp", port=53, to={"guest": "a2", "port": 5353})
    host.apply(config)
    with EchoServer(a1, 80), EchoServer(a2, 5353):
        for client in (router, beyond):
            assert answers(connect(client, SHARED, 8080))
            assert datagram(client, SHARED, 53)
        # Guests reach it as well, also each other.
        assert answers(connect(a2, SHARED, 8080)) and datagram(a1, SHARED, 53)
        with connect(router, SHARED, 8080) as connection:
            assert answers(connection)
            host.kill()
            host.start()
            assert answers(connection)
            host.replace()
            assert answers(connection)
        host.apply(config.copy().rule("blue", 10, "drop", to={"guest": "a1"}, protocol="tcp", ports="80"))
        connect_in_vain(host, "rule_drop", router, SHARED, 8080)
    with EchoServer(a1, 80, socket.AF_INET6):
        host.apply(config)
        assert answers(connect(router, SHARED6, 8080))
    with EchoServer(a1, 80), connect(router, SHARED, 8080) as connection:
        assert answers(connection)
        host.apply(config.without("forward", outside=SHARED))
        connect_in_vain(host, "snat_unknown", router, SHARED, 8080)
        # A connection that is open ends with the port.
        with dropping(host, "snat_unknown"):
            connection.send(b"x")
        assert arrived(connection) is None


def test_a_new_address_is_announced(shared, lab):
    host, a1, _, router, _ = shared
    another = "203.0.113.6"
    mac = lab.namespace("a").run(["cat", "/sys/class/net/ext0/address"]).stdout.strip()
    router.run(["ip", "neigh", "replace", another, "lladdr", "02:00:00:00:77:77", "dev", "ext0", "nud", "stale"])
    config = host.config.copy()
    config.entry("network", "blue")["snat"] = [SHARED, another, SHARED6]
    host.apply(config)
    known = lambda: mac in router.run(["ip", "neigh", "show", another]).stdout
    eventually(known, "an announcement")
    with EchoServer(router, 80):
        assert answers(connect(a1, ROUTER, 80))


def test_protocols_without_ports_are_dropped_for_a_reason(shared):
    host, a1, _, router, _ = shared
    a1.expect_ping(ROUTER)
    with a1.namespace.socket(socket.AF_INET, socket.SOCK_RAW, 50) as sender, dropping(host, "snat_protocol"):
        sender.sendto(bytes(16), (ROUTER, 0))
