"""Remotes of tunnels that are watched by BFD: flows leave one that dies, without BGP, and go back to it."""

import signal
import socket
from contextlib import ExitStack, contextmanager

import pytest

from lab import eventually
from lab.bgp import Bfdd
from lab.topology import ANYCAST, UNDERLAY, anycast_hosts, host_config, remotes, tap
from lab.traffic import EchoServer
from test_bgp import bgp_config, plug, reflector  # noqa: F401  a fixture

# Flows to the anycast address.
PORT, FLOWS = 7000, 32
# Milliseconds between two packets: a busy machine may have no CPU for a thread, or no disk for the table of connections
# (these run-dirs are not in memory), for longer than the usual 30 allow.
INTERVAL = 300


def is_up(host, name):
    session = remotes(host)[name].get("bfd") or {}
    return session.get("state") == "Up" and not remotes(host)[name].get("down")


@contextmanager
def stopped(daemon):
    """Has a process stand still while the `with` block runs."""
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        daemon.process.send_signal(signal.SIGCONT)


class Flows:
    """Flows of a guest to an address, each with a socket."""

    def __init__(self, guest, address=ANYCAST):
        self.sockets = [guest.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(FLOWS)]
        for number, one in enumerate(self.sockets):
            one.bind(("", 20000 + number))
            one.connect((address, PORT))
            one.settimeout(1)

    def answered(self):
        """Sends a packet of each flow, and counts the answers."""
        for one in self.sockets:
            one.send(b"x")
        return sum(self._answer(one) for one in self.sockets)

    @staticmethod
    def _answer(one):
        try:
            return one.recv(64) == b"x"
        except OSError:
            return False


def forwarded(host, guest):
    """Counts the packets that a host has given a guest."""
    return next(row["tx_packets"] for row in host.viaduct("vif") if row["name"] == guest)


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_flows_leave_a_remote_that_dies_and_go_back(lab, shared):
    hosts, guests = anycast_hosts(lab, shared=shared, tunnel_bfd=INTERVAL)
    a = hosts["a"]
    for name in "bc":
        eventually(lambda: is_up(a, name), f"the BFD session with {name}")
    with ExitStack() as servers:
        for name in "bc":
            servers.enter_context(EchoServer(guests[name], PORT))
        flows = Flows(guests["a"])
        settled = lambda: flows.answered() == FLOWS and is_up(a, "b") and is_up(a, "c")
        eventually(settled, "answers to all flows")
        assert all(forwarded(hosts[name], f"any{name}") > 0 for name in "bc"), "flows use both"
        # The process stands still: neither a link nor a neighbour of the kernel's tells of it.
        with stopped(hosts["b"].daemon):
            eventually(lambda: remotes(a)["b"]["down"], "host b is down")
            question = ["explain", "--in", "a1", f"10.1.1.1 > {ANYCAST} / udp {{}} > {PORT}"]
            ask = lambda flow: a.call(*question[:-1], question[-1].format(20000 + flow)).stdout
            eventually(lambda: any("down (BFD)" in ask(flow) for flow in range(8)), "the tables know it")
            eventually(lambda: flows.answered() == FLOWS, "no flow goes there any more")
            assert f"remote {UNDERLAY['b']}" in a.call("status").stdout
        eventually(lambda: is_up(a, "b"), "host b is back")
        assert f"remote {UNDERLAY['b']}" not in a.call("status").stdout
        before = forwarded(hosts["b"], "anyb")
        eventually(settled, "answers to all flows")
        assert forwarded(hosts["b"], "anyb") > before, "flows are back"
        # A daemon that takes over is not noticed.
        ups = lambda host: remotes(host)["a"]["bfd"]["ups"]
        known = [ups(hosts[name]) for name in "bc"]
        a.replace()
        eventually(lambda: is_up(a, "b") and is_up(a, "c"), "the new daemon's sessions")
        assert [ups(hosts[name]) for name in "bc"] == known and all(is_up(hosts[name], "a") for name in "bc")
        # One that stops says so.
        hosts["b"].stop()
        eventually(lambda: remotes(a)["b"]["down"], "host b says goodbye")
        eventually(lambda: flows.answered() == FLOWS, "no flow goes there any more")


