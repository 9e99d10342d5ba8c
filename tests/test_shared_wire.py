"""Wires that the kernel keeps: addresses, ARP, routes and TCP are its own, and tunnel packets alone are Viaduct's."""

import socket

import pytest
from scapy.contrib.mpls import MPLS
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.l2 import Ether

from lab import Config, Failed, RawPort, Server, eventually
from lab.bgp import AS, Frr
from lab.topology import SEATS, UNDERLAY, UNDERLAY6, bridged_routes, host_config, tap, tunnel_routes
from lab.traffic import EchoServer, answers, connect

A1, B1 = SEATS["a1"], SEATS["b1"]
REMOTE = "198.51.100.2"


def config_of(name, *guests, source=None, device="up0"):
    """Configures a host with these guests and a wire of the kernel's."""
    source = source or UNDERLAY[name]
    config = host_config(name, {guest: tap(guest) for guest in guests}, wire=False, tunnel_source=source)
    return config.add("wire", name=device, driver="af-packet", device=device, shared=True, mtu=9000)


def two_hosts(lab, extend, family=4):
    """Starts hosts a and b, whose kernels have the addresses of the underlay, with guests a1 and b1. Returns hosts and
    guests by name."""
    hosts, guests = {}, {}
    for name, local, remote in (("a", "a1", "b1"), ("b", "b1", "a1")):
        lab.plug(name).ip("addr add", f"{UNDERLAY[name]}/24", "dev up0")
        config = config_of(name, local, source=(UNDERLAY if family == 4 else UNDERLAY6)[name])
        hosts[name] = lab.host(extend(config, remote), start=False)
        if family == 6:
            for where in ("all", "default", "up0"):
                lab.namespace(name).sysctl(f"net.ipv6.conf.{where}.disable_ipv6", 0)
            lab.namespace(name).ip("addr add", f"{UNDERLAY6[name]}/64", "dev up0 nodad")
        hosts[name].start()
        guests[local] = lab.container(hosts[name], local)
    return hosts, guests


def mpls(kind="mpls-over-udp", family=4):
    return lambda config, *remotes: tunnel_routes(config, kind, *remotes, family=family)


def vxlan(config, *remotes):
    return bridged_routes(config, *remotes)


def warned(host):
    return host.call("status").stdout


def kernels(host):
    """Returns what the daemon has made in the kernel: tables and UDP ports."""
    tables = host.namespace.run(["nft", "list", "tables"]).stdout
    ports = host.namespace.run(["ss", "-Hlun"]).stdout
    return "viaduct-tunnels" in tables, {port for port in (4789, 6635) if f":{port} " in ports}


WAYS = {
    "mpls-over-udp": (mpls(), 4),
    "mpls-over-gre": (mpls("mpls-over-gre"), 4),
    "vxlan": (vxlan, 4),
    "mpls-over-udp-ip6": (mpls(family=6), 6),
    "mpls-over-gre-ip6": (mpls("mpls-over-gre", 6), 6),
}


@pytest.mark.parametrize("way", WAYS)
def test_guests_and_kernel_share_the_wire(lab, way):
    extend, family = WAYS[way]
    hosts, guests = two_hosts(lab, extend, family)
    here, there = (Server(hosts[name].namespace) for name in "ab")
    underlay = UNDERLAY if family == 4 else UNDERLAY6
    refusals = "icmp[0] == 3 or (icmp6 and ip6[40] == 1)"
    with lab.capture("fabric", "a-up0", f"arp or {refusals}") as seen:
        guests["a1"].expect_ping(B1.address)
        guests["b1"].expect_ping(A1.address)
        guests["a1"].expect_ping(B1.address, size=3000)
        here.expect_ping(underlay["b"])
        with EchoServer(guests["b1"], 80), EchoServer(there, 81, socket.AF_INET if family == 4 else socket.AF_INET6):
            one = connect(guests["a1"], B1.address, 80)
            other = connect(here, underlay["b"], 81)
            assert answers(one) and answers(other)
            one.close(), other.close()
    # Nobody said that a port or protocol is not there, and one answers for each address.
    assert seen.fields("icmp.type == 3 || icmpv6.type == 1", "frame.number") == []
    answered = seen.fields("arp.opcode == 2", "arp.src.proto_ipv4", "arp.src.hw_mac")
    assert len({mac for _, mac in answered}) == len({addr for addr, _ in answered}), answered
    for host in hosts.values():
        assert "wire" not in "".join(line for line in warned(host).splitlines() if "warning" in line), warned(host)
        assert not {"outer_fragment", "no_underlay"} & set(host.drops()), host.drops()


