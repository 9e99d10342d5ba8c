"""Several wires to one remote: flows take all of them, and leave a path that breaks without a sign."""

import pytest

from lab import eventually
from lab.topology import SEATS, host_config, tap
from lab.traffic import EchoServer
from test_remotes import FLOWS, INTERVAL, PORT, Flows

# Tunnels end at an address of no wire.
LOOPBACK = {"a": "198.51.100.1", "b": "198.51.100.2"}


def two_wires(lab, shared):
    """Starts hosts a and b with guests a1 and b1 and two wires each, every one in a fabric of its own, where the other
    host is the next hop. With `shared`, their kernels keep the wires. Returns the hosts and the guests, by name."""
    hosts, guests = {}, {}
    for name, other in ("ab", "ba"):
        guest, seat = f"{name}1", SEATS[f"{other}1"]
        host = {"tunnel_source": LOOPBACK[name], "tunnel_bfd": INTERVAL, "metrics": "127.0.0.1:9101"}
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


def used(lab, flows):
    """Sends a packet of each flow, and returns by which fabrics host a sent enough of them."""
    count = lambda: [lab.namespace(f"fabric{index}").counter(f"a-up{index}", "rx_packets") for index in range(2)]
    before = count()
    assert flows.answered() == FLOWS
    # Flows by both are a half each, and the packets of BFD much fewer.
    return [index for index, (now, old) in enumerate(zip(count(), before)) if now - old >= FLOWS / 4]


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_flows_take_all_paths_and_leave_a_broken_one(lab, shared):
    hosts, guests = two_wires(lab, shared)
    a = hosts["a"]
    remote = lambda: next(row for row in a.viaduct("nh") if row["kind"] == "tunnel")
    eventually(lambda: (remote().get("bfd") or {}).get("state") == "Up", "the BFD session")
    told = f"remote {LOOPBACK['b']}: 1 of 2 paths are down by BFD: 192.0.3.2 by up1"
    cut = lambda: lab.namespace("fabric1").ip("link set a-up1 nomaster")

    with EchoServer(guests["b1"], PORT):
        flows = Flows(guests["a1"], str(SEATS["b1"].address))
        eventually(lambda: flows.answered() == FLOWS, "answers to all flows")
        eventually(lambda: used(lab, flows) == [0, 1], "packets by both wires")
        # The link stays up, and the neighbour is known.
        cut()
        eventually(lambda: told in a.call("status").stdout, "the warning")
        eventually(lambda: flows.answered() == FLOWS, "no flow goes there any more")
        assert used(lab, flows) == [0]
        assert not remote().get("down")
        question = f"{SEATS['a1'].address} > {SEATS['b1'].address} / udp 20000 > {PORT}"
        assert "down (BFD): others are used" in a.call("explain", "--in", "a1", question).stdout
        metrics = a.namespace.run(["curl", "-s", "http://127.0.0.1:9101/metrics"]).stdout
        assert f'viaduct_remote_paths_down{{remote="{LOOPBACK["b"]}"}} 1\n' in metrics
        # The next daemon finds it out by itself.
        a.replace()
        eventually(lambda: told in a.call("status").stdout, "the warning")
        eventually(lambda: flows.answered() == FLOWS, "no flow goes there any more")
        lab.namespace("fabric1").ip("link set a-up1 master br0")
        eventually(lambda: told not in a.call("status").stdout, "the end of the warning")
        eventually(lambda: flows.answered() == FLOWS, "answers to all flows")
        eventually(lambda: used(lab, flows) == [0, 1], "packets by both wires")