def routed_hosts(lab, shared):
    """Starts hosts like `anycast_hosts`, which find each other by BGP. Host a has one wire, its own or shared."""
    hosts, guests = {}, {}
    for name in "abc":
        lab.plug(name)
        plug(lab, name)
        config = bgp_config(name, ["a1"] if name == "a" else [])
        config.host["tunnel_bfd"] = INTERVAL
        if shared:
            lab.namespace(name).ip("addr add", f"{UNDERLAY[name]}/24", "dev up0")
            config = config.without("wire", name="up0")
            config.add("wire", name="up0", driver="af-packet", device="up0", shared=True, mtu=9000)
        guest = "a1" if name == "a" else f"any{name}"
        if name != "a":
            config.add("network", name="blue", vrf=1, gateways=["10.9.0.254/24"], vni=5001)
            mac = f"02:00:00:00:09:0{UNDERLAY[name][-1]}"
            config.add("guest", name=guest, network="blue", mac=mac, addresses=[ANYCAST], **tap(guest))
        hosts[name] = lab.host(config)
        guests[name] = lab.container(hosts[name], guest)
    return hosts, guests


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_a_worse_route_takes_over_from_a_remote_that_is_down(lab, reflector, shared):  # noqa: F811
    """Host b is down by BFD alone: its BGP routes stay for 90 s, as the reflector has heard nothing."""
    hosts, guests = routed_hosts(lab, shared)
    a = hosts["a"]
    # Its routes are worse.
    hosts["c"].call("bgp", "drain")
    paths = lambda: {path["remote"]: path for path in a.viaduct("bgp", "explain", "--network", "blue", ANYCAST)}
    used = lambda: {remote for remote, path in paths().items() if path["used"]}
    settled = lambda: len(paths()) == 2 and used() == set(remotes(a).get("b", {}) and [UNDERLAY["b"]])
    eventually(settled, "the better route")
    watched = lambda name: (remotes(hosts[name]).get("a", {}).get("bfd") or {}).get("state") == "Up"
    eventually(lambda: is_up(a, "b") and watched("b") and watched("c"), "sessions, also where no tunnel leads")
    with ExitStack() as servers:
        for name in "bc":
            servers.enter_context(EchoServer(guests[name], PORT))
        flows = Flows(guests["a"])
        eventually(lambda: flows.answered() == FLOWS, "answers to all flows")
        with stopped(hosts["b"].daemon):
            eventually(lambda: set(remotes(a)) == {"c"}, "the worse route")
            eventually(lambda: flows.answered() == FLOWS, "answers to all flows")
            eventually(lambda: "down by BFD" in paths()[UNDERLAY["b"]]["why"], "why the better one is left")
            assert f"remote {UNDERLAY['b']}" in a.call("status").stdout
            # The next daemon knows it, and has the better route from its peer once more.
            a.replace()
            assert set(remotes(a)) == {"c"}
            eventually(lambda: len(paths()) == 2, "all routes")
            eventually(lambda: a.viaduct("bgp")["peers"][0]["stale"] is None, "the end of what the peer sends")
            assert flows.answered() == FLOWS and set(remotes(a)) == {"c"}
            assert f"remote {UNDERLAY['b']}" in a.call("status").stdout
        eventually(lambda: set(remotes(a)) == {"b"}, "the better route once more")
        eventually(lambda: flows.answered() == FLOWS and is_up(a, "b"), "answers to all flows")
        with stopped(hosts["b"].daemon):
            eventually(lambda: set(remotes(a)) == {"c"}, "the worse route")
            # Without BFD nobody is down.
            config = a.config.copy()
            del config.host["tunnel_bfd"]
            a.apply(config)
            eventually(lambda: set(remotes(a)) == {"b"}, "the better route")
    if shared:
        # The kernel's routes count without BFD.
        route = f"unreachable {UNDERLAY['b']}/32"
        a.namespace.ip("route add", route)
        eventually(lambda: set(remotes(a)) == {"c"}, "the worse route")
        a.namespace.ip("route del", route)
        eventually(lambda: set(remotes(a)) == {"b"}, "the better route once more")


def test_frr_is_watched_and_watches(lab):
    """A router that speaks BFD and nothing else of ours: FRR's bfdd, behind routers as far as it knows."""
    config = host_config("a", {"a1": tap("a1")}, tunnel_bfd=INTERVAL)
    hop = {"tunnel": "mpls-over-udp", "remote": UNDERLAY["b"], "label": 500}
    config.add("route", network="blue", prefix=f"{ANYCAST}/32", to=[hop])
    lab.plug("a")
    router = lab.server("b", f"{UNDERLAY['b']}/24")
    bfdd = Bfdd(router.namespace, lab.directory / "bfdd", [f"{UNDERLAY['a']} multihop local-address {UNDERLAY['b']}"])
    lab.cleanup.callback(bfdd.stop)
    a = lab.host(config)
    assert not remotes(a)["b"]["down"], "a remote that never answered counts as up"
    bfdd.start()
    eventually(lambda: is_up(a, "b"), "the BFD session with FRR")
    eventually(lambda: bfdd.sessions()[UNDERLAY["a"]]["status"] == "up", "the same at FRR")
    with stopped(bfdd.daemon):
        eventually(lambda: remotes(a)["b"]["down"], "FRR is down")
    eventually(lambda: is_up(a, "b"), "FRR is back")
    # Its operator ends the session: that says nothing about the path.
    bfdd.ask("configure terminal", "bfd", f"peer {UNDERLAY['a']} multihop local-address {UNDERLAY['b']}", "shutdown")
    eventually(lambda: remotes(a)["b"]["bfd"]["remote_state"] == "AdminDown", "FRR's word")
    assert not remotes(a)["b"]["down"]