def test_nothing_of_it_stays_in_the_kernel(lab):
    hosts, guests = two_hosts(lab, mpls())
    host = hosts["a"]
    guests["a1"].expect_ping(B1.address)
    assert kernels(host) == (True, {4789, 6635})
    rules = host.namespace.run(["nft", "list", "ruleset"]).stdout
    for refused in ("gre", "udp dport 6635", "udp dport 4789"):
        # What comes, and what others on the host would send from the tunnels' address.
        assert rules.count(f"{refused} drop") == 2, rules
    host.replace()
    guests["a1"].expect_ping(B1.address)
    assert kernels(host) == (True, {4789, 6635})
    assert "another daemon" not in warned(host)
    host.kill()
    eventually(lambda: kernels(host) == (False, set()), "the end of what the daemon made")
    host.start()
    guests["a1"].expect_ping(B1.address)
    host.stop()
    assert kernels(host) == (False, set())


def test_strangers_are_dropped_by_name_and_not_answered(lab):
    hosts, guests = two_hosts(lab, mpls())
    guests["a1"].expect_ping(B1.address)
    mac = hosts["a"].namespace.run(["cat", "/sys/class/net/up0/address"]).stdout.strip()
    outer = Ether(dst=mac) / IP(src="192.0.2.77", dst=UNDERLAY["a"]) / UDP(sport=50000, dport=6635, chksum=0)
    inner = IP(src=B1.address, dst=A1.address) / ICMP()
    before = hosts["a"].drops().get("not_for_us", 0)
    with lab.capture("fabric", "a-up0", "icmp") as seen, RawPort(lab.namespace("fabric"), "a-up0") as port:
        port.send(outer / MPLS(label=A1.label, s=1, ttl=64) / inner)
        eventually(lambda: hosts["a"].drops().get("unknown_remote") == 1, "drop unknown_remote")
    assert seen.fields(f"ip.src == {UNDERLAY['a']}", "frame.number") == []
    # What is the kernel's does not even reach the workers.
    Server(hosts["b"].namespace).expect_ping(UNDERLAY["a"])
    assert hosts["a"].drops().get("not_for_us", 0) == before


def routed(lab, *gateways):
    """Starts host a, whose kernel has a network for each of these gateways, and a machine that is the gateways and the
    remote, with guest a1, which has a route to 10.9.0.0/16 by a tunnel there. Returns host, guest and machine."""
    far = lab.namespace("far")
    far.ip("addr add", f"{REMOTE}/32 dev lo")
    config = None
    for index, gateway in enumerate(gateways):
        device, net = f"up{index}", f"192.0.{2 + index}"
        lab.plug("a", device, fabric=f"fabric{index}").ip("addr add", f"{net}.1/24 dev {device}")
        lab.plug("far", device, fabric=f"fabric{index}").ip("addr add", f"{gateway}/24 dev {device}")
        if config is None:
            config = config_of("a", "a1", source="192.0.2.1", device=device)
        else:
            config.add("wire", name=device, driver="af-packet", device=device, shared=True, mtu=9000)
    hop = {"tunnel": "mpls-over-udp", "remote": REMOTE, "label": 500}
    config.add("route", network="blue", prefix="10.9.0.0/16", to=[hop])
    host = lab.host(config)
    return host, lab.container(host, "a1"), far


