"""Hosts that find each other by BGP: FRR's bgpd reflects, and GoBGP is another host."""

import itertools
import socket

import pytest
from scapy.layers.l2 import ARP, Ether

from lab import RawPort, eventually
from lab.bgp import AS, Frr, Gobgp
from lab.topology import NETWORKS, SEATS, UNDERLAY, host_config, tap
from lab.traffic import send

A1, B1 = SEATS["a1"], SEATS["b1"]
# Of a1, in network red.
FLOATING = "10.2.2.77"
# The network of the sessions, which the kernel keeps.
CONTROL = {
    **{"a": "198.51.100.1", "b": "198.51.100.2", "go": "198.51.100.3", "go2": "198.51.100.4", "c": "198.51.100.5"},
    "rr": "198.51.100.9",
}


def plug(lab, name):
    """Connects a namespace with the network of the sessions."""
    namespace = lab.plug(name, "ctl0", fabric="control")
    namespace.ip("addr add", f"{CONTROL[name]}/24", "dev ctl0")
    return namespace


def bgp_config(name, guests, reflector=CONTROL["rr"], **peer):
    """Configures a host in whose file there is nothing about other hosts."""
    config = host_config(name, {guest: tap(guest) for guest in guests})
    for kind, keys in config.tables:
        if kind == "guest":
            del keys["label"]
    config.add("bgp.peer", address=reflector, **peer)
    config.bgp["as"] = AS
    return config


# Of the sessions of these two.
PASSWORDS = {CONTROL["a"]: "a-secret", CONTROL["b"]: "another"}


@pytest.fixture
def reflector(lab, request):
    clients = [CONTROL[name] for name in ("a", "b", "c", "go", "go2")]
    options = getattr(request, "param", {})
    reflector = Frr(plug(lab, "rr"), lab.directory / "rr", CONTROL["rr"], clients, **options)
    lab.cleanup.callback(reflector.stop)
    return reflector.start()


def start(lab, name, guests, config=None):
    lab.plug(name)
    plug(lab, name)
    host = lab.host(config or bgp_config(name, guests))
    return host, [lab.container(host, guest) for guest in guests]


def has_route(host, prefix):
    return any(route["prefix"] == prefix and route["owner"] == "bgp" for route in host.viaduct("rt", "list"))


def announced_macs(host):
    """Returns the MACs of bridges that were not learned from packets."""
    return [entry["mac"] for entry in host.viaduct("bridge", "list") if entry["static"]]


def test_hosts_find_each_other(lab, reflector):
    config = bgp_config("a", ["a1"]).add("network", name="red", **NETWORKS["red"])
    config.add("route", network="blue", prefix="0.0.0.0/0", to={"network": "red"})
    config.add("nat", network="blue", inside=A1.address, outside=FLOATING, outside_network="red")
    a, [a1] = start(lab, "a", ["a1"], config)
    b, [b1, b3] = start(lab, "b", ["b1", "b3"])
    for host, seat in ((a, B1), (b, A1)):
        eventually(lambda: has_route(host, f"{seat.address}/32"), "the other's route")
        eventually(lambda: has_route(host, f"{seat.address6}/128"), "the other's IPv6 route")
    with lab.capture("b", expression="udp port 6635") as seen:
        a1.expect_ping(B1.address)
        a1.expect_ping(B1.address6)
    assert seen.expert() == []
    assert {fields[0] for fields in seen.fields("mpls", "mpls.label")} == {"100001"}
    [path] = a.viaduct("bgp", "explain", "--network", "blue", B1.address)
    assert (path["remote"], path["label"], path["used"]) == (UNDERLAY["b"], 100001, True)
    steps = a.viaduct("explain", "--in", "a1", f"{A1.address} > {B1.address}")["steps"]
    assert f"peer {CONTROL['rr']}, rd {UNDERLAY['b']}:1" in [step["result"] for step in steps if step["table"] == "bgp"]
    eventually(lambda: has_route(b, f"{FLOATING}/32"), "the floating address")
    b3.expect_ping(FLOATING)
    # Another daemon takes over, with the routes.
    a.replace()
    assert has_route(a, f"{B1.address}/32")
    a1.expect_ping(B1.address)
    eventually(lambda: a.viaduct("bgp")["peers"][0]["state"] == "Established", "the new daemon's session")
    # Before maintenance, others are asked to avoid it.
    worst = lambda: "graceful-shutdown" in reflector.ask(f"show bgp ipv4 vpn {A1.address}/32").stdout
    a.call("bgp", "drain")
    eventually(worst, "the reflector's route is the worst")
    assert "avoid this host" in a.call("bgp").stdout and a.viaduct("bgp")["drained"]
    b1.expect_ping(A1.address)
    a.call("bgp", "drain", "--undo")
    eventually(lambda: not worst(), "the reflector's route is as before")
    # The session ends, and packets go on.
    reflector.stop()
    eventually(lambda: a.viaduct("bgp")["peers"][0]["state"] != "Established", "the end of the session")
    a1.expect_ping(B1.address)
    reflector.start()
    eventually(lambda: a.viaduct("bgp")["peers"][0]["stale"] is None, "a new session")
    a1.expect_ping(B1.address)
    # A guest goes, and its route as well.
    b.apply(b.config.without("guest", name="b1"))
    eventually(lambda: not has_route(a, f"{B1.address}/32"), "the withdrawal")


