"""A machine with Debian's kernel and FRR is a router between networks of Viaduct and those outside, as docs/routing.md
has it: by EVPN with VRFs and the kernel's VXLAN, and by L3VPN with its MPLS, for which this machine's kernel may lack
the means."""

import shlex
import tomllib
from ipaddress import ip_network

import pytest

from lab import Config, eventually
from lab.bgp import AS, Frr
from lab.guest import Guest
from lab.host import REPOSITORY
from lab.page import blocks
from lab.topology import SEATS, UNDERLAY, tap
from lab.traffic import tcp_rate
from lab.vm import FRR_IMAGES, Vm

PAGE = (REPOSITORY / "docs/routing.md").read_text()
SECTION = PAGE.split("\n## A gateway of FRR and Linux\n")[1].split("\n## ")[0]
# The network of the sessions, which the kernel keeps.
CONTROL = {"a": "198.51.100.1", "c": "198.51.100.3", "rr": "198.51.100.9"}
MTU = 9000
# What is outside of each network: the router's device, and who is there, by the router's address.
OUTSIDE = {
    "blue": ("eth2", {"10.9.1.254": "10.9.1.1", "fd00:9:1::ffff": "fd00:9:1::1"}),
    "red": ("eth3", {"10.9.2.254": "10.9.2.1", "fd00:9:2::ffff": "fd00:9:2::1"}),
}
# How packets go, by who sends them.
CARRIED = {
    "blue": {(UNDERLAY["a"], "vxlan"), (UNDERLAY["c"], "vxlan")},
    "red": {(UNDERLAY["a"], "mpls over udp"), (UNDERLAY["c"], "mpls over gre")},
}
DAEMONS = ("zebra", "staticd", "bgpd")
BYTES = ("-n", "2M")


class Router(Vm):
    """A machine with two NICs, on the underlay and on the network of the sessions, by bridges in its namespace."""

    def __init__(self, directory, namespace):
        directory.mkdir()
        self.name, self.directory, self.namespace, self.console = "router", directory, namespace, None
        self.entry, self.network = {"mac": "02:00:00:00:0c:00"}, {}
        self.options, self.memory, self.images, self.qemu_program = "", "256M", FRR_IMAGES, "qemu-system-x86_64"
        self.prefix = namespace.words([])

    def nic(self, number, device):
        """Bridges a device with a tap, and returns QEMU's words for the tap."""
        tap, bridge = f"tap{number}", f"bridge{number}"
        self.namespace.ip("tuntap add", tap, "mode tap")
        self.namespace.ip("link add", bridge, "type bridge mcast_snooping 0")
        for port in (device, tap):
            self.namespace.ip("link set", port, "mtu", MTU, "master", bridge, "up")
        self.namespace.ip("link set", bridge, "up")
        return ["-netdev", f"tap,id=net{number},ifname={tap},script=no,downscript=no"]

    def net_words(self, queues):
        return self.nic(0, "up0")

    def more_words(self):
        return [*self.nic(1, "ctl0"), "-device", "virtio-net-pci,netdev=net1,mac=02:00:00:00:0c:01,romfile=,vectors=0"]


class Outside(Guest):
    """A namespace in the router, on a device of it."""

    def __init__(self, router, network):
        self.router, self.name = router, f"outside-{network}"
        self.device, gateways = OUTSIDE[network]
        self.addresses = list(gateways.values())
        router.run(["ip", "netns", "add", self.name])
        router.run(["ip", "link", "add", self.device, "type", "veth", "peer", "name", "out", "netns", self.name])
        for device in ("lo", "out"):
            self.ip("link set", device, "up")
        for gateway, address in gateways.items():
            self.ip("address add", f"{address}/{length(address)}", "dev out nodad")
            self.ip("route add default via", gateway, "dev out")

    def ip(self, *words):
        self.router.run(["ip", "-n", self.name, *" ".join(words).split()])

    def run(self, command, **options):
        return self.router.run(["ip", "netns", "exec", self.name, *command], **options)


def length(address):
    """Returns the length of the prefix that an address outside has."""
    return 64 if ":" in address else 24


def plug(lab, name):
    """Connects a namespace with the network of the sessions."""
    namespace = lab.plug(name, "ctl0", fabric="control")
    if name != "c":
        namespace.ip("addr add", f"{CONTROL[name]}/24", "dev ctl0")
    return namespace


