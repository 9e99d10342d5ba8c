"""Routing between networks of different VNIs by EVPN: `l3vni`, with FRR as the reflector."""

import pytest

from lab import eventually
from lab.bgp import AS, Frr, Gobgp, Router
from lab.topology import SEATS, UNDERLAY, host_config, tap

A1, B1, B3 = SEATS["a1"], SEATS["b1"], SEATS["b3"]
# The network of the sessions, which the kernel keeps.
CONTROL = {"a": "198.51.100.1", "b": "198.51.100.2", "go": "198.51.100.3", "rr": "198.51.100.9"}
L3VNI = {"blue": 6001, "red": 6002}
ROUTER_MAC = {"a": "06:5e:c0:00:02:01", "b": "06:5e:c0:00:02:02", "c": "02:cc:00:00:00:03"}


def plug(lab, name):
    """Connects a namespace with the network of the sessions."""
    namespace = lab.plug(name, "ctl0", fabric="control")
    namespace.ip("addr add", f"{CONTROL[name]}/24", "dev ctl0")
    return namespace


@pytest.fixture
def reflector(lab):
    clients = [CONTROL[name] for name in ("a", "b", "go")]
    reflector = Frr(plug(lab, "rr"), lab.directory / "rr", CONTROL["rr"], clients)
    lab.cleanup.callback(reflector.stop)
    return reflector.start()


def start(lab, name, guests):
    """Starts a host whose networks take each other's routes."""
    config = host_config(name, {guest: tap(guest) for guest in guests})
    for kind, keys in config.tables:
        if kind == "guest":
            del keys["label"]
        if kind == "network":
            targets = [f"{AS}:{vni}" for vni in L3VNI.values()]
            keys |= {"evpn": True, "l3vni": L3VNI[keys["name"]], "l3_import": targets}
    config.add("bgp.peer", address=CONTROL["rr"])
    config.bgp["as"] = AS
    lab.plug(name)
    plug(lab, name)
    host = lab.host(config)
    return host, [lab.container(host, guest) for guest in guests]


def learned(host, network):
    """Returns what BGP's routes of a network lead to, by prefix."""
    routes = host.viaduct("rt", "list", "--network", network)
    return {route["prefix"]: route for route in routes if route["owner"] == "bgp"}


def frames(seen, source):
    """Returns the VNIs and inner destination MACs of IP packets from a host."""
    inner = f"ip.src == {UNDERLAY[source]} && vxlan && (icmp || icmpv6.type == 128 || icmpv6.type == 129)"
    return {(vni, macs.split(",")[-1]) for vni, macs in seen.fields(inner, "vxlan.vni", "eth.dst")}


def test_networks_of_different_vnis(lab, reflector):
    a, [a1] = start(lab, "a", ["a1"])
    b, [b1, b3] = start(lab, "b", ["b1", "b3"])
    for host, network, seat in ((a, "blue", B3), (b, "red", A1)):
        for prefix in (f"{seat.address}/32", f"{seat.address6}/128"):
            eventually(lambda: prefix in learned(host, network), prefix)
    with lab.capture("b", expression="udp port 4789") as seen:
        a1.expect_ping(B3.address)
        a1.expect_ping(B3.address6)
        b3.expect_ping(A1.address6)
    assert seen.expert() == []
    # Each host sends by the number that the other one told, to the other one's router.
    assert frames(seen, "a") == {("6002", ROUTER_MAC["b"])}
    assert frames(seen, "b") == {("6001", ROUTER_MAC["a"])}
    for name in ("a", "b"):
        sources = seen.fields(f"ip.src == {UNDERLAY[name]} && vxlan && icmp", "eth.src")
        assert {macs.split(",")[-1] for (macs,) in sources} == {ROUTER_MAC[name]}, "the sender's router MAC"
    # The gateway of the other network is only there.
    a1.expect_ping("10.2.2.254")
    # In one subnet frames are bridged, by the network's own number: nothing routes them.
    eventually(lambda: any(e["mac"] == B1.mac for e in a.viaduct("bgp", "evpn", "--network", "blue")), "the MAC")
    with lab.capture("b", expression="udp port 4789") as seen:
        a1.expect_ping(B1.address)
    assert frames(seen, "a") == {("5001", B1.mac)}
    assert f"{B1.address}/32" not in learned(a, "blue")
    # A reflector that knows the standard reads both numbers, targets and the router.
    text = reflector.ask(f"show bgp l2vpn evpn route rd {UNDERLAY['b']}:2 mac {B3.mac} ip {B3.address}").stdout
    for word in ("5002/6002", f"RT:{AS}:5002", f"RT:{AS}:6002", f"Rmac:{ROUTER_MAC['b']}"):
        assert word in text, (word, text)
    steps = a.viaduct("explain", "--in", "a1", f"{A1.address} > {B3.address}")["steps"]
    assert f"peer {CONTROL['rr']}, rd {UNDERLAY['b']}:2" in [step["result"] for step in steps if step["table"] == "bgp"]
    # The guest goes, and its route with it; its subnet stays.
    b.apply(b.config.without("guest", name="b3"))
    eventually(lambda: f"{B3.address}/32" not in learned(a, "blue"), "the withdrawal")
    assert "10.2.2.0/24" in learned(a, "blue")