def bridged_config(name, guests):
    """Configures a host that bridges network blue with others. One of two opens its signed session, the other waits."""
    config = bgp_config(name, guests, password=PASSWORDS[CONTROL[name]], passive=name == "b")
    config.bgp["listen"] = [CONTROL[name]]
    config.entry("network", "blue")["evpn"] = True
    return config


@pytest.mark.parametrize("reflector", [{"passwords": PASSWORDS}], indirect=True, ids=["signed"])
def test_a_bridged_network(lab, reflector):
    """One host opens its signed session, the other one waits for it."""

    def bridged(name, guests):
        return start(lab, name, guests, config=bridged_config(name, guests))

    a, [a1] = bridged("a", ["a1"])
    b, [b1] = bridged("b", ["b1"])
    assert PASSWORDS[CONTROL["a"]] not in a.call("export").stdout
    for host, seat in ((a, B1), (b, A1)):
        eventually(lambda: seat.mac in announced_macs(host), "the other's MAC")
    with lab.capture("b", expression="udp port 4789") as seen:
        a1.expect_ping(B1.address)
        a1.expect_ping(B1.address6)
    assert seen.expert() == []
    assert {fields[0] for fields in seen.fields("vxlan", "vxlan.vni")} == {"5001"}
    of_a1 = f"vxlan && arp.src.hw_mac == {A1.mac} && arp.dst.proto_ipv4 =="
    asked = lambda seen, address: seen.fields(f"{of_a1} {address}", "frame.number")
    assert not asked(seen, B1.address), "the host answers on behalf of the other's guest"
    with lab.capture("b", expression="udp port 4789") as seen, RawPort(a1.namespace, a1.device) as guest:
        everybody = "ff:ff:ff:ff:ff:ff"
        probe = lambda address, mac: Ether(src=mac, dst=everybody) / ARP(hwsrc=mac, psrc="0.0.0.0", pdst=address)
        is_answer = lambda frame: (
            ARP in Ether(frame) and Ether(frame)[ARP].op == 2 and Ether(frame)[ARP].psrc == B1.address
        )
        guest.send(probe(B1.address, A1.mac))
        assert Ether(guest.expect(is_answer, "the duplicate"))[ARP].hwsrc == B1.mac
        guest.send(probe("10.1.1.77", A1.mac))
        seen.wait_for("arp.dst.proto_ipv4 == 10.1.1.77")
    assert asked(seen, "10.1.1.77"), "floods go to the other host"
    question = f"eth {A1.mac} > ff:ff:ff:ff:ff:ff / arp request {A1.address} at {A1.mac} for {B1.address}"
    explained = a.call("explain", "--in", "a1", question).stdout
    assert f"remote {UNDERLAY['b']}" in explained and f"arp: at {B1.mac}" in explained, explained
    routes = lambda: reflector.ask("show bgp l2vpn evpn").stdout
    eventually(lambda: "Rmac:06:5e:c0:00:02:01" in routes(), "a router MAC of its own")
    # A guest moves: its new host counts that, so that all send there, while the old one still has it, too.
    a.apply(bridged_config("a", ["a1", "b1"]))
    a.namespace.ip("link set tapb1 up")
    eventually(lambda: "MM:1" in reflector.ask("show bgp l2vpn evpn").stdout, "the number of the move")
    known = lambda: {(entry["mac"], entry["remote"]): entry for entry in a.viaduct("bgp", "evpn", "--network", "blue")}
    eventually(lambda: (B1.mac, UNDERLAY["b"]) in known(), "the other host's entry")
    assert [known()[B1.mac, remote]["duplicate"] for remote in ("", UNDERLAY["b"])] == [True, True]
    assert known()[B1.mac, ""]["sequence"] == 1 and B1.address in known()[B1.mac, ""]["addresses"]
    assert ("", UNDERLAY["b"]) in known() and not known()[A1.mac, ""]["duplicate"]
    a.apply(bridged_config("a", ["a1"]))
    eventually(lambda: "MM:1" not in reflector.ask("show bgp l2vpn evpn").stdout, "the withdrawal")
    b.apply(b.config.without("guest", name="b1"))
    eventually(lambda: B1.mac not in announced_macs(a), "the withdrawal")
    # With another password the session begins anew, in vain.
    is_up = lambda: a.viaduct("bgp")["peers"][0]["state"] == "Established"
    wrong = bridged_config("a", ["a1"])
    next(keys for kind, keys in wrong.tables if kind == "bgp.peer")["password"] = "wrong"
    said = a.apply(wrong).stdout
    assert "[bgp]" in said and "wrong" not in said, said
    eventually(lambda: not is_up(), "the end of the session")
    a.apply(bridged_config("a", ["a1"]))
    eventually(is_up, "a session with the right password")