def start_host(lab):
    """Starts host a with the page's networks and a guest in each."""
    config = Config("a", tunnel_source=UNDERLAY["a"])
    config.add("wire", name="up0", driver="af-packet", device="up0", addresses=[f"{UNDERLAY['a']}/24"], mtu=MTU)
    for entry in tomllib.loads(blocks(SECTION, "toml")[0])["network"]:
        config.add("network", **entry)
    for name in ("a1", "a3"):
        seat = SEATS[name]
        addresses = [seat.address, seat.address6]
        config.add("guest", name=name, network=seat.network, mac=seat.mac, addresses=addresses, **tap(name))
    config.bgp["as"] = AS
    config.add("bgp.peer", address=CONTROL["rr"])
    host = lab.host(config)
    return host, {SEATS[name].network: lab.container(host, name) for name in ("a1", "a3")}


def start_router(lab):
    """Starts the router as the page says. Returns it, and what is outside."""
    router = Router(lab.directory / "router", lab.namespace("c")).start()
    lab.cleanup.callback(router.stop)
    router.boot()
    # The shell would take busybox's.
    router.shell('ip() { /bin/ip "$@"; }')
    for device, address in (("eth0", UNDERLAY["c"]), ("eth1", CONTROL["c"])):
        router.shell(f"ip address add {address}/24 dev {device}; ip link set {device} mtu {MTU} up")
    router.run(["modprobe", "veth"])
    outside = {network: Outside(router, network) for network in OUTSIDE}
    for block in blocks(SECTION, "sh"):
        for line in block.splitlines():
            router.shell(line)
    for line in blocks(SECTION, "frr")[0].splitlines():
        router.shell(f"echo {shlex.quote(line)} >>/etc/frr/frr.conf")
    for name in DAEMONS:
        router.run([name, "-d", "-u", "root", "-g", "root", "-f", "/etc/frr/frr.conf", "-P", "0"])
    return router, outside


@pytest.fixture
def world(lab):
    """Starts host a, the reflector, and the router with what is outside."""
    for name in ("a", "c"):
        lab.plug(name, mtu=MTU)
        plug(lab, name)
    reflector = Frr(plug(lab, "rr"), lab.directory / "rr", CONTROL["rr"], [CONTROL["a"], CONTROL["c"]])
    lab.cleanup.callback(reflector.stop)
    reflector.start()
    host, guests = start_host(lab)
    return host, guests, *start_router(lab)


@pytest.mark.nightly
def test_guests_and_what_is_outside(lab, world):
    host, guests, router, outside = world
    try:
        reach(lab, host, guests, router, outside)
    except Exception:
        words = ["show bgp summary", "show bgp ipv4 vpn", "show bgp ipv6 vpn", "show bgp l2vpn evpn",
                 "show ip route vrf all", "show ipv6 route vrf all", "show mpls table"]
        print(router.run(["vtysh", *(word for line in words for word in ("-c", line))], check=False).stdout)
        raise


def reach(lab, host, guests, router, outside):
    """Checks each network both ways."""
    for network, there in outside.items():
        guest = guests[network]
        wait_for_routes(host, guest, router, there)
        with lab.capture("c", expression="udp or proto gre") as seen:
            for own, address in zip(guest.addresses, there.addresses, strict=True):
                guest.expect_ping(address)
                there.expect_ping(own)
        assert seen.expert() == []
        assert carried(seen) == CARRIED[network]
        for own, address in zip(guest.addresses, there.addresses, strict=True):
            tcp_rate(guest, there, address, options=BYTES)
            tcp_rate(there, guest, own, options=BYTES)


def wait_for_routes(host, guest, router, there):
    """Waits until the host knows what is outside of a network, and the router's kernel knows the guest."""
    network = guest.network["name"]
    of_host = lambda: {
        route["prefix"] for route in host.viaduct("rt", "list", "--network", network) if route["owner"] == "bgp"
    }
    of_kernel = lambda: [
        line.split()[0]
        for family in ("-4", "-6")
        for line in router.run(["ip", family, "route", "show", "vrf", network]).stdout.splitlines()
    ]
    subnets = {str(ip_network(f"{address}/{length(address)}", strict=False)) for address in there.addresses}
    eventually(lambda: subnets <= of_host(), f"the host's routes of {network}")
    eventually(lambda: {*guest.addresses} <= {*of_kernel()}, f"the router's routes of {network}")


def carried(seen):
    """Returns how echoes were carried, by the host that sent them."""
    echoes = "(icmp || icmpv6.type == 128 || icmpv6.type == 129)"
    rows = seen.fields(f"{echoes} && (vxlan || mpls)", "ip.src", "frame.protocols")
    kinds = {"vxlan": "vxlan", "udp:mpls": "mpls over udp", "gre:mpls": "mpls over gre"}
    return {(source.split(",")[0], kinds[next(kind for kind in kinds if kind in words)]) for source, words in rows}
