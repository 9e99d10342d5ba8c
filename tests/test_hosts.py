"""More than one host: on one provider network, in one overlay, and on an underlay that carries less than they
think."""

import re
import socket

import pytest

from lab import PATIENCE, Server, eventually
from lab.config import Config
from lab.topology import GATEWAY_MAC, SEATS, UNDERLAY, host_config, tap, tunnel_routes, two_hosts

A1, B1 = SEATS["a1"], SEATS["b1"]
ROUTER = "203.0.113.1"
FLOATING = {"a": "203.0.113.7", "b": "203.0.113.8"}
BROADCASTS = "icmp.type == 8 && eth.dst == ff:ff:ff:ff:ff:ff"
GATEWAYS = {"a": "203.0.113.253/24", "b": "203.0.113.254/24"}


@pytest.fixture
def provider(lab):
    """Starts hosts a and b, whose guests a1 and b1 have floating addresses on one provider network; a Linux bridge is
    its switch, a plain Linux machine its router."""
    guests = {}
    for name, seat in (("a", "a1"), ("b", "b1")):
        lab.plug(name, "ext0", mtu=1500, fabric="outside")
        config = host_config(name, {seat: tap(seat)}, wire=False)
        config.add("wire", name="ext0", driver="af-packet", device="ext0")
        config.add("network", name="public", vrf=3, gateways=[GATEWAYS[name]], wire="ext0")
        config.add("route", network="blue", prefix="0.0.0.0/0", to={"network": "public"})
        config.add("nat", network="blue", inside=SEATS[seat].address, outside=FLOATING[name], outside_network="public")
        guests[name] = lab.container(lab.host(config), seat)
    server = lab.plug("c", "ext0", mtu=1500, fabric="outside")
    server.ip("addr add", f"{ROUTER}/24", "dev ext0")
    return guests, Server(server)


def test_two_hosts_on_one_provider_network(provider, lab):
    guests, router = provider
    with lab.capture("c", "ext0") as seen:
        for address in FLOATING.values():
            router.expect_ping(address)
        for guest in guests.values():
            guest.expect_ping(ROUTER)
        # Each believes the other's ARP, and the switch finds both.
        guests["a"].expect_ping(FLOATING["b"])
        guests["b"].expect_ping(FLOATING["a"])
        for _ in range(3):
            for address in FLOATING.values():
                router.expect_ping(address, 5)
    assert seen.fields(f"eth.addr == {GATEWAY_MAC} || arp.src.hw_mac == {GATEWAY_MAC}", "frame.number") == []
    switch = lab.namespace("outside").run(["bridge", "fdb", "show", "br", "br0"]).stdout
    assert GATEWAY_MAC not in switch
    macs = {line.split()[0] for line in router.run(["ip", "neigh", "show"]).stdout.splitlines()}
    assert {*FLOATING.values()} <= macs


def test_guests_see_one_gateway(provider):
    guests, _ = provider
    guests["a"].expect_ping("10.1.1.254")
    assert GATEWAY_MAC in guests["a"].run(["ip", "neigh", "show", "10.1.1.254"]).stdout


SERVER = "10.1.1.50"


@pytest.fixture
def gateway(lab):
    """Starts host a, with guests a1 of network blue and a3 of red; host b, on whose second wire blue goes on, to a
    server. VXLAN between them."""
    guests = {}
    for name in ("a", "b"):
        other = "b" if name == "a" else "a"
        lab.plug(name)
        config = host_config(name, {"a1": tap("a1"), "a3": tap("a3")} if name == "a" else {"b1": tap("b1")})
        config.add("flood", network="blue", to={"tunnel": "vxlan", "remote": UNDERLAY[other], "vni": 5001})
        if name == "a":
            config.add("route", network="red", prefix="10.1.1.0/24", to={"network": "blue"})
            config.add("route", network="blue", prefix="10.2.2.0/24", to={"network": "red"})
        else:
            lab.plug(name, "ext0", fabric="outside")
            config.add("wire", name="ext0", driver="af-packet", device="ext0")
            back = {"tunnel": "vxlan", "remote": UNDERLAY["a"], "vni": 5001}
            config.add("route", network="blue", prefix="10.2.2.0/24", to=[back])
            config.entry("network", "blue").update(wire="ext0", l2_gateway="b", mtu=1450)
            # An unknown guest: nobody but itself says where it is.
            keys = config.entry("guest", "b1")
            for key in ("addresses", "mac", "label"):
                del keys[key]
        host = lab.host(config)
        for seat in ("a1", "a3") if name == "a" else ("b1",):
            guests[seat] = lab.container(host, seat)
    guests["b1"].namespace.ip("addr add", f"{B1.address}/24", "dev", guests["b1"].device)
    guests["b1"].namespace.ip("route add default via 10.1.1.254")
    server = lab.plug("c", "ext0", mtu=1450, fabric="outside")
    server.ip("addr add", f"{SERVER}/24", "dev ext0")
    server.ip("route add default via 10.1.1.254")
    return guests, Server(server)


def test_vxlan_and_a_wire_both_ways(gateway, lab):
    guests, server = gateway
    guests["a1"].expect_ping(SERVER)
    server.expect_ping(A1.address)
    guests["b1"].expect_ping(SERVER)
    with lab.capture("c", "ext0", "icmp") as seen:
        guests["a1"].run(["ping", "-b", "-c", 3, "-i", 0.2, "-W", 1, "10.1.1.255"], check=False)
        seen.wait_for(BROADCASTS, 3)
    assert len(seen.fields(BROADCASTS, "frame.number")) == 3, "a broadcast came more than once"