@pytest.mark.parametrize("reflector", [{"passwords": PASSWORDS}], indirect=True, ids=["signed"])
def test_a_mac_that_moves_too_often_is_held_back(lab, reflector):
    """Two hosts have a guest with one MAC, and one of these goes and comes."""
    a, _ = start(lab, "a", ["a1"], config=bridged_config("a", ["a1", "b1"]))
    # The other host announces the MAC as its first: it counts no move.
    a.namespace.ip("link set tapb1 down")
    routes = lambda: reflector.ask("show bgp l2vpn evpn").stdout
    eventually(lambda: A1.mac in routes() and B1.mac not in routes(), "the one MAC, and not the other")
    b, [b1] = start(lab, "b", ["b1"], config=bridged_config("b", ["b1"]))
    says_moved = lambda: "MM:1" in routes()
    at = lambda remote: [
        entry
        for entry in a.viaduct("bgp", "evpn", "--network", "blue")
        if (entry["mac"], entry["remote"]) == (B1.mac, remote)
    ]
    here = lambda: at("")
    eventually(lambda: at(UNDERLAY["b"]) and not here(), "only the other host has the MAC")
    for _ in range(4):
        a.namespace.ip("link set tapb1 up")
        eventually(says_moved, "the number of the move")
        a.namespace.ip("link set tapb1 down")
        eventually(lambda: not says_moved(), "the withdrawal")
    a.namespace.ip("link set tapb1 up")
    eventually(lambda: here() and here()[0]["held_back"], "the fifth move is one too many")
    assert here()[0]["duplicate"] and not says_moved()
    assert any(B1.mac in str(warning) for warning in a.viaduct("status")["warnings"])
    # Whoever has it alone may announce it.
    b.apply(b.config.without("guest", name="b1"))
    eventually(lambda: here() and not here()[0]["held_back"], "the MAC is announced")
    assert not says_moved()


