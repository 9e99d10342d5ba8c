"""Guests with vhost-user devices, and copies of what passes, under an unmodified Open vSwitch. See lab/switched.py."""

import pytest

from lab import eventually
from lab.config import Config
from lab.marks import machines, switches
from lab.switched import WENT_PAST, address, mac, offloaded, pass_by, send, send_past, switched
from lab.topology import tap, vhost


def under_ovs(lab, **guests):
    """Starts a host, and Open vSwitch with these guests in its bridge."""
    config = Config("a")
    for name, keys in guests.items():
        config.add("guest", name=name, mode="ovs", **keys)
    host = lab.host(config)
    ovs = lab.controller(host)
    for name in guests:
        ovs.add_port(name)
    return host, ovs


def stands_still(ovs, passed, count):
    """Fails unless so many more packets pass and Open vSwitch itself receives none, from any port."""
    # Some packets were on their way when the flow came.
    eventually(lambda: ovs.received() == ovs.received(), "packets that pass by", interval=0.5)
    before, start = ovs.received(), passed()
    eventually(lambda: passed() - start >= count, f"{count} packets")
    assert ovs.received() == before


# Both poll.
@pytest.mark.alone
@pytest.mark.parametrize("ring", ["packed_vq=0", "packed_vq=1"])
def test_packets_of_user_space_guests_never_reach_open_vswitch(lab, ring):
    """Of two testpmds, one sends as fast as it can, the other gets it, and OVS's counters stand still."""
    host, ovs = under_ovs(lab, o1=vhost("o1"), o2=vhost("o2"))
    ovs.ofctl("add-flow", "priority=10,in_port=o1,actions=output:o2")
    two = lab.testpmd(host, "o2", mode="rxonly", core=ovs.other_core, ring=ring, mac=mac(2))
    lab.testpmd(host, "o1", mode="txonly", core=ovs.other_core, ring=ring, mac=mac(1), peer=mac(2))
    offloaded(ovs, "in_port.o1", "actions:o2")
    stands_still(ovs, two.received, 200_000)
    counted = lambda: int(ovs.vsctl("get", "Interface", "o1", "statistics:rx_packets").stdout)
    eventually(lambda: counted() >= 200_000, "what OVS tells of the port")
    assert int(ovs.vsctl("get", "Interface", "o1", "statistics:rx_q0_packets").stdout) <= ovs.received()


# Both poll, and a guest waits only for so long.
@pytest.mark.alone
def test_a_user_space_guest_waits_for_open_vswitch(lab):
    """A guest that sends as fast as it can by OVS, which forwards a fraction of that, loses little on the way."""
    host, ovs = under_ovs(lab, o1=vhost("o1"), o2=vhost("o2"))
    ovs.ofctl("add-flow", "priority=10,in_port=o1,udp,actions=ct(commit),output:o2")
    two = lab.testpmd(host, "o2", mode="rxonly", core=ovs.other_core, mac=mac(2))
    lab.testpmd(host, "o1", mode="txonly", core=ovs.other_core, mac=mac(1), peer=mac(2))
    eventually(lambda: two.received() >= 200_000, "packets by OVS")
    lost, passed = host.viaduct("vif", "show", "o1:ovs")["tx_drops"], ovs.received()
    assert lost < passed / 10, f"{lost} packets found no room, {passed} did"


@switches
def test_a_user_space_guest_answers(lab):
    """A container and a testpmd learn each other's MACs by the bridge."""
    host, ovs = under_ovs(lab, o1=tap("o1"), o2=vhost("o2"))
    one = lab.ovs_container(host, "o1", mac(1), f"{address(1)}/24")
    lab.testpmd(host, "o2", core=ovs.other_core, mac=mac(2))
    one.expect_ping(address(2))
    offloaded(ovs, rf"src={mac(2)},dst={mac(1)}", "0x0800")
    pass_by(ovs, one, address(2))


@machines
def test_a_virtual_machine(lab):
    """Large segments of a Linux guest in QEMU are cut on their way to OVS, and not on the way past it."""
    host, ovs = under_ovs(lab, o1=tap("o1"), o2=vhost("o2"))
    one = lab.ovs_container(host, "o1", mac(1), f"{address(1)}/24")
    vm = lab.vm(host, "o2", seat={"mac": mac(2), "addresses": [f"{address(2)}/24"]})
    vm.boot()
    one.expect_ping(address(2))
    offloaded(ovs, rf"src={mac(1)},dst={mac(2)}", "0x0800")
    pass_by(ovs, one, address(2))
    before = ovs.received()
    vm.shell("nc -l -p 5001 > /dev/null &")
    eventually(lambda: f":{5001:04X} " in vm.shell("cat /proc/net/tcp*").stdout, "nc listens")
    send_all = f"import socket; socket.create_connection(('{address(2)}', 5001)).sendall(bytes(20 << 20))"
    one.run(["python3", "-c", send_all])
    assert ovs.received() - before < 1000, "20 MB go past OVS but for the first packets"


@switches
@pytest.mark.parametrize(
    "where,actions",
    [("output-port=@to", "o3,o2"), ("output-vlan=99", "push_vlan.vid=99.*o3.*o2")],
    ids=["span", "rspan"],
)
def test_mirrors_of_open_vswitch(lab, where, actions):
    """A mirror to a port (SPAN) or to a VLAN (RSPAN): copies are outputs of flows, which Viaduct carries out."""
    _, ovs, (one, *_) = switched(lab, 3)
    # Before there are flows: OVS by itself may forget to change those, where two changes come one after the other.
    # The bridge's own port must not be in VLAN 99: OVS offloads no output to that.
    vlans = "set Port br0 tag=1 -- set Port o2 trunks=0 -- set Port o3 trunks=99"
    ports = "--id=@to get Port o3 -- --id=@of get Port o1"
    mirror = f"--id=@m create Mirror name=m select-src-port=@of {where} -- set Bridge br0 mirrors=@m"
    ovs.vsctl(*f"{vlans} -- {ports} -- {mirror}".split())
    originals, copies = (lab.capture(f"o{n}", f"tapo{n}", "udp or vlan") for n in (2, 3))
    with originals, copies:
        one.expect_ping(address(2))
        send(one, 1001)
        offloaded(ovs, rf"src={mac(1)},dst={mac(2)}", "0x0800", f"actions:.*{actions}")
        sent = send_past(ovs, one, 1001)
        for capture in (originals, copies):
            capture.wait_for(WENT_PAST, sent)
    tag = "99" if "vlan" in where else ""
    assert copies.fields(WENT_PAST, "vlan.id") == [[tag]] * sent
    assert originals.fields("vlan", "vlan.id") == []
