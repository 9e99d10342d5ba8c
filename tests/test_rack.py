"""The router of a rack, by BGP with plain IPv4 and IPv6 routes: BIRD and FRR, as docs/routing.md configures them."""

import re
import tomllib

import pytest

from lab import Server, eventually
from lab.bgp import Bird, Router
from lab.config import Config
from lab.host import REPOSITORY
from lab.netns import cable
from lab.page import blocks
from lab.topology import SEATS, tap

SECTION = (REPOSITORY / "docs/routing.md").read_text().split("\n## The router of the rack\n")[1].split("\n## ")[0]
A1, A2 = SEATS["a1"], SEATS["a2"]
FLOATING, SHARED = {"198.18.0.77", "2001:db8:18::77"}, {"198.18.0.5", "2001:db8:18::5"}
FAMILIES = ["ipv4-unicast", "ipv6-unicast"]
OWN = {4: "203.0.113.254", 6: "2001:db8:113::ffff"}
BEYOND, BEYOND6 = "198.51.100.9", "2001:db8:51::9"


def host_config():
    """Returns the page's configuration of the host, with two guests."""
    tables = tomllib.loads(blocks(SECTION, "toml")[0])
    config = Config("a")
    config.bgp = tables.pop("bgp")
    for keys in config.bgp.pop("peer"):
        config.add("bgp.peer", **keys)
    for table, entries in tables.items():
        for keys in entries:
            config.add(table, **keys)
    for seat in (A1, A2):
        config.add("guest", name=seat.name, network="blue", mac=seat.mac, addresses=[seat.address, seat.address6],
                   **tap(seat.name))
    return config


def start_router(lab, name, number):
    """Makes a namespace for a router of the rack, whose last number this is."""
    router = lab.plug(name, "ext0", mtu=1500, fabric="outside")
    enable_ipv6(router)
    router.sysctl("net.ipv4.ip_forward", 1)
    router.sysctl("net.ipv6.conf.all.forwarding", 1)
    router.ip("addr add", f"203.0.113.{number}/24", "dev ext0")
    router.ip("addr add", f"2001:db8:113::{number}/64", "dev ext0 nodad")
    return router


def enable_ipv6(namespace):
    for where in ("all", "default"):
        namespace.sysctl(f"net.ipv6.conf.{where}.disable_ipv6", 0)


@pytest.fixture
def rack(lab):
    """Starts host a and a namespace for its router, behind which is one more machine. Returns host, router, machine."""
    host = lab.plug("a", "ext0", mtu=1500, fabric="outside")
    host.ip("addr add 203.0.113.10/24 dev ext0")
    router, beyond = start_router(lab, "c", 1), lab.namespace("d")
    enable_ipv6(beyond)
    cable(router, "in0", beyond, "in0", mtu=1500)
    router.ip("addr add 198.51.100.1/24 dev in0")
    router.ip("addr add 2001:db8:51::1/64 dev in0 nodad")
    for address, gateway in ((f"{BEYOND}/24", "198.51.100.1"), (f"{BEYOND6}/64", "2001:db8:51::1")):
        beyond.ip("addr add", address, "dev in0", *(["nodad"] if ":" in address else []))
        beyond.ip("route add default via", gateway)
    return lab.host(host_config()), router, Server(beyond)


def ways_out(host):
    """Returns the routers to which the host sends by BGP, by prefix."""
    found = {}
    for path in host.viaduct("bgp", "routes", "--network", "public"):
        assert path["used"] and not path["rd"] and not path["encapsulation"], path
        found.setdefault(path["prefix"], set()).add(path["remote"])
    return found


WAYS = {"0.0.0.0/0": {"203.0.113.1"}, "::/0": {"2001:db8:113::1"}}


def start_bird(lab, router):
    return Bird(router, lab.directory / "bird", blocks(SECTION, "bird")[0])


def start_frr(lab, router):
    return Router(router, lab.directory / "frr", blocks(SECTION, "frr")[0])


def attributes(speaker, address):
    """Returns what the router's program says of the route to an address."""
    if isinstance(speaker, Bird):
        return speaker.ask(f"show route all for {address}").stdout
    return speaker.ask("bgpd", f"show bgp {'ipv6' if ':' in address else 'ipv4'} unicast {address}").stdout


def routes(router):
    """Returns the addresses to which the kernel of the router has routes from BGP, each with its next hop."""
    found = {}
    for family in OWN:
        lines = router.run(["ip", f"-{family}", "route", "show"]).stdout.splitlines()
        fields = [line.split() for line in lines if "proto bird" in line or "proto bgp" in line]
        found |= {words[0]: words[words.index("via") + 1] for words in fields}
    return found


