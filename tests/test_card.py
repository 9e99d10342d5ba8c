"""A host whose executor is the simulated card, clock by clock. `make card-daemon` builds its daemon."""

import socket

import pytest

from lab import eventually
from lab.host import card_daemon
from lab.topology import SEATS, host_config, tap, tunnel_routes
from lab.traffic import EchoServer, tcp_rate


@pytest.fixture(autouse=True, scope="module")
def built():
    assert card_daemon().exists(), f"no {card_daemon()}: make card-daemon"


A1, A2, B1 = SEATS["a1"], SEATS["a2"], SEATS["b1"]


def guests_of_one_host(lab, **host):
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2")}, wire=False, executor="card-sim", **host)
    started = lab.host(config)
    return started, lab.container(started, "a1"), lab.container(started, "a2")


def card(host):
    status = host.viaduct("status")
    assert status["executor"] == "card-sim"
    return status["card"]


def forwarded(host):
    return card(host).get("forwarded", 0)


def test_guests_of_one_host(lab):
    host, a1, a2 = guests_of_one_host(lab)
    a1.expect_ping(A2.address, 5)
    a1.expect_ping(A2.address6, 5)
    after_pings = card(host)
    # Each ping's first packets of either direction are the host's, and all of ARP and neighbour discovery.
    assert after_pings["forwarded"] >= 8, after_pings
    assert tcp_rate(a1, a2, A2.address, options=("-n", "200K")) > 0
    # 200 KB are more than 130 segments; some of the first are the host's.
    assert forwarded(host) >= after_pings["forwarded"] + 50
    assert host.viaduct("status")["card"].get("lost", 0) == 0


def test_what_people_see(lab):
    host, a1, a2 = guests_of_one_host(lab, metrics="127.0.0.1:9101")
    a1.expect_ping(A2.address, 5)
    told = host.call("explain", "--in", "a1", f"{A1.address} > {A2.address} / udp 1 > 2").stdout
    assert "a2" in told, told
    text = host.call("status").stdout
    assert "card-sim: " in text and "left to the host" in text, text
    metrics = host.namespace.run(["curl", "-s", "http://127.0.0.1:9101/metrics"]).stdout
    assert "viaduct_card_forwarded_packets_total" in metrics and 'viaduct_card_punted_packets_total{reason="flow_miss"}' in metrics
    # A connection counts what the card carried of it.
    sent = a1.ping(A2.address, 8)[0]
    packets = lambda: max((flow.get("packets", 0) + flow.get("reply_packets", 0) for flow in host.viaduct("flow")), default=0)
    assert sent == 8
    eventually(lambda: packets() >= 16, "the card's packets in the flow list", 20)
    vifs = {vif["name"]: vif for vif in host.viaduct("status")["vifs"]}
    assert vifs["a1"]["rx_packets"] >= 8 and vifs["a2"]["tx_packets"] >= 8


def answered(sender, n=1):
    """How many of n datagrams of one flow are answered."""
    answers = 0
    for _ in range(n):
        sender.sendto(b"hello", (A2.address, 7000))
        try:
            answers += sender.recvfrom(100)[0] == b"hello"
        except TimeoutError:
            pass
    return answers


def test_rules_bind_and_captures_see(lab):
    host, a1, a2 = guests_of_one_host(lab)
    config = lambda: host_config("a", {"a1": tap("a1"), "a2": tap("a2")}, wire=False, executor="card-sim")
    with EchoServer(a2, 7000), a1.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.settimeout(2)
        assert answered(sender, 6) == 6
        assert forwarded(host) > 0
        assert host.apply(config().rule("blue", 10, "drop", protocol="udp", ports="7000"))
        before = forwarded(host)
        assert answered(sender) == 0
        assert forwarded(host) == before
        assert host.drops() == {"rule_drop": 1}
        host.apply(config())
        assert answered(sender, 3) == 3
    capture = host.background("capture", "--count", "4", label="capture")
    eventually(lambda: a1.reaches(A2.address, 1) and not capture.running(), "a capture of four packets", 20)
    assert "ICMP" in capture.text().upper(), capture.text()


def test_two_hosts_with_a_tunnel_between(lab):
    """A card on one of them, CPU cores on the other."""
    hosts, guests = {}, {}
    for name, guest, remote, executor in (("a", "a1", "b1", "card-sim"), ("b", "b1", "a1", "cpu")):
        lab.plug(name)
        config = host_config(name, {guest: tap(guest)}, executor=executor)
        tunnel_routes(config, "mpls-over-udp", remote)
        hosts[name] = lab.host(config)
        guests[guest] = lab.container(hosts[name], guest)
    guests["a1"].expect_ping(B1.address, 5)
    guests["b1"].expect_ping(A1.address6, 5)
    before = forwarded(hosts["a"])
    assert before >= 8, card(hosts["a"])
    assert tcp_rate(guests["a1"], guests["b1"], B1.address, options=("-n", "1M")) > 0
    assert forwarded(hosts["a"]) > before + 50
