"""Packets that are too big for a tunnel: path MTU discovery, and TCP that lives with it."""

import re

import pytest

from lab.topology import SEATS, bridge_entries, tunnel_routes, two_hosts
from lab.traffic import PATIENCE, tcp_rate

B1 = SEATS["b1"]
# Outer Ethernet is no part of the MTU. MPLS over UDP: IPv4 20, UDP 8, label 4. VXLAN: IPv4 20, UDP 8, VXLAN 8,
# Ethernet 14.
OVERHEAD = {"mpls-over-udp": 32, "mpls-over-gre": 28, "vxlan": 50}


def connected(lab, kind, mtu):
    if kind == "vxlan":
        return two_hosts(lab, bridge_entries, mtu=mtu)
    return two_hosts(lab, lambda config, *remotes: tunnel_routes(config, kind, *remotes), mtu=mtu)


@pytest.mark.parametrize("kind", OVERHEAD)
def test_sender_is_told_the_size_that_fits(lab, kind):
    hosts, guests = connected(lab, kind, 1500)
    a1, fits = guests["a1"], 1500 - OVERHEAD[kind]
    a1.namespace.ip("link set", a1.device, "mtu 1500")
    a1.expect_ping(B1.address)
    received, output = a1.ping(B1.address, 2, size=1472, options=("-M", "do"), timeout=PATIENCE)
    assert received == 0
    told = re.search(r"(?:mtu ?= ?)(\d+)", output)
    assert told, output
    # A network's MTU fits each of its tunnels: less than what this very one would carry, never more.
    assert 1280 <= int(told[1]) <= fits
    a1.expect_ping(B1.address, size=int(told[1]) - 28, options=("-M", "do"))
    assert hosts["a"].drops().get("mtu")


@pytest.mark.parametrize("kind", OVERHEAD)
def test_sender_is_told_in_ipv6_too(lab, kind):
    hosts, guests = connected(lab, kind, 1500)
    a1 = guests["a1"]
    a1.namespace.ip("link set", a1.device, "mtu 1500")
    a1.expect_ping(B1.address6)
    a1.ping(B1.address6, 2, size=1452, options=("-M", "do"), timeout=PATIENCE)
    route = a1.run(["ip", "-6", "route", "get", B1.address6]).stdout
    told = re.search(r"mtu (\d+)", route)
    assert told and 1280 <= int(told[1]) <= 1500 - OVERHEAD[kind], route


@pytest.mark.parametrize("kind", OVERHEAD)
def test_tcp_gets_through_where_guests_believe_in_1500(lab, kind):
    _, guests = connected(lab, kind, 1500)
    a1, b1 = guests["a1"], guests["b1"]
    for guest in (a1, b1):
        guest.namespace.ip("link set", guest.device, "mtu 1500")
    a1.expect_ping(B1.address)
    lab.segment("a", "b")
    with lab.capture("fabric", "a-up0", "ip") as seen:
        tcp_rate(a1, b1, B1.address, options=("-n", "4M"))
    assert seen.fields("frame.len > 1514", "frame.len") == []
    assert seen.expert() == []


def test_network_hands_a_fitting_mtu_to_nobody_but_enforces_it(lab):
    """Two guests of one host may use all of their own MTU: the tunnel's overhead is none of their business."""
    _, guests = two_hosts(lab, bridge_entries, ("a1", "a2", "b1"), mtu=9000)
    a1 = guests["a1"]
    size = int(a1.run(["cat", f"/sys/class/net/{a1.device}/mtu"]).stdout)
    a1.expect_ping(SEATS["a2"].address, size=size - 28, options=("-M", "do"))


@pytest.mark.parametrize("family", [4, 6])
def test_syns_ask_for_what_fits_where_the_network_clamps(lab, family):
    def clamped(config, *remotes):
        config.entry("network", "blue")["mss_clamp"] = True
        return tunnel_routes(config, "mpls-over-udp", *remotes)

    hosts, guests = two_hosts(lab, clamped, mtu=1500)
    a1, b1 = guests["a1"], guests["b1"]
    address, headers = (B1.address, 40) if family == 4 else (B1.address6, 60)
    for guest in (a1, b1):
        guest.namespace.ip("link set", guest.device, "mtu 1500")
    with lab.capture("b1", b1.device) as seen:
        tcp_rate(a1, b1, address, options=("-n", "1M"))
    asked = {int(row[0]) for row in seen.fields("tcp.flags.syn == 1 && tcp.flags.ack == 0", "tcp.options.mss_val")}
    assert asked and max(asked) <= 1500 - OVERHEAD["mpls-over-udp"] - headers, asked
    assert "mtu" not in hosts["a"].drops() and "mtu" not in hosts["b"].drops()
