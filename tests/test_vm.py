"""Linux guests in QEMU: both roles of the socket, both kinds of ring, several queues."""

import re
import time

import pytest

from lab import eventually
from lab.topology import SEATS, bridge_entries, host_config, tap, tunnel_routes, vhost
from lab.traffic import tcp_rate
from lab.vm import Vm
from test_hostile_rings import vif


pytestmark = pytest.mark.takes_long

A1, A2, B1 = SEATS["a1"], SEATS["a2"], SEATS["b1"]
PACKED, EVENT_IDX, CSUM, TSO4, MERGEABLE, MQ = 34, 29, 0, 11, 15, 22


def overlay(config, *remotes):
    """Adds routes over MPLS for IPv4, and the bridge over VXLAN for IPv6: both at once between the same guests."""
    bridge_entries(tunnel_routes(config, "mpls-over-udp", *remotes), *remotes)
    for remote in remotes:
        config = config.without("route", prefix=f"{SEATS[remote].address6}/128")
    return config


@pytest.fixture(scope="module")
def guests(shared_lab):
    """Starts the guests. On host a: a VM whose QEMU connects, with a packed ring; one whose QEMU listens, with two
    queues; a container. On host b: a VM behind MPLS over UDP (IPv4) and VXLAN (IPv6)."""
    lab = shared_lab
    lab.plug("a"), lab.plug("b")
    follows = {"link_follows": "up0"}
    config = host_config("a", {"a1": vhost("a1", **follows), "a2": vhost("a2", role="client", queues=2, **follows)})
    config.add(
        "guest", name="c7", network="blue", mac="02:00:00:00:01:07", addresses=["10.1.1.7", "fd00:1::7"], **tap("c7")
    )
    a = lab.host(overlay(config, "b1"))
    b = lab.host(overlay(host_config("b", {"b1": vhost("b1")}), "a1", "a2"))
    vms = {
        "a1": lab.vm(a, "a1", options="packed=on"),
        "a2": lab.vm(a, "a2"),
        "b1": lab.vm(b, "b1"),
    }
    for vm in vms.values():
        vm.boot()
    return {**vms, "container": lab.container(a, "c7")}


def test_features_that_linux_takes(guests):
    for name, expected in (("a1", {PACKED}), ("a2", {MQ}), ("b1", set())):
        missing = expected | {CSUM, TSO4, EVENT_IDX, MERGEABLE}
        missing -= guests[name].features()
        assert not missing, f"{name}: {missing}"
    assert PACKED not in guests["b1"].features()


@pytest.mark.parametrize("name", ["a1", "a2", "b1"])
def test_gateway(guests, name):
    guests[name].expect_ping("10.1.1.254")
    guests[name].expect_ping("fd00:1::ffff")


def test_inside_a_host(guests):
    for address in (A2.address, A2.address6, "10.1.1.7"):
        guests["a1"].expect_ping(address)
    guests["container"].expect_ping(A1.address)
    guests["a1"].expect_ping(A2.address, 5, size=1400)


def test_across_hosts(guests, shared_lab):
    with shared_lab.capture("fabric", "a-up0", "ip") as seen:
        guests["a1"].expect_ping(B1.address)
        guests["a2"].expect_ping(B1.address6)
        guests["b1"].expect_ping(A1.address)
    assert seen.fields("mpls && icmp", "frame.number")
    assert seen.fields("vxlan && icmpv6.type == 128", "frame.number")
    assert seen.expert() == []


@pytest.mark.parametrize(
    "client, server", [("a1", "a2"), ("a2", "a1"), ("a1", "b1"), ("container", "a1"), ("a2", "container")]
)
def test_tcp(guests, client, server):
    address = {"a1": A1.address, "a2": A2.address, "b1": B1.address, "container": "10.1.1.7"}[server]
    tcp_rate(guests[client], guests[server], address, options=("-n", "2M", "-P", 2))


