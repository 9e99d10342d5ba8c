"""What belongs to a connection, and what does not: forged resets, ICMP errors, replies that nobody asked for,
restarts."""

import socket
import struct

import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6DestUnreach, ICMPv6EchoReply, ICMPv6EchoRequest, IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from lab import PATIENCE, RawPort, eventually
from lab.silence import unwanted
from lab.topology import SEATS, host_config, tap
from lab.traffic import arrived, dropping

A1, A2, B1 = SEATS["a1"], SEATS["a2"], SEATS["b1"]
IPV4, IPV6 = (IP, "address", socket.AF_INET), (IPv6, "address6", socket.AF_INET6)


def world(lab, *rules, guests=("a1", "a2"), keys=None, **network):
    """Starts host a with containers, a default to drop, and these rules of network blue: keys of each that allows."""
    entries = {guest: {**tap(guest), **(keys or {}).get(guest, {})} for guest in guests}
    config = host_config("a", entries, wire=False)
    config.entry("network", "blue").update(network)
    for priority, matches in enumerate(rules, 10):
        config.rule("blue", priority, "allow", **matches)
    config.add("default", network="blue", action="drop")
    host = lab.host(config)
    return host, *[lab.container(host, guest) for guest in guests]


FROM_A1 = {"source": {"guest": "a1"}, "to": {"guest": "a2"}}


class Stream:
    """A TCP connection from a1 to a2, both of whose ends the test holds, and whose packets it sees at a1."""

    def __init__(self, a1, a2, family=IPV4):
        self.ip, self.address, kind = family
        with a2.namespace.socket(kind, socket.SOCK_STREAM) as listener:
            listener.bind(("", 80))
            listener.listen()
            self.client = a1.namespace.socket(kind, socket.SOCK_STREAM)
            self.client.settimeout(PATIENCE)
            self.client.connect((getattr(A2, self.address), 80))
            self.server, _ = listener.accept()
        self.server.settimeout(PATIENCE)
        self.port = self.client.getsockname()[1]
        self.seen, self.forge = RawPort(a1.namespace, a1.device), RawPort(a2.namespace, a2.device)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in (self.client, self.server, self.seen, self.forge):
            one.__exit__()

    def next(self, text):
        """Sends text from the server; the sequence number that follows."""
        self.server.sendall(text)
        assert self.client.recv(100) == text
        segment = lambda frame: text in frame and Ether(frame)[TCP]
        tcp = segment(self.seen.expect(segment, "segment with the text"))
        return tcp.seq + len(text)

    def passes(self, text):
        """Says whether data pass in both directions."""
        self.client.sendall(text)
        return self.server.recv(100) == text and bool(self.next(text))

    def reset(self, seq, flags="R"):
        """Sends a reset as from the server."""
        ip = self.ip(src=getattr(A2, self.address), dst=getattr(A1, self.address))
        tcp = TCP(sport=80, dport=self.port, seq=seq & 0xFFFFFFFF, flags=flags)
        self.forge.send(Ether(src=A2.mac, dst=A1.mac) / ip / tcp)

    def state(self, host):
        """Returns the states that Viaduct says the connection has."""
        return [flow["state"] for flow in host.viaduct("flow", "--match", f"tcp & port {self.port}")]


def is_reset(frame):
    packet = Ether(frame)
    return TCP in packet and "R" in packet[TCP].flags


@pytest.mark.parametrize("family", [IPV4, IPV6])
def test_a_reset_closes_only_the_connection_whose_next_it_is(lab, family):
    host, a1, a2 = world(lab, FROM_A1)
    with Stream(a1, a2, family) as stream:
        after = stream.next(b"first")
        for seq in (after + (1 << 30), after - 1, after - 5000):
            stream.reset(seq)
        eventually(lambda: host.drops().get("tcp_reset") == 3, "drops of them")
        assert stream.state(host) == ["established"]
        stream.server.sendall(b"behind them")
        assert not stream.seen.before(lambda frame: b"behind them" in frame, is_reset), "none reaches the client"
        assert stream.client.recv(100) == b"behind them" and stream.passes(b"second")
        # In the window: the client asks back, which its server ignores.
        after = stream.next(b"third")
        stream.reset(after + 100)
        stream.seen.expect(is_reset, "doubtful reset")
        assert stream.passes(b"fourth") and stream.state(host) == ["established"]
        after = stream.next(b"fifth")
        stream.reset(after)
        stream.seen.expect(is_reset, "exact reset")
        assert eventually(lambda: stream.state(host) == ["closed"], "a closed connection")
        with pytest.raises(ConnectionResetError):
            stream.client.recv(10)