def test_gateway_finds_guests_and_servers_of_another_host(gateway):
    guests, _ = gateway
    guests["a3"].expect_ping(B1.address)
    guests["a3"].expect_ping(SERVER)


@pytest.mark.parametrize("kind", ["mpls-over-udp", "mpls-over-gre"])
def test_guests_of_one_subnet_are_one_hop_apart(lab, kind):
    _, guests = two_hosts(lab, lambda config, *remotes: tunnel_routes(config, kind, *remotes))
    for address in (B1.address, B1.address6):
        output = guests["a1"].expect_ping(address, options=("-t", "1"))
        assert "ttl=64" in output


# Of linux/in.h.
IP_MTU_DISCOVER, IP_PMTUDISC_DONT = 10, 0
UNDERLAYS = {"a": ("192.0.2.1/24", "192.0.2.254"), "b": ("198.51.100.1/24", "198.51.100.254")}


def hosts_with_a_router_between(lab, kind, **host):
    """Starts two hosts whose router has a link that carries less than they believe; returns them and their guests."""
    hosts, containers = {}, {}
    for name, (address, router) in UNDERLAYS.items():
        lab.plug(name, fabric=f"fabric-{name}", mtu=1500)
        lab.plug("r", f"to-{name}", fabric=f"fabric-{name}", mtu=1500)
        lab.namespace("r").ip("addr add", f"{router}/24", "dev", f"to-{name}")
    lab.namespace("r").sysctl("net.ipv4.ip_forward", 1)
    lab.namespace("r").ip("link set to-b mtu 1300")
    for name, seat, other in (("a", A1, B1), ("b", B1, A1)):
        address, router = UNDERLAYS[name]
        remote = UNDERLAYS["b" if name == "a" else "a"][0].split("/")[0]
        config = Config(name, tunnel_source=address.split("/")[0], **host)
        config.add("wire", name="up0", driver="af-packet", device="up0", addresses=[address], gateway=router, mtu=1500)
        config.add("network", name="blue", vrf=1, gateways=["10.1.1.254/24"], vni=5001)
        config.add(
            "guest",
            name=seat.name,
            network="blue",
            mac=seat.mac,
            addresses=[seat.address],
            label=seat.label,
            **tap(seat.name),
        )
        if kind == "vxlan":
            config.add("mac", network="blue", mac=other.mac, to={"tunnel": "vxlan", "remote": remote, "vni": 5001})
            config.add("flood", network="blue", to={"tunnel": "vxlan", "remote": remote, "vni": 5001})
        else:
            hop = {"tunnel": kind, "remote": remote, "label": other.label}
            config.add("route", network="blue", prefix=f"{other.address}/32", to=[hop])
        hosts[name] = lab.host(config)
        containers[name] = lab.container(hosts[name], seat.name)
    return hosts, containers


@pytest.mark.parametrize("kind", ["mpls-over-udp", "vxlan"])
def test_underlay_that_carries_less(lab, kind):
    """A sender is told of a router between the hosts whose way carries less than either believes."""
    _, containers = hosts_with_a_router_between(lab, kind)
    a1 = containers["a"]
    a1.expect_ping(B1.address)

    def told():
        _, output = a1.ping(B1.address, 1, size=1372, options=("-M", "do"), timeout=1)
        return re.search(r"mtu ?= ?(\d+)", output)

    mtu = int(eventually(told, "the sender is told")[1])
    assert mtu == 1300 - (50 if kind == "vxlan" else 32)
    a1.expect_ping(B1.address, size=mtu - 28, options=("-M", "do"))
    if kind == "vxlan":
        return
    # Without Don't Fragment, what is routed goes in fragments.
    a1.namespace.ip("route flush cache")
    udp = (socket.AF_INET, socket.SOCK_DGRAM)
    with containers["b"].namespace.socket(*udp) as there, a1.namespace.socket(*udp) as here:
        there.bind(("", 4000))
        there.settimeout(PATIENCE)
        here.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT)
        sent = bytes(number % 251 for number in range(1372))
        here.sendto(sent, (B1.address, 4000))
        assert there.recv(2000) == sent


@pytest.mark.parametrize("kind", ["mpls-over-udp", "mpls-over-gre", "vxlan"])
def test_underlay_whose_routers_fragment(lab, kind):
    """With `tunnel_df = false` routers may fragment tunnel packets, and the other host reassembles them. Viaduct itself
    fragments those of MPLS that its own wire does not carry."""
    hosts, containers = hosts_with_a_router_between(lab, kind, tunnel_df=False)
    a1 = containers["a"]
    a1.expect_ping(B1.address)
    udp = (socket.AF_INET, socket.SOCK_DGRAM)
    with containers["b"].namespace.socket(*udp) as there, a1.namespace.socket(*udp) as here:
        there.bind(("", 4000))
        there.settimeout(PATIENCE)
        here.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT)
        for first in range(5):
            sent = bytes((first + number) % 251 for number in range(1372))
            here.sendto(sent, (B1.address, 4000))
            assert there.recv(2000) == sent
    if kind == "vxlan":
        return
    # The wire of b carries 1300 bytes, and its guest sends more: b fragments by itself.
    config = hosts["b"].config
    config.entry("wire", "up0")["mtu"], config.entry("guest", "b1")["mtu"] = 1300, 1450
    hosts["b"].apply(config)
    a1.expect_ping(B1.address, size=1372, options=("-M", "dont"))
    drops = {**hosts["a"].drops(), **hosts["b"].drops()}
    wrong = ("mtu", "outer_fragment", "reassembly_failed", "reassembly_timeout")
    assert not any(drops.get(name) for name in wrong), drops
