"""A virtual machine moves between two hosts whose Open vSwitches program Viaduct, while packets come to it.

Both hosts have a wire in their bridge, on one segment, and the peer is a plain machine there. See lab/switched.py.
"""

import pytest

from lab import Lines, Stream, echoes, eventually
from lab.config import Config
from lab.marks import at_night, machines
from lab.switched import address, mac
from lab.topology import vhost

# See test_save.py.
MEMORY = f"{192 * 1024 + 8}K"


def host_with_ovs(lab, name):
    lab.plug(name, mtu=1500)
    config = Config(name).add("wire", name="up0", mode="ovs", driver="af-packet", device="up0", mtu=1500)
    config.add("guest", name="o1", mode="ovs", **vhost("o1"))
    host = lab.host(config)
    ovs = lab.controller(host)
    for port in ("up0", "o1"):
        ovs.add_port(port)
    return host, ovs


@machines
@pytest.mark.parametrize("options", ["packed=on", at_night("")])
def test_a_vm_moves_under_load(lab, options):
    sides = {name: host_with_ovs(lab, name) for name in ("a", "b")}
    peer = lab.server("peer", f"{address(9)}/24")
    peer.namespace.ip("link set up0 mtu 1500")
    lab.segment("peer", "a", "b")
    seat = {"mac": mac(1), "addresses": [f"{address(1)}/24"]}
    vm = lab.vm(sides["a"][0], "o1", options=options, memory=MEMORY, seat=seat)
    vm.boot()
    peer.expect_ping(address(1))
    echoes(vm, address(1), peer.namespace, lab.directory)
    lines = Lines(peer, vm, address(1))
    with Stream(peer.namespace, None, address(1), echo=True, rate=200) as stream:
        for there in ("b", "a"):
            lines.vm, told = lab.migrate(lines.vm, sides[there][0])
            lines.more()
            stream.wait(200)
            print(f"to host {there}: downtime {told['downtime']} ms by QEMU, {told['total-time']} ms in all")
            # Its packets go by flows there, in both directions.
            ovs = sides[there][1]
            for way in (rf"in_port\(o1\).*src={mac(1)}", rf"in_port\(up0\).*dst={mac(1)}"):
                eventually(lambda: ovs.offloaded(way, "0x0800"), f"a flow with {way}")
    result = stream.result()
    print(f"{result.lost} of {result.sent} echoes lost, {result.duplicates} doubled; gaps {result.gaps}")
    assert result.duplicates == 0