@pytest.mark.parametrize("program", [start_bird, start_frr], ids=["bird", "frr"])
def test_the_router_of_the_rack(lab, rack, program):
    a, router, beyond = rack
    a1, a2 = (lab.container(a, name) for name in ("a1", "a2"))
    speaker = program(lab, router)
    lab.cleanup.callback(speaker.stop)
    speaker.start()
    expect = lambda addresses, what: eventually(lambda: {*routes(router)} == addresses, what)
    expect(FLOATING | SHARED, "the host's addresses")
    assert routes(router) == {address: OWN[6 if ":" in address else 4] for address in FLOATING | SHARED}
    assert "64512" in attributes(speaker, "198.18.0.77")
    for address in sorted(FLOATING | SHARED):
        beyond.expect_ping(address)
    eventually(lambda: ways_out(a) == WAYS, "the router's default routes")
    a2.expect_ping(BEYOND)
    a2.expect_ping(BEYOND6)
    explained = a.viaduct("bgp", "explain", "--network", "public", "0.0.0.0/0")
    assert [(path["family"], path["used"]) for path in explained] == [("ipv4-unicast", True)]
    packet = a.call("explain", "--in", "a2", f"{A2.address} > {BEYOND} / udp 1 > 2").stdout
    assert "peer 203.0.113.1\n" in packet and "via 203.0.113.1" in packet, packet
    # Before maintenance: FRR knows the community by itself.
    a.call("bgp", "drain")
    drained = lambda: "64512 64512 64512" in (text := attributes(speaker, "198.18.0.77")) and any(
        word in text for word in ("local_pref: 0", "localpref 0"))
    eventually(drained, "the route to avoid")
    beyond.expect_ping("198.18.0.77")
    a.call("bgp", "drain", "--undo")
    eventually(lambda: not drained(), "the route as before")
    # Another daemon takes over.
    a.replace()
    a2.expect_ping(BEYOND)
    eventually(lambda: a.viaduct("bgp")["peers"][0]["state"] == "Established", "the new daemon's session")
    eventually(lambda: ways_out(a) == WAYS, "the same default routes")
    a2.expect_ping(BEYOND)
    expect(FLOATING | SHARED, "the same addresses")
    beyond.expect_ping("198.18.0.77")
    # A guest goes, then the other one.
    turn = lambda guest, way: guest.namespace.ip("link set", guest.device, way)
    turn(a1, "down")
    expect(SHARED, "the shared addresses alone")
    turn(a2, "down")
    expect(set(), "no address")
    turn(a1, "up")
    expect(FLOATING | SHARED, "the addresses of the guest that is back")


def test_a_second_router_takes_over(lab, rack):
    """Flows go by both routers, then by the one that is left."""
    a, router, beyond = rack
    other = start_router(lab, "b", 2)
    target, target6 = "192.0.2.99", "2001:db8:99::9"
    text = blocks(SECTION, "bird")[0]
    speakers = []
    for namespace, number in ((router, 1), (other, 2)):
        namespace.ip("addr add", f"{target}/32", "dev lo")
        namespace.ip("addr add", f"{target6}/128", "dev lo nodad")
        its = text.replace("203.0.113.1;", f"203.0.113.{number};").replace("203.0.113.1 as", f"203.0.113.{number} as")
        its = its.replace("2001:db8:113::1", f"2001:db8:113::{number}")
        speakers.append(Bird(namespace, lab.directory / f"bird{number}", its))
        lab.cleanup.callback(speakers[-1].stop)
        speakers[-1].start()
    config = host_config().add("bgp.peer", address="203.0.113.2", **{"as": 64513, "families": FAMILIES})
    a.apply(config)
    both = {"0.0.0.0/0": {"203.0.113.1", "203.0.113.2"}, "::/0": {"2001:db8:113::1", "2001:db8:113::2"}}
    eventually(lambda: ways_out(a) == both, "the default routes of both")
    a1 = lab.container(a, "a1")
    for address in (target, target6):
        a1.expect_ping(address)
    speakers[0].stop()
    router.ip("link set ext0 down")
    left = {"0.0.0.0/0": {"203.0.113.2"}, "::/0": {"2001:db8:113::2"}}
    eventually(lambda: ways_out(a) == left, "the default routes of the router that is left")
    for address in (target, target6):
        a1.expect_ping(address)


def test_what_no_network_takes_is_counted(lab, rack):
    """BIRD sends its routes of both families, those of IPv4 in an attribute, since they may have IPv6 next hops."""
    a, router, _ = rack
    text = re.sub(r"export where proto = .*?;", "export where source = RTS_STATIC;", blocks(SECTION, "bird")[0]).replace(
        "ipv4 { import filter hosts;", "ipv4 { import filter hosts; extended next hop on;")
    static = "protocol static more4 { ipv4; route 10.1.1.1/32 blackhole; route 203.0.113.254/32 blackhole; }\n"
    static += "protocol static more6 { ipv6; route fd00:1::1/128 blackhole; }\n"
    speaker = Bird(router, lab.directory / "bird", text + static)
    lab.cleanup.callback(speaker.stop)
    speaker.start()
    peer = lambda: a.viaduct("bgp")["peers"][0]
    counts = lambda: {count["name"]: count["count"] for count in peer()["counts"]}
    eventually(lambda: counts()["unused"] >= 3, "routes that are counted")
    eventually(lambda: ways_out(a) == WAYS, "the default routes alone")
    assert peer()["state"] == "Established" and peer()["routes"] == 2
    assert {row["prefix"] for row in a.viaduct("rt", "list") if row["owner"] == "bgp"} == {*WAYS}
    # Without the key, nothing is taken.
    config = host_config()
    for kind, keys in config.tables:
        keys.pop("import_unicast", None)
    a.apply(config)
    eventually(lambda: not ways_out(a) and peer()["routes"] == 0, "no way out")
    a.apply(host_config())
    eventually(lambda: ways_out(a) == WAYS, "the default routes, asked for again")