def test_a_program_that_aborts_closes_its_connection(lab):
    host, a1, a2 = world(lab, FROM_A1)
    for end in ("client", "server"):
        with Stream(a1, a2) as stream:
            assert stream.passes(b"hello")
            stream.client.sendall(b"unread")
            getattr(stream, end).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            getattr(stream, end).close()
            eventually(lambda: stream.state(host) in (["closed"], []), f"a connection closed by the {end}")
    assert not host.drops().get("tcp_reset")


def test_a_connection_whose_server_speaks_first_survives_a_restart(lab):
    host, a1, a2 = world(lab, FROM_A1)
    with Stream(a1, a2) as stream:
        assert stream.passes(b"before")
        host.kill()
        host.start()
        stream.server.settimeout(PATIENCE), stream.client.settimeout(PATIENCE)
        stream.server.sendall(b"after")
        assert stream.client.recv(100) == b"after"
        (flow,) = host.viaduct("flow", "--match", f"tcp & port {stream.port}")
        assert flow["destination"] == A2.address, "its client is who opened it"


@pytest.mark.parametrize("midstream", [True, "reverse"])
def test_a_server_that_speaks_first_is_picked_up_where_the_network_says_so(lab, midstream):
    host, a1, a2 = world(lab, FROM_A1, tcp_midstream=midstream)
    [network] = [network for network in host.viaduct("network") if network["name"] == "blue"]
    assert network["tcp_midstream"] == midstream
    with Stream(a1, a2) as stream:
        assert stream.passes(b"before")
        host.call("flow", "flush")
        stream.client.settimeout(PATIENCE)
        stream.server.sendall(b"after")
        if midstream != "reverse":
            stream.client.settimeout(1)
            with pytest.raises(TimeoutError):
                stream.client.recv(100)
            stream.client.settimeout(PATIENCE)
            stream.client.sendall(b"alive")
        assert stream.client.recv(100) == b"after"
        (flow,) = host.viaduct("flow", "--match", f"tcp & port {stream.port}")
        assert flow["destination"] == A2.address, "its client is who opened it"


@pytest.mark.parametrize("midstream", [True, "reverse"])
@pytest.mark.parametrize("v6", [False, True])
def test_scans_do_not_pass_against_the_rules(lab, v6, midstream):
    host, a1, a2 = world(lab, FROM_A1, tcp_midstream=midstream)
    of = lambda seat: seat.address6 if v6 else seat.address
    with RawPort(a1.namespace, a1.device) as at_a1, RawPort(a2.namespace, a2.device) as at_a2:
        there = Ether(src=A2.mac, dst=A1.mac) / (IPv6 if v6 else IP)(src=of(A2), dst=of(A1))
        at_a2.send(*(there / TCP(sport=4000, dport=22, flags=flags) for flags in ("", "F", "FPU", "S", "R", "A")))
        probes = lambda frame: TCP in (packet := Ether(frame)) and packet[TCP].dport == 22
        if midstream == "reverse":
            at_a1.expect(probes, "the one that may belong to a connection")
        assert not at_a1.collect(probes, 0.3)
    assert host.drops()["default_drop"] >= 5


def test_a_network_that_picks_up_nothing_in_mid_stream(lab):
    host, a1, a2 = world(lab, FROM_A1, tcp_midstream=False)
    with Stream(a1, a2) as stream:
        assert stream.passes(b"before")
        host.call("flow", "flush")
        with dropping(host, "tcp_midstream"):
            stream.client.sendall(b"lost")
        assert arrived(stream.server) is None


@pytest.mark.parametrize("v6", [False, True])
def test_errors_about_others_do_not_pass(lab, v6):
    host, a1, a2, b1 = world(lab, {**FROM_A1, "protocol": "udp"}, guests=("a1", "a2", "b1"))
    of = lambda seat: seat.address6 if v6 else seat.address
    ip = lambda source, to: (IPv6 if v6 else IP)(src=of(source), dst=of(to))
    unreachable = ICMPv6DestUnreach(code=4) if v6 else ICMP(type=3, code=3)
    error = lambda source, to, quoted: Ether(src=source.mac, dst=to.mac) / ip(source, to) / unreachable / quoted
    quoted = ip(A1, A2) / UDP(sport=1000, dport=53)
    ports = [RawPort(guest.namespace, guest.device) for guest in (a1, a2, b1)]
    at_a1, at_a2, at_b1 = ports
    is_error = lambda frame: (packet := Ether(frame)) and (
        ICMPv6DestUnreach in packet or ICMP in packet and packet[ICMP].type == 3
    )
    silent = a2.namespace.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM)
    silent.bind(("", 53))  # else the kernel of a2 sends an error of its own
    at_a1.send(Ether(src=A1.mac, dst=A2.mac) / quoted)
    at_a2.expect(lambda frame: UDP in Ether(frame), "request")
    with dropping(host, "default_drop", 2):
        at_a2.send(error(A2, B1, quoted))  # to somebody else
        at_b1.send(error(B1, A1, quoted))  # from somebody else
    at_a2.send(error(A2, A1, quoted))
    came = Ether(at_a1.expect(is_error, "error from where the packet went"))
    assert came.src == A2.mac and not unwanted(at_b1, B1, is_error)
    for one in (silent, *(port.socket for port in ports)):
        one.close()


