"""The hosts, networks and guests that most tests use.

Two hosts `a` and `b` on one underlay; network blue (10.1.1.0/24, fd00:1::/64) spans both, red (10.2.2.0/24) is the
other tenant. Guest a1 is the first one on host a, and so on:

    host  underlay                   blue              red
    a     192.0.2.1, 2001:db8::1     a1 10.1.1.1       a3 10.2.2.1
                                     a2 10.1.1.2
    b     192.0.2.2, 2001:db8::2     b1 10.1.1.11      b3 10.2.2.11
                                     b2 10.1.1.12
"""

from dataclasses import dataclass

from .config import Config

UNDERLAY = {"a": "192.0.2.1", "b": "192.0.2.2", "c": "192.0.2.3"}
UNDERLAY6 = {"a": "2001:db8::1", "b": "2001:db8::2", "c": "2001:db8::3"}
GATEWAY_MAC = "00:00:5e:00:01:00"
NETWORKS = {
    "blue": {"vrf": 1, "gateways": ["10.1.1.254/24", "fd00:1::ffff/64"], "vni": 5001},
    "red": {"vrf": 2, "gateways": ["10.2.2.254/24", "fd00:2::ffff/64"], "vni": 5002},
}


@dataclass(frozen=True)
class Seat:
    """The location and the name of a guest."""

    name: str
    host: str
    network: str
    number: int

    @property
    def address(self):
        return f"10.{1 if self.network == 'blue' else 2}.{1 if self.network == 'blue' else 2}.{self.number}"

    @property
    def address6(self):
        return f"fd00:{1 if self.network == 'blue' else 2}::{self.number:x}"

    @property
    def mac(self):
        return f"02:00:00:00:{1 if self.network == 'blue' else 2:02x}:{self.number:02x}"

    @property
    def label(self):
        return 100 * (1 if self.network == "blue" else 2) + self.number


SEATS = {
    seat.name: seat
    for seat in (
        Seat("a1", "a", "blue", 1),
        Seat("a2", "a", "blue", 2),
        Seat("a3", "a", "red", 1),
        Seat("b1", "b", "blue", 11),
        Seat("b2", "b", "blue", 12),
        Seat("b3", "b", "red", 11),
    )
}


def tap(seat):
    """Returns the keys that make a guest a container."""
    return {"kind": "tap", "device": f"tap{seat}"}


def vhost(seat, **keys):
    """Returns the keys that make a guest a virtual machine."""
    return {"kind": "vhost", "socket": f"{seat}.sock", **keys}


def verbs(**keys):
    """Returns the keys that make a guest a verbs device and nothing else."""
    return {"kind": "rdma", **keys}


def host_config(name, guests, *, wire=True, mtu=9000, family=4, **host):
    """Configures a host with its wire, its guests, and those of both networks that they need.

    `guests`: seat name -> keys of the guest (see `tap`, `vhost`).
    """
    if wire:
        host.setdefault("tunnel_source", (UNDERLAY if family == 4 else UNDERLAY6)[name])
    config = Config(name, **host)
    if wire:
        addresses = [f"{UNDERLAY[name]}/24", f"{UNDERLAY6[name]}/64"]
        config.add("wire", name="up0", driver="af-packet", device="up0", addresses=addresses, mtu=mtu)
    for network in ("blue", "red"):
        if any(SEATS[guest].network == network for guest in guests):
            config.add("network", name=network, **NETWORKS[network])
    for guest, keys in guests.items():
        seat = SEATS[guest]
        common = {"mac": seat.mac, "addresses": [seat.address, seat.address6], "label": seat.label}
        config.add("guest", **{"name": guest, "network": seat.network, **common, **keys})
    return config


def tunnel_routes(config, kind, *remotes, family=4):
    """Routes to remote guests over a tunnel that carries IP packets."""
    underlay = UNDERLAY if family == 4 else UNDERLAY6
    for seat in (SEATS[name] for name in remotes):
        hop = {"tunnel": kind, "remote": underlay[seat.host], "label": seat.label}
        config.add("route", network=seat.network, prefix=f"{seat.address}/32", to=[hop])
        config.add("route", network=seat.network, prefix=f"{seat.address6}/128", to=[hop])
    return config


def bridge_entries(config, *remotes, family=4):
    """Adds static MACs of remote guests, and flooding to their hosts, over VXLAN, which carries Ethernet."""
    underlay = UNDERLAY if family == 4 else UNDERLAY6
    places = {}
    for seat in (SEATS[name] for name in remotes):
        hop = {"tunnel": "vxlan", "remote": underlay[seat.host], "vni": NETWORKS[seat.network]["vni"]}
        config.add("mac", network=seat.network, mac=seat.mac, to=hop)
        places.setdefault(seat.network, {})[seat.host] = hop
    for network, hops in places.items():
        config.add("flood", network=network, to=list(hops.values()))
    return config


def bridged_routes(config, *remotes):
    """Adds remote guests over VXLAN, for bridged and routed packets."""
    bridge_entries(config, *remotes)
    for seat in (SEATS[name] for name in remotes):
        hop = {"tunnel": "vxlan", "remote": UNDERLAY[seat.host], "vni": NETWORKS[seat.network]["vni"], "mac": seat.mac}
        config.add("route", network=seat.network, prefix=f"{seat.address}/32", to=[hop])
    return config


def one_host(lab, *guests, **host):
    """Starts host a with containers as guests; returns (host, containers)."""
    config = host_config("a", {guest: tap(guest) for guest in guests}, wire=False, **host)
    started = lab.host(config)
    return started, [lab.container(started, guest) for guest in guests]