def test_another_host_is_gobgp(lab, reflector):
    a, [a1] = start(lab, "a", ["a1"])
    go = Gobgp(plug(lab, "go"), lab.directory / "go", CONTROL["go"], CONTROL["rr"])
    lab.cleanup.callback(go.stop)
    go.start()
    eventually(lambda: f"{A1.address}/32" in go.ask("global", "rib", "-a", "vpnv4").stdout, "the host's route")
    route = ["rd", f"{AS}:7", "rt", f"{AS}:5001", "nexthop", UNDERLAY["b"]]
    go.add("vpnv4", "10.9.0.0/16", "label", 2000, *route, "encap", "mpls-in-udp")
    go.add("vpnv6", "fd00:9::/64", "label", 2001, *route, "encap", "gre")
    for prefix, label, kind in (("10.9.0.0/16", 2000, "mpls-over-udp"), ("fd00:9::/64", 2001, "mpls-over-gre")):
        eventually(lambda: has_route(a, prefix), prefix)
        [path] = a.viaduct("bgp", "explain", prefix)
        assert (path["encapsulation"], path["label"], path["remote"]) == (kind, label, UNDERLAY["b"])
    # Of another tenant: not imported.
    other = ["rd", f"{AS}:8", "rt", f"{AS}:9999", "nexthop", UNDERLAY["b"], "encap", "mpls-in-udp"]
    go.add("vpnv4", "10.10.0.0/16", "label", 2002, *other)
    go.remove("vpnv4", "10.9.0.0/16", "label", 2000, *route, "encap", "mpls-in-udp")
    eventually(lambda: not has_route(a, "10.9.0.0/16"), "the withdrawal")
    assert not has_route(a, "10.10.0.0/16")


@pytest.mark.parametrize("reflector", [{"all_paths": True}], indirect=True, ids=["all paths"])
def test_several_paths_of_one_route(lab, reflector):
    """Two hosts announce the same routes with one distinguisher, and the reflector sends both paths of each."""
    a, _ = start(lab, "a", ["a1"])
    families = {"vpnv4": "10.9.0.0/16", "vpnv6": "fd00:9::/64"}
    words = lambda host: ["label", 2000, "rd", f"{AS}:7", "rt", f"{AS}:5001", "nexthop", host, "encap", "mpls-in-udp"]
    others = {}
    for name, host in (("go", "b"), ("go2", "c")):
        others[host] = Gobgp(plug(lab, name), lab.directory / name, CONTROL[name], CONTROL["rr"])
        lab.cleanup.callback(others[host].stop)
        others[host].start()
        for family, prefix in families.items():
            others[host].add(family, prefix, *words(UNDERLAY[host]))
    used = lambda prefix: {path["remote"] for path in a.viaduct("bgp", "explain", prefix) if path["used"]}
    for prefix in families.values():
        eventually(lambda prefix=prefix: used(prefix) == {UNDERLAY["b"], UNDERLAY["c"]}, f"both paths to {prefix}")
    for family, prefix in families.items():
        others["b"].remove(family, prefix, *words(UNDERLAY["b"]))
        eventually(lambda prefix=prefix: used(prefix) == {UNDERLAY["c"]}, f"the other path to {prefix}")


RATES = {CONTROL["go"]: 300, CONTROL["go2"]: 100}


