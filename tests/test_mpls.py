"""MPLS over UDP and over GRE between two Viaducts."""

import itertools
import re
import socket

import pytest
from scapy.contrib.mpls import MPLS
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from lab import PATIENCE, RawPort, eventually
from lab.topology import SEATS, UNDERLAY, UNDERLAY6, host_config, tap, tunnel_routes, two_hosts
from lab.traffic import send


A1, B1 = SEATS["a1"], SEATS["b1"]
KINDS = ["mpls-over-udp", "mpls-over-gre"]


def connect(kind, family=4):
    return lambda config, *remotes: tunnel_routes(config, kind, *remotes, family=family)


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_between_two_hosts(lab, kind, family):
    hosts, guests = two_hosts(lab, connect(kind, family), ("a1", "b1", "b2"), family=family)
    with lab.capture("b", expression="not arp and not icmp6") as seen:
        # The guests are of one subnet, so neighbours: no hop between them.
        assert "ttl=64" in guests["a1"].expect_ping(B1.address)
        guests["a1"].expect_ping(B1.address6)
        guests["b2"].expect_ping(A1.address6)
        guests["a1"].expect_ping(B1.address, size=3000)
    assert seen.expert() == []
    underlay = (UNDERLAY if family == 4 else UNDERLAY6)["b"]
    outer = "ip" if family == 4 else "ipv6"
    requests = seen.fields(
        f"icmp.type == 8 && {outer}.dst == {underlay}", "mpls.label", "mpls.bottom", "udp.checksum", "gre.proto"
    )
    assert requests
    for label, bottom, checksum, protocol in requests:
        assert label == str(B1.label)
        assert bottom in ("1", "True")
        if kind == "mpls-over-gre":
            assert protocol == "0x8847"
        else:
            assert (checksum == "0x0000") == (family == 4)


def test_unknown_label_is_dropped_by_name(lab):
    hosts, guests = two_hosts(lab, connect("mpls-over-udp"))
    guests["a1"].expect_ping(B1.address)
    mac = hosts["a"].namespace.run(["cat", "/sys/class/net/up0/address"]).stdout.strip()
    outer = Ether(dst=mac) / IP(src=UNDERLAY["b"], dst=UNDERLAY["a"]) / UDP(sport=50000, dport=6635, chksum=0)
    inner = IP(src=B1.address, dst=A1.address) / UDP()
    with RawPort(lab.namespace("fabric"), "a-up0") as port:
        port.send(outer / MPLS(label=999999, s=1, ttl=64) / inner)
    eventually(lambda: hosts["a"].drops().get("unknown_label") == 1, "drop unknown_label")


def test_neighbour_on_the_underlay_is_asked_for(lab):
    """The first packet waits for ARP instead of being lost."""
    hosts, guests = two_hosts(lab, connect("mpls-over-udp"))
    received, output = guests["a1"].ping(B1.address, 3)
    assert received == 3, output


def ecmp_hosts(lab):
    """Starts host a, which reaches prefix 10.9.0.0/16 by two tunnels, to hosts b and c, which deliver it to forwarding
    guests."""
    lab.plug("a"), lab.plug("b"), lab.plug("c")
    config = host_config("a", {"a1": tap("a1")})
    hops = [{"tunnel": "mpls-over-udp", "remote": UNDERLAY[name], "label": 500} for name in ("b", "c")]
    config.add("route", network="blue", prefix="10.9.0.0/16", to=hops)
    host = lab.host(config)
    lab.namespace("b").ip("addr add", UNDERLAY["b"] + "/24", "dev up0")
    lab.namespace("c").ip("addr add", UNDERLAY["c"] + "/24", "dev up0")
    return host, lab.container(host, "a1")


def test_ecmp_keeps_a_flow_and_uses_every_path(lab):
    host, a1 = ecmp_hosts(lab)
    flows, packets = 64, 5
    # Only some of the packets that wait for next hops are kept.
    known = lambda: {row["address"] for row in host.viaduct("neigh") if row["mac"]}
    numbers = itertools.cycle(range(250))
    ask = lambda: send(a1, f"10.9.0.{next(numbers)}", 7)
    eventually(lambda: ask() or {UNDERLAY["b"], UNDERLAY["c"]} <= known(), "the next hops")
    with lab.capture("fabric", "a-up0", "udp port 6635") as seen:
        sockets = []
        for flow in range(flows):
            one = a1.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM)
            one.bind(("", 20000 + flow))
            sockets.append(one)
        for _ in range(packets):
            for one in sockets:
                one.sendto(b"x", ("10.9.0.1", 9))
        seen.wait_for("udp.dstport == 9", flows * packets)
        for one in sockets:
            one.close()
    paths, entropy = {}, {}
    for remotes, ports in seen.fields("udp.dstport == 9", "ip.dst", "udp.srcport"):
        outer_port, inner_port = ports.split(",")
        paths.setdefault(inner_port, set()).add(remotes.split(",")[0])
        entropy.setdefault(inner_port, set()).add(outer_port)
    assert len(paths) == flows
    assert all(len(used) == 1 for used in paths.values()), "a flow changed its path"
    assert all(len(used) == 1 for used in entropy.values()), "a flow changed its outer source port"
    uses = [next(iter(used)) for used in paths.values()]
    assert flows * 0.2 < uses.count(UNDERLAY["b"]) < flows * 0.8, uses.count(UNDERLAY["b"])
    assert len({next(iter(used)) for used in entropy.values()}) > flows // 2


def test_traceroute_shows_no_hop_within_a_subnet(lab):
    hosts, guests = two_hosts(lab, connect("mpls-over-udp"))
    guests["a1"].expect_ping(B1.address)
    output = guests["a1"].run(["traceroute", "-n", "-w", PATIENCE, "-q", 1, "-m", 5, B1.address]).stdout
    hops = re.findall(r"^ *\d+ +(\S+)", output, re.M)
    assert hops == [B1.address], output