# The address that two hosts have a guest with.
ANYCAST = "10.9.0.1"


def anycast_hosts(lab, *, shared=False, **host):
    """Starts host a with guest a1, and hosts b and c, each with a guest that has the anycast address, to which a has a
    route by both. With `shared`, their kernels keep the wires. Returns the hosts, and the guests by their hosts' names."""
    hosts, guests = {}, {}
    hop = lambda name, label: {"tunnel": "mpls-over-udp", "remote": UNDERLAY[name], "label": label}
    for name in "abc":
        lab.plug(name)
        guest = "a1" if name == "a" else f"any{name}"
        config = host_config(name, {guest: tap(guest)} if name == "a" else {}, **host)
        if shared:
            lab.namespace(name).ip("addr add", f"{UNDERLAY[name]}/24", "dev up0")
            config = config.without("wire", name="up0")
            config.add("wire", name="up0", driver="af-packet", device="up0", shared=True, mtu=9000)
        if name == "a":
            config.add("route", network="blue", prefix=f"{ANYCAST}/32", to=[hop("b", 500), hop("c", 500)])
        else:
            config.add("network", name="blue", vrf=1, gateways=["10.9.0.254/24"])
            keys = {"mac": f"02:00:00:00:09:0{UNDERLAY[name][-1]}", "addresses": [ANYCAST], "label": 500}
            config.add("guest", name=guest, network="blue", **keys, **tap(guest))
            seat = SEATS["a1"]
            config.add("route", network="blue", prefix=f"{seat.address}/32", to=[hop("a", seat.label)])
        hosts[name] = lab.host(config)
        guests[name] = lab.container(hosts[name], guest)
    return hosts, guests


# Sources of tunnels that are reached by both wires of a host.
LOOPBACK = {"a": "198.51.100.1", "b": "198.51.100.2"}


def two_wires(lab, *, shared=False, **keys):
    """Starts hosts a and b with guests a1 and b1 and two wires each, every one in a fabric of its own, where the other
    host is the next hop. With `shared`, their kernels keep the wires. Returns the hosts and the guests, by name."""
    hosts, guests = {}, {}
    for name, other in ("ab", "ba"):
        guest, seat = f"{name}1", SEATS[f"{other}1"]
        host = {"tunnel_source": LOOPBACK[name], **keys}
        config = host_config(name, {guest: tap(guest)}, wire=False, **host)
        kernel, hops = lab.namespace(name), []
        for index in range(2):
            address = lambda of, index=index: f"192.0.{2 + index}.{LOOPBACK[of][-1]}"
            lab.plug(name, f"up{index}", fabric=f"fabric{index}")
            wire = {"name": f"up{index}", "driver": "af-packet", "device": f"up{index}", "mtu": 9000}
            if shared:
                kernel.ip(f"addr add {address(name)}/24 dev up{index}")
                wire |= {"shared": True}
            else:
                loopback = [f"{LOOPBACK[name]}/32"] if index == 0 else []
                wire |= {"addresses": [f"{address(name)}/24", *loopback], "gateway": address(other)}
            config.add("wire", **wire)
            hops.append(f"nexthop via {address(other)}")
        if shared:
            kernel.ip(f"addr add {LOOPBACK[name]}/32 dev lo")
            kernel.ip(f"route add {LOOPBACK[other]}/32", *hops)
        hop = {"tunnel": "mpls-over-udp", "remote": LOOPBACK[other], "label": seat.label}
        config.add("route", network="blue", prefix=f"{seat.address}/32", to=[hop])
        hosts[name] = lab.host(config)
        guests[guest] = lab.container(hosts[name], guest)
    return hosts, guests


def remotes(host):
    """Returns the nexthops of a host's tunnels, by the name of the remote host."""
    tunnels = [row for row in host.viaduct("nh") if row["kind"] == "tunnel"]
    return {name: row for row in tunnels for name in UNDERLAY if f" {UNDERLAY[name]} " in row["text"]}


def two_verbs_hosts(lab, connect, guests=("a1", "b1"), *, family=4, mtu=9000, **keys):
    """Starts hosts a and b like those of `two_hosts`, whose guests are verbs devices. Returns (hosts by name, devices
    by guest name)."""
    hosts, devices = {}, {}
    for name in ("a", "b"):
        lab.plug(name, mtu=mtu)
        local = [guest for guest in guests if SEATS[guest].host == name]
        config = host_config(name, {guest: verbs(**keys) for guest in local}, family=family, mtu=mtu)
        connect(config, *[guest for guest in guests if guest not in local])
        hosts[name] = lab.host(config)
        devices.update({guest: lab.verbs(hosts[name], guest) for guest in local})
    return hosts, devices


def two_hosts(lab, connect, guests=("a1", "b1"), *, family=4, mtu=9000):
    """Starts hosts a and b with containers, each host's config extended by `connect(config, *remote guests)`.

    Returns (hosts by name, containers by guest name).
    """
    hosts, containers = {}, {}
    for name in ("a", "b"):
        lab.plug(name, mtu=mtu)
        local = [guest for guest in guests if SEATS[guest].host == name]
        config = host_config(name, {guest: tap(guest) for guest in local}, family=family, mtu=mtu)
        connect(config, *[guest for guest in guests if guest not in local])
        hosts[name] = lab.host(config)
        containers.update({guest: lab.container(hosts[name], guest) for guest in local})
    return hosts, containers
