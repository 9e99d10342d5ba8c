"""A VM moves from a host with Open vSwitch (DPDK) to one with Viaduct, and back, while packets come to it.

All are on one segment: the bridge of Open vSwitch and the network of Viaduct have a wire there, and the peer is a plain
machine. The VM has plain virtio-net, with the features that both switches know.
"""

import pytest

from lab import Lines, Stream, echoes
from lab.ovs import COMMON
from lab.topology import SEATS, host_config, vhost

# Open vSwitch polls.
pytestmark = pytest.mark.alone

VM = SEATS["a1"]
PEER = "10.1.1.99"
# See test_save.py.
MEMORY = f"{192 * 1024 + 8}K"


def on_the_segment(name, **guest):
    """A host with the VM, in a network that is attached to the segment."""
    config = host_config(name, {"a1": vhost("a1", **guest)}, mtu=1500)
    config.entry("network", "blue")["wire"] = "up0"
    return config


# With packed rings only to Open vSwitch: DPDK may leave stale descriptors behind when such a VM leaves it.
@pytest.mark.parametrize("first,moves,options", [("b", "aba", ""), ("a", "b", "packed=on")])
def test_a_vm_moves_between_open_vswitch_and_viaduct(lab, first, moves, options):
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
        for there in moves:
            lines.vm, told = lab.migrate(lines.vm, hosts[there])
            lines.more()
            stream.wait(100)
            print(f"to host {there}: downtime {told['downtime']} ms by QEMU, {told['total-time']} ms in all")
    result = stream.result()
    print(f"{result.lost} of {result.sent} echoes lost, {result.duplicates} doubled; gaps {result.gaps}")
    assert result.duplicates == 0