def paths(host):
    """Returns the paths of the kernel to the remote, as `explain` prints them."""
    text = host.call("explain", "--in", "a1", f"{A1.address} > 10.9.0.1 / udp 1 > 2").stdout
    return [line for line in text.splitlines() if line.split()[:2] == ["kernel", REMOTE]]


def send_flows(a1, flows=64):
    """Sends a packet of each of these flows."""
    for flow in range(flows):
        with a1.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.bind(("", 20000 + flow))
            one.sendto(b"x", ("10.9.0.1", 9))


def arrivals(lab, a1, *expected):
    """Waits until packets of the flows leave by these fabrics and no other."""
    counters = [f"fabric{index}" for index in range(2)]
    count = lambda: [lab.namespace(one).counter(f"far-up{index}", "tx_packets") for index, one in enumerate(counters)]

    def as_expected():
        before = count()
        send_flows(a1)
        used = [after - old >= 10 for after, old in zip(count(), before)]
        return used == [index in expected for index in range(2)]

    eventually(as_expected, f"packets by {expected} alone")


def test_packets_follow_the_kernels_routes(lab):
    host, a1, far = routed(lab, "192.0.2.254", "192.0.3.254")
    eventually(lambda: f"tunnels to {REMOTE} are dead: the kernel has no route" in warned(host), "the warning")
    assert paths(host) and "none" in paths(host)[0] or "miss" in paths(host)[0], paths(host)
    before = host.drops().get("no_underlay", 0)
    send_flows(a1, 1)
    eventually(lambda: host.drops().get("no_underlay", 0) > before, "drop no_underlay")
    kernel = host.namespace
    kernel.ip(f"route add {REMOTE}/32 via 192.0.2.254")
    arrivals(lab, a1, 0)
    assert REMOTE not in warned(host)
    kernel.ip(f"route replace {REMOTE}/32 via 192.0.3.254")
    arrivals(lab, a1, 1)
    kernel.ip(f"route replace {REMOTE}/32 nexthop via 192.0.2.254 nexthop via 192.0.3.254")
    arrivals(lab, a1, 0, 1)
    # The kernel drops the hops of a link that is down.
    kernel.ip("link set up1 down")
    arrivals(lab, a1, 0)
    kernel.ip("link set up1 up")
    kernel.ip(f"route replace {REMOTE}/32 nexthop via 192.0.2.254 nexthop via 192.0.3.254")
    arrivals(lab, a1, 0, 1)
    kernel.ip(f"route replace {REMOTE}/32 via 192.0.3.254 mtu 1300")
    arrivals(lab, a1, 1)
    eventually(lambda: "mtu 1300" in paths(host)[0], "the route's MTU")
    kernel.ip(f"route del {REMOTE}/32")
    eventually(lambda: REMOTE in warned(host), "the warning")


def test_a_next_hop_that_moves_is_followed(lab):
    host, a1, far = routed(lab, "192.0.2.254")
    host.namespace.ip(f"route add {REMOTE}/32 via 192.0.2.254")
    device = lambda: far.counter("up0", "rx_packets")

    def arrive():
        before = device()
        send_flows(a1)
        return device() - before >= 60

    eventually(arrive, "packets of the flows")
    mac = "02:00:00:00:09:09"
    far.ip(f"link set up0 address {mac}")
    host.namespace.ip("neigh flush dev up0")
    eventually(lambda: mac in "".join(paths(host)), "the new MAC")
    eventually(arrive, "packets of the flows")


def test_a_kernel_without_the_address_is_a_fault(lab):
    lab.plug("a")
    config = tunnel_routes(config_of("a", "a1"), "mpls-over-udp", "b1")
    host = lab.host(config)
    fault = f"the kernel does not have {UNDERLAY['a']}"
    assert fault in warned(host), warned(host)
    host.namespace.ip(f"addr add {UNDERLAY['a']}/24 dev up0")
    # Any change of a link makes it try again.
    host.namespace.ip("link set up0 mtu 8999")
    eventually(lambda: fault not in warned(host), "the end of the fault")
    assert kernels(host) == (True, {4789, 6635})
    host.namespace.ip(f"addr del {UNDERLAY['a']}/24 dev up0")
    eventually(lambda: fault in warned(host), "the warning")
    host.namespace.ip(f"addr add {UNDERLAY['a']}/24 dev up0")
    eventually(lambda: fault not in warned(host), "the end of the warning")


