"""BFD with BGP peers: FRR's bfdd is the neighbour, on a link and as if behind routers."""

import json

import pytest

from lab import eventually
from lab.bgp import AS, Bfdd, Frr, Router
from lab.topology import host_config, tap

# The network of the sessions, which the kernel keeps.
A, RR = "198.51.100.1", "198.51.100.9"
A6, RR6 = "fd00:51::1", "fd00:51::9"


def plug(lab, name, address):
    """Connects a namespace with the network of the sessions."""
    namespace = lab.plug(name, "ctl0", fabric="control")
    namespace.ip("addr add", f"{address}/24", "dev ctl0")
    return namespace


@pytest.fixture
def reflector(lab):
    namespace = plug(lab, "rr", RR)
    namespace.ip("addr add", f"{RR6}/64", "dev ctl0 nodad")
    reflector = Frr(namespace, lab.directory / "rr", RR, [A])
    lab.cleanup.callback(reflector.stop)
    return reflector.start()


@pytest.fixture
def neighbour(lab, reflector):
    peers = [f"{A} local-address {RR}", f"{A6} multihop local-address {RR6}"]
    neighbour = Bfdd(reflector.namespace, lab.directory / "bfdd", peers)
    lab.cleanup.callback(neighbour.stop)
    return neighbour.start()


def start(lab, peers=((RR, True), (RR6, "multihop"))):
    config = host_config("a", {"a1": tap("a1")})
    for address, bfd in peers:
        config.add("bgp.peer", address=address, bfd=bfd)
    config.bgp["as"] = AS
    lab.plug("a")
    plug(lab, "a", A)
    host = lab.host(config)
    # Hosts of the lab have no IPv6 of the kernel otherwise.
    host.namespace.sysctl("net.ipv6.conf.ctl0.disable_ipv6", 0)
    host.namespace.ip("addr add", f"{A6}/64", "dev ctl0 nodad")
    return host


def peer(host, address=RR):
    return next(peer for peer in host.viaduct("bgp")["peers"] if peer["address"] == address)


def is_up(host, address=RR):
    return peer(host, address)["bfd"]["state"] == "Up"


def test_a_broken_path_ends_the_session(lab, reflector, neighbour):
    a = start(lab)
    for address in (RR, RR6):
        eventually(lambda: is_up(a, address), f"the BFD session with {address}")
    eventually(lambda: peer(a)["state"] == "Established", "the BGP session")
    eventually(lambda: "Up, 300/900 ms" in a.call("bgp").stdout, "the times of sessions that are up")
    eventually(lambda: {s["status"] for s in neighbour.sessions().values()} == {"up"}, "the same at the neighbour")
    # A cable is unplugged: the hold time is 90 seconds.
    port = lab.namespace("control")
    port.ip("link set rr-ctl0 down")
    eventually(lambda: "the BGP session is down: BFD down (6/10)" in a.daemon.text(), "the end of the BGP session")
    assert not is_up(a) and "Down, detection time expired" in a.call("bgp").stdout
    port.ip("link set rr-ctl0 up")
    eventually(lambda: is_up(a) and is_up(a, RR6), "the BFD sessions again")
    eventually(lambda: peer(a)["state"] == "Established", "the BGP session again")


def test_who_ends_a_session_on_purpose_says_so(lab, reflector, neighbour):
    a = start(lab)
    eventually(lambda: is_up(a) and peer(a)["state"] == "Established", "both sessions")
    its = ("configure terminal", "bfd", f"peer {A} local-address {RR}")
    neighbour.ask(*its, "shutdown")
    eventually(lambda: peer(a)["bfd"]["remote_state"] == "AdminDown", "the neighbour's word")
    # That says nothing about the path.
    assert peer(a)["bfd"]["state"] == "Down" and peer(a)["state"] == "Established"
    neighbour.ask(*its, "no shutdown")
    eventually(lambda: is_up(a), "the session again")
    sessions = {count["name"]: count["count"] for count in peer(a)["counts"]}["sessions"]
    assert int(sessions) == 1, "the BGP session lasted"
    a.stop()
    ended = lambda: neighbour.sessions()[A]["remote-diagnostic"] == "administratively down"
    eventually(ended, "the host's word")


ROUTER = f"""hostname router
router bgp {AS}
 bgp router-id {RR}
 no bgp default ipv4-unicast
 neighbor {A} remote-as {AS}
 neighbor {A} bfd
 neighbor {A} timers connect 1
 address-family ipv4 vpn
  neighbor {A} activate
 exit-address-family
"""


def test_the_other_sides_bgp_hears_of_it(lab):
    """FRR's bgpd has bfdd watch the path, and ends its session as well."""
    router = Router(plug(lab, "rr", RR), lab.directory / "router", ROUTER, ("bfdd", "bgpd"))
    lab.cleanup.callback(router.stop)
    router.start()
    a = start(lab, [(RR, True)])
    eventually(lambda: is_up(a) and peer(a)["state"] == "Established", "both sessions")
    neighbour = lambda: json.loads(router.ask("bgpd", f"show bgp neighbors {A} json").stdout)[A]
    eventually(lambda: neighbour()["peerBfdInfo"]["status"] == "Up", "the session at the neighbour")
    # A daemon that takes over goes on with the session.
    a.replace()
    eventually(lambda: peer(a)["bfd"]["received"] > 10 and peer(a)["state"] == "Established", "the new daemon's")
    counters = json.loads(router.ask("bfdd", "show bfd peers counters json").stdout)
    assert [session["session-down"] for session in counters] == [0] and is_up(a)
    port = lab.namespace("control")
    port.ip("link set a-ctl0 down")
    eventually(lambda: neighbour()["bgpState"] != "Established", "the end at the neighbour")
    assert neighbour()["lastErrorCodeSubcode"] == "060A", "BFD down (RFC 9384)"
    port.ip("link set a-ctl0 up")
    eventually(lambda: is_up(a) and peer(a)["state"] == "Established", "both sessions again")