def test_guest_sends_by_both_queues(guests):
    vm = guests["a2"]
    vm.run(["ethtool", "-L", "eth0", "combined", "2"])
    tcp_rate(guests["container"], vm, A2.address, options=("-n", "2M", "-P", 8))
    counts = vm.run(["ethtool", "-S", "eth0"]).stdout
    # Packets that come from the guest: each worker chooses in which queue the guest is given packets.
    sent = [int(count) for count in re.findall(r"tx_?(?:queue_)?\d+_packets: (\d+)", counts)]
    assert len(sent) == 2 and all(sent), counts


# A translated machine beside others does not send more than the rate.
@pytest.mark.alone
@pytest.mark.parametrize("way", ["out", "in"])
def test_shaped_machines_keep_to_the_rate(guests, way):
    """Both kinds of ring, and both roles of the socket: what is over the rate waits, and little is lost."""
    mbps, vm, host = 8, guests["a1" if way == "out" else "a2"], guests["a1"].host
    host.call("guest", "set", vm.name, f"shape={{ {way} = {{ mbps = {mbps} }} }}", "--take-over")
    try:
        counted = "rx_bytes" if way == "out" else "tx_bytes"
        before, began = vif(host, vm.name), time.monotonic()
        assert tcp_rate(guests["a1"], guests["a2"], A2.address, seconds=3) > 0
        after, elapsed = vif(host, vm.name), time.monotonic() - began
        rate = (after[counted] - before[counted]) * 8 / elapsed / 1e6
        # A rate is kept within 2 %.
        assert 0 < rate <= mbps * 1.02 and after["shape"][f"{way}_waited"] > 0, (rate, after["shape"])
        assert not {"rate_limited", "rx_full"} & host.drops().keys()
    finally:
        host.call("guest", "set", vm.name, "--unset", "shape", "--take-over")


def rebind(vm):
    """Has the VM's driver reset its device and start again. The interface is down then, and has no addresses."""
    vm.shell(
        "ip link set eth0 down; d=$(basename $(readlink /sys/class/net/eth0/device)); "
        "echo $d > /sys/bus/virtio/drivers/virtio_net/unbind; echo $d > /sys/bus/virtio/drivers/virtio_net/bind"
    )
    eventually(lambda: vm.shell("ls /sys/class/net/eth0", check=False).returncode == 0, "eth0")


def test_link_goes_when_the_guest_reboots(guests, shared_lab):
    """The driver resets the device and starts again with fresh rings."""
    vm = guests["b1"]
    rebind(vm)
    vm.run(["ip", "link", "set", "eth0", "up"])
    vm.run(["ip", "addr", "add", f"{B1.address}/24", "dev", "eth0"])
    vm.expect_ping("10.1.1.254")
    guests["a1"].expect_ping(B1.address)


def test_links_follow_a_wire(guests, shared_lab):
    carrier = lambda name: guests[name].run(["cat", "/sys/class/net/eth0/carrier"]).stdout.strip()
    links = lambda: {name: carrier(name) for name in ("a1", "a2", "b1")}
    cable = shared_lab.namespace("fabric")
    cable.ip("link set a-up0 down")
    eventually(lambda: links() == {"a1": "0", "a2": "0", "b1": "1"}, "no links")
    cable.ip("link set a-up0 up")
    eventually(lambda: set(links().values()) == {"1"}, "links")
    for name in ("a1", "a2"):
        guests[name].expect_ping("10.1.1.254")
        guests[name].expect_ping(B1.address)


class Private(Vm):
    """Its VMM hands over the file of its memory, which it has mapped for itself alone."""

    backend = "memory-backend-memfd,share=off"


def test_memory_that_a_vmm_does_not_share_is_a_fault(lab):
    """Memory that a VMM shares is no fault, also while its guest does not use its interface."""
    lab.plug("a")
    host = lab.host(host_config("a", {"a1": vhost("a1"), "a2": vhost("a2")}))
    shared = lab.vm(host, "a2").boot()
    rebind(shared)
    assert vif(host, "a2")["up"]
    private = lab.vm(host, "a1", kind=Private)
    # By then a fault of the other one's memory would be there as well.
    eventually(lambda: "share=on" in (vif(host, "a1").get("fault") or ""), "a fault of a1")
    assert not vif(host, "a2").get("fault")
    private.boot()
    assert vif(host, "a1")["fault"]