def test_somebody_else_on_the_wire_is_told_of(lab):
    lab.plug("a")
    host = lab.host(host_config("a", {"a1": tap("a1")}))
    taken = f"the kernel has {UNDERLAY['a']} too"
    assert taken not in warned(host)
    host.namespace.ip(f"addr add {UNDERLAY['a']}/24 dev up0")
    eventually(lambda: taken in warned(host), "the warning")
    assert taken in host.daemon.text()
    host.namespace.ip(f"addr del {UNDERLAY['a']}/24 dev up0")
    eventually(lambda: taken not in warned(host), "the end of the warning")
    # A second daemon in the same namespace.
    lab.namespaces["second"] = host.namespace
    config = Config("second", tunnel_source="192.0.2.99")
    config.add("wire", name="up0", driver="af-packet", device="up0", addresses=["192.0.2.99/24"])
    second = lab.host(config)
    lab.namespaces.pop("second")
    told = "another daemon of Viaduct has up0 as well"
    eventually(lambda: told in warned(second), "the warning")
    assert told in second.daemon.text() and told not in warned(host)
    host.stop()
    eventually(lambda: told not in warned(second), "the end of the warning")


def test_hosts_with_one_nic_find_each_other_by_bgp(lab):
    """A host's only NIC carries the sessions of its kernel, and the tunnels."""
    lab.plug("c").ip("addr add", f"{UNDERLAY['c']}/24", "dev up0")
    clients = [UNDERLAY["a"], UNDERLAY["b"]]
    reflector = Frr(lab.namespace("c"), lab.directory / "rr", UNDERLAY["c"], clients)
    lab.cleanup.callback(reflector.stop)
    reflector.start()
    hosts, guests = {}, {}
    for name, guest in (("a", "a1"), ("b", "b1")):
        lab.plug(name).ip("addr add", f"{UNDERLAY[name]}/24", "dev up0")
        config = config_of(name, guest)
        del config.entry("guest", guest)["label"]
        config.bgp["as"] = AS
        config.add("bgp.peer", address=UNDERLAY["c"])
        hosts[name] = lab.host(config)
        guests[guest] = lab.container(hosts[name], guest)
    guests["a1"].expect_ping(B1.address)
    guests["b1"].expect_ping(A1.address6)
    hosts["a"].replace()
    guests["a1"].expect_ping(B1.address)
    # The other host's routes go, and with them its address as a remote.
    explained = lambda: hosts["a"].call("explain", "--in", "a1", f"{A1.address} > {B1.address}").stdout
    assert UNDERLAY["b"] in explained()
    hosts["b"].apply(hosts["b"].config.without("guest", name="b1"))
    eventually(lambda: UNDERLAY["b"] not in explained(), "the withdrawal")


def test_a_shared_wire_has_what_makes_sense(lab):
    lab.plug("a").ip("addr add", f"{UNDERLAY['a']}/24", "dev up0")
    host = lab.host(config_of("a", "a1"))

    def refused(text, change):
        config = host.config.copy()
        change(config)
        (host.directory / "wrong.toml").write_text(config.text())
        try:
            host.call("apply", host.directory / "wrong.toml")
        except Failed as failed:
            assert text in str(failed), failed
        else:
            raise Failed(f"not refused: {text}")

    wire = lambda **keys: lambda config: config.entry("wire", "up0").update(keys)
    refused("leave `addresses` out", wire(addresses=["192.0.2.1/24"]))
    refused('driver = "af-packet"', wire(driver="af-xdp"))
    refused("an Open vSwitch takes all packets", wire(mode="ovs"))
    attached = {"name": "lan", "vrf": 7, "gateways": ["10.7.0.254/24"], "wire": "up0"}
    refused("which takes tunnel packets alone", lambda config: config.add("network", **attached))
