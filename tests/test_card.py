"""A host whose executor is the simulated card, clock by clock."""

import re
import socket

import pytest

from lab import eventually
from lab.capture import tshark
from lab.marks import switches
from lab.switched import address, guest_config, mac, offloaded, send, switched, udp_flow
from lab.topology import SEATS, UNDERLAY, UNDERLAY6, host_config, tap, tunnel_routes
from lab.traffic import PATIENCE, EchoServer, arrived, dropping, tcp_rate

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


def transfer_until_carried(host, source, target, address, least):
    """Transfers by TCP until the card has carried this many packets more: the first of each connection are the
    host's."""
    start = forwarded(host)
    for _ in range(10):
        tcp_rate(source, target, address, options=("-n", "1M"))
        if forwarded(host) >= start + least:
            return
    raise AssertionError(f"of ten transfers the card carried {forwarded(host) - start} packets: {card(host)}")


def ping_until_carried(host, guest, address):
    """Pings until the card has carried some: of each ping the first are the host's, and all of neighbour discovery."""

    def carried():
        guest.expect_ping(address, 5)
        return forwarded(host) >= 8

    eventually(carried, "pings by the card")


def test_guests_of_one_host(lab):
    host, a1, a2 = guests_of_one_host(lab)
    a1.expect_ping(A2.address6, 5)
    ping_until_carried(host, a1, A2.address)
    transfer_until_carried(host, a1, a2, A2.address, 100)
    assert host.viaduct("status")["card"].get("lost", 0) == 0


def test_what_people_see(lab):
    host, a1, a2 = guests_of_one_host(lab, metrics="127.0.0.1:9101")
    a1.expect_ping(A2.address, 5)
    told = host.call("explain", "--in", "a1", f"{A1.address} > {A2.address} / udp 1 > 2").stdout
    assert "a2" in told, told
    text = host.call("status").stdout
    assert "card-sim: " in text and "left to the host" in text, text
    metrics = host.namespace.run(["curl", "-s", "http://127.0.0.1:9101/metrics"]).stdout
    assert (
        "viaduct_card_forwarded_packets_total" in metrics
        and 'viaduct_card_punted_packets_total{reason="flow_miss"}' in metrics
    )
    # A connection counts what the card carried of it.
    sent = a1.ping(A2.address, 8)[0]
    packets = lambda: max(
        (flow.get("packets", 0) + flow.get("reply_packets", 0) for flow in host.viaduct("flow")), default=0
    )
    assert sent == 8
    eventually(lambda: packets() >= 16, "the card's packets in the flow list")
    vifs = {vif["name"]: vif for vif in host.viaduct("status")["vifs"]}
    assert vifs["a1"]["rx_packets"] >= 8 and vifs["a2"]["tx_packets"] >= 8


def exchange(sender, n=1, there=(A2.address, 7000)):
    """Has n datagrams of one flow answered."""
    for _ in range(n):
        sender.sendto(b"hello", there)
        assert sender.recv(100) == b"hello"


def knock(sender, text, there, n=1):
    """Sends n datagrams of one flow; returns the answers that have come by now, also to earlier ones."""
    for _ in range(n):
        sender.sendto(text, there)
    return list(iter(lambda: arrived(sender), None))


def test_rules_bind_and_captures_see(lab):
    host, a1, a2 = guests_of_one_host(lab)
    config = lambda: host_config("a", {"a1": tap("a1"), "a2": tap("a2")}, wire=False, executor="card-sim")
    with EchoServer(a2, 7000), a1.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.settimeout(PATIENCE)
        eventually(lambda: exchange(sender) or forwarded(host) > 0, "datagrams by the card")
        assert host.apply(config().rule("blue", 10, "drop", protocol="udp", ports="7000"))
        before = forwarded(host)
        with dropping(host, "rule_drop"):
            sender.sendto(b"dropped", (A2.address, 7000))
        assert host.drops()["rule_drop"] == 1 and forwarded(host) == before and not arrived(sender)
        host.apply(config())
        exchange(sender, 3)
    capture = host.background("capture", "--count", "4", label="capture")
    eventually(lambda: a1.reaches(A2.address, 1) and not capture.running(), "a capture of four packets")
    assert "ICMP" in capture.text().upper(), capture.text()