@pytest.mark.parametrize("reflector", [{"rates": RATES}], indirect=True, ids=["bandwidths"])
def test_flows_follow_the_bandwidths_of_paths(lab, reflector):
    """Of two hosts that announce a prefix with their own distinguishers, one has three times the bandwidth."""
    a, [a1] = start(lab, "a", ["a1"])
    for name, host, number in (("go", "b", 7), ("go2", "c", 8)):
        lab.plug(host).ip("addr add", UNDERLAY[host] + "/24", "dev up0")
        go = Gobgp(plug(lab, name), lab.directory / name, CONTROL[name], CONTROL["rr"])
        lab.cleanup.callback(go.stop)
        go.start()
        words = ["label", 2000, "rd", f"{AS}:{number}", "rt", f"{AS}:5001", "nexthop", UNDERLAY[host]]
        go.add("vpnv4", "10.9.0.0/16", *words)
    explain = lambda: a.viaduct("bgp", "explain", "10.9.0.0/16")
    paths = lambda: {path["remote"]: (path["bandwidth"], path["weight"]) for path in explain()}
    expected = {UNDERLAY["b"]: (300e6 / 8, 3), UNDERLAY["c"]: (100e6 / 8, 1)}
    eventually(lambda: paths() == expected, "bandwidths and weights")
    [route] = [route for route in a.viaduct("rt", "list") if route["prefix"] == "10.9.0.0/16"]
    assert "(weight 3)" in route["text"], route
    flows, numbers = 400, itertools.cycle(range(250))
    # Only some of the packets that wait for next hops are kept.
    known = lambda: {row["address"] for row in a.viaduct("neigh") if row["mac"]}
    ask = lambda: send(a1, f"10.9.0.{next(numbers)}", 7)
    eventually(lambda: ask() or {*expected} <= known(), "the next hops")
    with lab.capture("a", expression="udp port 6635") as seen:
        for flow in range(flows):
            with a1.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
                one.bind(("", 20000 + flow))
                one.sendto(b"x", ("10.9.1.1", 9))
        seen.wait_for("udp.dstport == 9", flows)
    remotes = [fields[0].split(",")[0] for fields in seen.fields("udp.dstport == 9", "ip.dst")]
    # Of 400 random flows, less than one time in a million more than 50 take the other way.
    assert abs(remotes.count(UNDERLAY["b"]) - 300) < 50, remotes.count(UNDERLAY["b"])


def test_peers_change_while_the_daemon_runs(lab, reflector):
    """The daemon calls whom its file names, and nobody else."""
    config = lambda **peer: bgp_config("a", ["a1"], **{"reflector": CONTROL["go"], **peer})
    a, [a1] = start(lab, "a", ["a1"], config())
    start(lab, "b", ["b1"])
    peers = lambda: {peer["address"]: peer for peer in a.viaduct("bgp")["peers"]}
    is_up = lambda: peers().get(CONTROL["rr"], {}).get("state") == "Established"
    # The API can't name a peer.
    elsewhere = lab.directory / "elsewhere.toml"
    elsewhere.write_text(config(reflector=CONTROL["rr"]).text())
    a.call("apply", elsewhere)
    eventually(lambda: "names no BGP peer of this address" in a.daemon.text(), "the peer is refused")
    a.apply(config(reflector=CONTROL["rr"]))
    eventually(lambda: is_up() and has_route(a, f"{B1.address}/32"), "the other host's route")
    assert list(peers()) == [CONTROL["rr"]]
    a1.expect_ping(B1.address)
    # Changed, it begins anew; its routes stay.
    a.apply(config(reflector=CONTROL["rr"], max_prefixes=1000, families=["vpnv4"]))
    assert has_route(a, f"{B1.address}/32")
    eventually(lambda: is_up() and not has_route(a, f"{B1.address6}/128"), "a session of one family")
    changed = config(reflector=CONTROL["rr"])
    changed.bgp["labels"] = "200000-299999"
    a.apply(changed)
    eventually(lambda: "label=200001" in reflector.ask("show bgp ipv4 vpn").stdout, "a route with the new label")
    changed.bgp["listen"] = [CONTROL["a"]]
    refused = a.call("apply", a.write(changed), check=False)
    assert "[bgp] listen can't change" in refused.stderr, refused.stderr
    # Without it, its routes are gone.
    a.apply(config())
    eventually(lambda: not has_route(a, f"{B1.address}/32"), "the routes are gone")