@pytest.mark.parametrize("v6", [False, True])
def test_a_ping_lets_in_its_replies_and_nothing_else(lab, v6):
    host, a1, a2 = world(lab, {**FROM_A1, "protocol": "icmp6" if v6 else "icmp"})
    if v6:
        ip, request, reply = IPv6, ICMPv6EchoRequest, ICMPv6EchoReply
    else:
        ip, request, reply = IP, lambda id: ICMP(type=8, id=id), lambda id: ICMP(type=0, id=id)
    of = lambda seat: seat.address6 if v6 else seat.address
    there = lambda icmp: Ether(src=A1.mac, dst=A2.mac) / ip(src=of(A1), dst=of(A2)) / icmp
    back = lambda icmp, text: Ether(src=A2.mac, dst=A1.mac) / ip(src=of(A2), dst=of(A1)) / icmp / Raw(text)
    with RawPort(a1.namespace, a1.device) as at_a1, RawPort(a2.namespace, a2.device) as at_a2:
        at_a1.send(there(request(id=7)) / Raw(b"asked"))
        at_a2.expect(lambda frame: b"asked" in frame, "request")
        at_a2.send(back(request(id=7), b"strange"), back(reply(id=8), b"strange"), back(reply(id=7), b"expected"))
        # They come in order. The kernel of a2 answers as well.
        arrived = at_a1.expect(lambda frame: b"strange" in frame or b"expected" in frame, "reply")
    assert b"expected" in arrived


def test_timestamp_requests_let_in_no_redirects(lab):
    host, a1, a2 = world(lab, {**FROM_A1, "protocol": "icmp"}, keys={"a2": {"router": True}})
    there = Ether(src=A1.mac, dst=A2.mac) / IP(src=A1.address, dst=A2.address)
    back = Ether(src=A2.mac, dst=A1.mac) / IP(src=A2.address, dst=A1.address)
    redirect = ICMP(type=5, code=1, gw=A2.address) / IP(src=A1.address, dst="10.1.1.77") / UDP(sport=1, dport=2)
    with RawPort(a1.namespace, a1.device) as at_a1, RawPort(a2.namespace, a2.device) as at_a2:
        at_a1.send(there / ICMP(type=13, id=0, ts_ori=1))
        kind = lambda wanted: lambda frame: ICMP in (packet := Ether(frame)) and packet[ICMP].type == wanted
        at_a2.expect(kind(13), "timestamp request")
        at_a2.send(back / redirect, back / ICMP(type=14, id=0, ts_ori=1))
        assert not at_a1.before(kind(14), kind(5), "timestamp reply"), "they come in order"
    assert host.drops()["default_drop"]


def test_a_client_on_the_port_of_roce_gets_answers(lab):
    host, a1, a2 = world(lab, {**FROM_A1, "protocol": "udp", "ports": "53"})
    with a2.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        with a1.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            server.bind((A2.address, 53)), client.bind((A1.address, 4791))
            server.settimeout(PATIENCE), client.settimeout(PATIENCE)
            client.sendto(b"question", (A2.address, 53))
            question, sender = server.recvfrom(100)
            server.sendto(b"answer", sender)
            assert (question, client.recv(100)) == (b"question", b"answer")


def test_one_rule_is_enough_for_dhcp(lab):
    rule = {"protocol": "udp", "ports": "67"}
    host, a1, a2 = world(lab, rule, keys={"a2": {"dhcp_server": True}})
    asks = Ether(src=A1.mac, dst="ff:ff:ff:ff:ff:ff") / IP(src="0.0.0.0", dst="255.255.255.255")
    offers = Ether(src=A2.mac, dst=A1.mac) / IP(src=A2.address, dst=A1.address)
    discover = UDP(sport=68, dport=67) / BOOTP(op=1, xid=77) / DHCP(options=[("message-type", "discover"), "end"])
    offer = (
        UDP(sport=67, dport=68)
        / BOOTP(op=2, xid=77, yiaddr=A1.address)
        / DHCP(options=[("message-type", "offer"), "end"])
    )
    with RawPort(a1.namespace, a1.device) as at_a1, RawPort(a2.namespace, a2.device) as at_a2:
        of = lambda op: lambda frame: BOOTP in (packet := Ether(frame)) and packet[BOOTP].op == op
        at_a1.send(asks / discover)
        at_a2.expect(of(1), "discover")
        at_a2.send(offers / offer)
        at_a1.expect(of(2), "offer")