@pytest.mark.parametrize("family", [4, 6])
def test_two_hosts_with_a_tunnel_between(lab, family):
    """A card on one host and CPU cores on the other understand each other."""
    hosts, guests = {}, {}
    for name, guest, remote, executor in (("a", "a1", "b1", "card-sim"), ("b", "b1", "a1", "cpu")):
        lab.plug(name)
        config = host_config(name, {guest: tap(guest)}, executor=executor, family=family)
        tunnel_routes(config, "mpls-over-udp", remote, family=family)
        hosts[name] = lab.host(config)
        guests[guest] = lab.container(hosts[name], guest)
    guests["b1"].expect_ping(A1.address6, 5)
    ping_until_carried(hosts["a"], guests["a1"], B1.address)
    of_card = f"ip.src == {UNDERLAY['a']}" if family == 4 else f"ipv6.src == {UNDERLAY6['a']}"
    with lab.capture("b", expression="udp") as seen:
        transfer_until_carried(hosts["a"], guests["a1"], guests["b1"], B1.address, 100)
    # Over IPv6 UDP has a checksum, over all of the payload.
    wrong = f"{of_card} && udp.checksum.status == 0"
    assert tshark(seen.file, "-o", "udp.check_checksum:TRUE", "-Y", wrong) == ""
    checksums = {checksum for (checksum,) in seen.fields(of_card, "udp.checksum")}
    assert checksums and ("0x0000" in checksums) == (family == 4)


def carried(host, *, least):
    """Returns the rows of `viaduct ovs flows` whose flows the card forwarded at least this many packets of."""
    return [row for row in host.viaduct("ovs", "flows") if row.get("card_entries") and row["packets"] >= least]


@switches
def test_flows_of_an_open_vswitch(lab):
    """Flows that the card can say go onto it, and the rest stays: packets, counters, and changes that end entries."""
    host, ovs, (one, two) = switched(lab, config=guest_config(executor="card-sim"))
    one.expect_ping(address(2))
    # A flow that the card can say: NORMAL, between two MACs. One that changes packets can't go there.
    udp_flow(ovs, 1002, "dec_ttl,output:o2")
    send(one, 1002)
    with EchoServer(two, 7000), one.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        there = (address(2), 7000)
        start = forwarded(host)
        by_card = lambda count: knock(sender, b"hello", there, 5) and forwarded(host) >= count
        eventually(lambda: by_card(start + 50), "datagrams by the card")
        # Packets that the card forwards count as the flow's, in Viaduct and in OVS.
        eventually(lambda: carried(host, least=20), "the card's packets in the flow's counters")
        line = lambda: offloaded(ovs, rf"src={mac(1)},dst={mac(2)}", r"eth_type\(0x0800\)", "actions:o2")
        eventually(lambda: int(re.search(r"packets:(\d+)", line())[1]) >= 20, "the card's packets in OVS")
        (port,) = [row for row in host.viaduct("ovs") if row["name"] == "o1"]
        assert port["on_card"] >= 1 and port["stays"].get("match", 0) + port["stays"].get("changes", 0) >= 1, port
        # A flow that is removed takes no packet any more once the removal is made.
        ovs.ofctl("add-flow", "priority=30,in_port=o1,udp,tp_dst=7000,actions=drop")
        dropped = lambda: host.drops().get("ovs_drop", 0)
        start = dropped()
        eventually(lambda: (knock(sender, b"hello", there), dropped() > start)[1], "a drop")
        before = forwarded(host)
        with dropping(host, "ovs_drop", 2):
            knock(sender, b"dropped", there, 2)
        assert forwarded(host) == before and b"dropped" not in iter(lambda: arrived(sender), None)
        ovs.ofctl("del-flows", "udp,tp_dst=7000")
        eventually(lambda: by_card(before + 1), "datagrams by the card")
    assert card(host).get("lost", 0) == 0