def test_two_hosts_and_nothing_else(lab):
    """Each is the other's peer, and one waits for the other to call."""
    hosts, containers = {}, {}
    for name, other, guest in (("a", "b", "a1"), ("b", "a", "b1")):
        config = bgp_config(name, [guest], CONTROL[other], passive=name == "b")
        if name == "b":
            config.bgp["listen"] = [CONTROL[name]]
        hosts[name], [containers[name]] = start(lab, name, [guest], config)
    for name, seat in (("a", B1), ("b", A1)):
        eventually(lambda name=name, seat=seat: has_route(hosts[name], f"{seat.address}/32"), "the other's route")
    containers["a"].expect_ping(B1.address)
    # The one that waits begins anew, and is called again.
    hosts["b"].kill()
    hosts["b"].start()
    eventually(lambda: has_route(hosts["b"], f"{A1.address}/32"), "the other's route")
    eventually(lambda: hosts["a"].viaduct("bgp")["peers"][0]["stale"] is None, "a new session")
    containers["a"].expect_ping(B1.address)


@pytest.mark.parametrize(
    "reflector", [{"passwords": {CONTROL["a"]: "a-secret"}, "near": [CONTROL["a"]]}], indirect=True)
def test_peers_of_a_range_call(lab, reflector):
    """Nobody names them one by one: here the reflector, and a host that does not know the password."""
    config = bgp_config("a", ["a1"]).without("bgp.peer", address=CONTROL["rr"])
    config.bgp["listen"] = [CONTROL["a"]]
    config.add("bgp.range", prefix="198.51.100.0/24", password="a-secret", ttl_security=1, max_peers=1)
    a, [a1] = start(lab, "a", ["a1"], config)
    b, [b1] = start(lab, "b", ["b1"])
    for host, seat in ((a, B1), (b, A1)):
        eventually(lambda host=host, seat=seat: has_route(host, f"{seat.address}/32"), "the other's route")
    a1.expect_ping(B1.address)
    said = a.viaduct("bgp")
    assert [(peer["address"], peer["range"]) for peer in said["peers"]] == [(CONTROL["rr"], "198.51.100.0/24")]
    assert [(known["peers"], known["max_peers"]) for known in said["ranges"]] == [(1, 1)]
    lines = a.call("bgp", "announced", "--network", "blue").stdout.splitlines()
    assert any(f"{A1.address}/32" in line and "100001" in line for line in lines), lines
    # A stranger gets no session, and takes nobody's place.
    stranger = plug(lab, "go")
    with stranger.socket(socket.AF_INET, socket.SOCK_STREAM) as unsigned:
        unsigned.settimeout(1)
        with pytest.raises(TimeoutError):
            unsigned.connect((CONTROL["a"], 179))
    # Another daemon takes over, and keeps the routes until the peer has called.
    a.replace()
    assert has_route(a, f"{B1.address}/32")
    a1.expect_ping(B1.address)
    is_up = lambda: [peer["state"] for peer in a.viaduct("bgp")["peers"]] == ["Established"]
    eventually(is_up, "the new daemon's session")
    # The file names the peer now: it is the same one.
    named = config.without("bgp.range", prefix="198.51.100.0/24")
    a.apply(named.add("bgp.peer", address=CONTROL["rr"], password="a-secret", ttl_security=1, passive=True))
    eventually(is_up, "its session")
    assert a.viaduct("bgp")["peers"][0]["range"] is None and a.viaduct("bgp")["ranges"] == []
    a1.expect_ping(B1.address)
    b1.expect_ping(A1.address)


def test_garbage_ends_the_session_and_nothing_else(lab):
    a, [a1] = start(lab, "a", ["a1"])
    namespace = plug(lab, "rr")
    listener = namespace.socket(socket.AF_INET, socket.SOCK_STREAM)
    lab.cleanup.callback(listener.close)
    listener.bind((CONTROL["rr"], 179))
    listener.listen()
    peer, _ = listener.accept()
    peer.sendall(b"\x00" * 4096)
    eventually(lambda: a.viaduct("bgp")["peers"][0].get("reason"), "the reason")
    eventually(lambda: not peer.recv(1 << 16), "the end of the connection")
    a1.expect_ping("10.1.1.254")
