"""A VM moves from a host with Open vSwitch (DPDK) to one with Viaduct, and back, while packets come to it.

All are on one segment: the bridge of Open vSwitch and the network of Viaduct have a wire there, and the peer is a plain
machine. The VM has plain virtio-net, with the features that both switches know.
"""

import re
import socket

import pytest

from lab import Lines, Stream, echoes, eventually
from lab.marks import at_night
from lab.ovs import COMMON
from lab.topology import SEATS, host_config, vhost

# Open vSwitch polls.
pytestmark = pytest.mark.alone

VM = SEATS["a1"]
PEER = "10.1.1.99"
# See test_save.py.
MEMORY = f"{192 * 1024 + 8}K"


def on_the_segment(name, **guest):
    """Configures a host with the VM, in a network that is attached to the segment."""
    config = host_config(name, {"a1": vhost("a1", **guest)}, mtu=1500)
    config.entry("network", "blue")["wire"] = "up0"
    return config


@pytest.mark.parametrize("options", ["packed=on", at_night("")])
def test_a_guest_that_took_nothing_goes_on(lab, options):
    """Open vSwitch fills buffers of a guest that does not look while it moves, and so does not write there."""
    for name in ("a", "b"):
        lab.plug(name, mtu=1500)
    peer = lab.server("peer", f"{PEER}/24")
    lab.segment("peer")
    there, ovs = lab.host(on_the_segment("a", standby=True)), lab.ovs(on_the_segment("b", role="client"))
    vm = lab.vm(ovs, "a1", options=f"{COMMON},{options}".strip(","), memory=MEMORY)
    vm.boot()
    peer.expect_ping(VM.address)
    peer.namespace.ip("neigh replace", VM.address, "lladdr", VM.mac, "dev", "up0")

    def send():
        before = taken(ovs)
        with peer.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(100):
                sender.sendto(b"x", (VM.address, 9))
        eventually(lambda: taken(ovs) >= before + 100, "the packets are in the guest's buffers")

    # With more bandwidth the last round begins before: the guest writes more than goes over in time. (Zeroes go over
    # at once.)
    vm.qmp("migrate-set-parameters", **{"max-bandwidth": 16 << 20})
    vm.shell("yes | head -c 16777216 > /tmp/a; while :; do cat /tmp/a > /tmp/b; done &")
    vm.run(["ip", "link", "set", "eth0", "down"])
    moved, way = lab.destination(vm, there)
    vm.migrate(way, before_last=send)
    moved.arrived()
    moved.qmp("cont")
    vm.stop()
    moved.run(["ip", "link", "set", "eth0", "up"])
    peer.expect_ping(VM.address)


def taken(ovs):
    """Counts the packets that the guest's buffers took."""
    ports = ovs.appctl("dpctl/show", "-s", "netdev@ovs-netdev")
    return int(re.search(r"port \d+: a1 .*?TX packets:(\d+)", ports, re.S)[1])


@pytest.mark.parametrize("first,options", [("b", ""), at_night("a", "packed=on")])
def test_a_vm_moves_between_open_vswitch_and_viaduct(lab, first, options):
    for name in ("a", "b"):
        lab.plug(name, mtu=1500)
    peer = lab.server("peer", f"{PEER}/24")
    lab.segment("peer")
    hosts = {"a": lab.host(on_the_segment("a", standby=True)), "b": lab.ovs(on_the_segment("b", role="client"))}
    vm = lab.vm(hosts[first], "a1", options=f"{COMMON},{options}".strip(","), memory=MEMORY)
    vm.boot()
    peer.expect_ping(VM.address)
    echoes(vm, VM.address, peer.namespace, lab.directory)
    lines = Lines(peer, vm, VM.address)
    with Stream(peer.namespace, None, VM.address, echo=True, rate=200) as stream:
        for there in "aba" if first == "b" else "bab":
            lines.vm, told = lab.migrate(lines.vm, hosts[there])
            lines.more()
            stream.wait(100)
            print(f"to host {there}: downtime {told['downtime']} ms by QEMU, {told['total-time']} ms in all")
    result = stream.result()
    print(f"{result.lost} of {result.sent} echoes lost, {result.duplicates} doubled; gaps {result.gaps}")
    assert result.duplicates == 0