def test_a_prefix_of_another_router(lab, reflector):
    """A router announces a prefix by type 5, and packets go to its MAC with its number."""
    a, [a1] = start(lab, "a", ["a1"])
    router = lab.plug("c")
    router.ip("addr add", f"{UNDERLAY['c']}/24", "dev up0")
    go = Gobgp(plug(lab, "go"), lab.directory / "go", CONTROL["go"], CONTROL["rr"])
    lab.cleanup.callback(go.stop)
    go.start()
    route = ["rd", f"{AS}:7", "rt", f"{AS}:6002", "encap", "vxlan", "router-mac", ROUTER_MAC["c"]]
    for prefix, gateway in (("10.9.0.0/16", "0.0.0.0"), ("fd00:9::/64", "::")):
        words = ["etag", 0, "gw", gateway, "label", 7001, *route, "nexthop", UNDERLAY["c"]]
        go.add("evpn", "prefix", prefix, *words)
        eventually(lambda prefix=prefix: prefix in learned(a, "blue"), prefix)
    with lab.capture("c", expression="udp port 4789") as seen:
        for address in ("10.9.0.1", "fd00:9::1"):
            a1.run(["ping", "-c", "1", "-W", "1", address], check=False)
        eventually(lambda: len(seen.fields("icmp || icmpv6.type == 128", "frame.number")) == 2, "both packets")
    assert seen.expert() == []
    assert frames(seen, "a") == {("7001", ROUTER_MAC["c"])}


ROUTER = f"""hostname router
vni 6001
router bgp {AS}
 bgp router-id {CONTROL["go"]}
 no bgp default ipv4-unicast
 no bgp network import-check
 neighbor {CONTROL["rr"]} remote-as {AS}
 neighbor {CONTROL["rr"]} timers connect 3
 address-family ipv4 unicast
  network 10.9.0.0/24
 exit-address-family
 address-family ipv6 unicast
  network fd00:9::/64
 exit-address-family
 address-family l2vpn evpn
  neighbor {CONTROL["rr"]} activate
  advertise-all-vni
  advertise ipv4 unicast
  advertise ipv6 unicast
  route-target import {AS}:6001
  route-target export {AS}:6001
 exit-address-family
"""


def test_linux_routes_as_frr_says(lab, reflector):
    """A router of FRR and the Linux kernel takes packets of a guest, and sends its own."""
    a, [a1] = start(lab, "a", ["a1"])
    # Its namespace has both networks: that of the sessions, and the underlay.
    router = plug(lab, "go")
    lab.plug("go")
    router.ip("addr add", f"{UNDERLAY['c']}/24", "dev up0")
    router.ip("link add br6001 address", ROUTER_MAC["c"], "type bridge")
    router.ip("link add vx6001 type vxlan id 6001 local", UNDERLAY["c"], "dstport 4789 nolearning")
    router.ip("link set vx6001 master br6001")
    for device in ("vx6001", "br6001", "lo"):
        router.ip("link set", device, "up")
    router.ip("addr add 10.9.0.1/24 dev lo")
    router.ip("addr add fd00:9::1/64 dev lo")
    frr = Router(router, lab.directory / "router", ROUTER)
    lab.cleanup.callback(frr.stop)
    frr.start()
    for prefix in ("10.9.0.0/24", "fd00:9::/64"):
        eventually(lambda prefix=prefix: prefix in learned(a, "blue"), prefix)
    knows = lambda: f"{A1.address} " in router.run(["ip", "route"]).stdout
    eventually(knows, "the guest's route in the kernel")
    with lab.capture("go", expression="udp port 4789") as seen:
        a1.expect_ping("10.9.0.1")
        a1.expect_ping("fd00:9::1")
    assert seen.expert() == []
    assert frames(seen, "a") == {("6001", ROUTER_MAC["c"])}
    assert frames(seen, "c") == {("6001", ROUTER_MAC["a"])}
