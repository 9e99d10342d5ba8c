"""Many flows of an Open vSwitch that come, change and go, and an Open vSwitch that is killed meanwhile. See
lab/switched.py."""

import os
import random
import struct
import threading
import time

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from lab import Account, Failed, RawPort, Stream, daemon_pid, eventually, expect_back
from lab.marks import switches
from lab.switched import address, mac, offloaded, pass_by, switched

# By hand: VIADUCT_OVS_FLOWS=100000, VIADUCT_OVS_KILLS=100, and pytest's --timeout.
FLOWS = int(os.environ.get("VIADUCT_OVS_FLOWS", 5_000))
KILLS = int(os.environ.get("VIADUCT_OVS_KILLS", 4))
FIRST_PORT, PORTS = 1024, 50_000
# A flow for each pair of ports: the action needs both.
EACH = "multipath(symmetric_l3l4+udp,50,modulo_n,1,0,NXM_NX_REG0[0..15])"
BATCH = 100
# Offset of UDP's ports.
AT_PORTS = 34


def datagrams(count):
    """Makes frames of so many flows from o1 to o2, with other ports than those of streams."""
    base = Ether(src=mac(1), dst=mac(2)) / IP(src=address(1), dst=address(2)) / UDP(chksum=0) / Raw(bytes(18))
    base = bytes(base)
    for number in range(count):
        ports = struct.pack("!HH", FIRST_PORT + number % PORTS, 20_000 + number // PORTS)
        yield base[:AT_PORTS] + ports + base[AT_PORTS + 4 :]


def send_slowly(raw, frames):
    """Sends frames in batches that the guest's device has room for."""
    for first in range(0, len(frames), BATCH):
        raw.send(*frames[first : first + BATCH])
        time.sleep(0.002)


def rule(ovs, *outputs):
    ovs.ofctl("add-flow", f"priority=10,in_port=o1,udp,nw_src={address(1)},actions={EACH},{','.join(outputs)}")


def flows_of(host):
    """Counts the flows that the daemon has, of all ports."""
    return sum(port["flows"] for port in host.viaduct("ovs", "ports"))


def all_arrive(ovs, raw, frames, guest):
    """Sends the frames, until each arrives at a guest in one go; the kernel loses some where it is busy. Fails if OVS
    sees more than a few."""
    count = lambda: guest.namespace.counter(guest.device, "rx_packets")

    def pass_by():
        before, seen = count(), ovs.received()
        send_slowly(raw, frames)
        try:
            eventually(lambda: count() - before >= len(frames), "each datagram", 2 + len(frames) / 50_000)
        except Failed:
            return False
        return ovs.received() - seen < len(frames) / 100

    eventually(pass_by, f"each datagram arrives at {guest.name}, past OVS")


def installed(host, raw, frames):
    """Sends the frames until there is a flow for each; returns how long that took."""
    began = time.monotonic()

    def all_there():
        send_slowly(raw, frames)
        return flows_of(host) >= len(frames)

    eventually(all_there, f"{len(frames)} flows", 300 + len(frames) / 1000)
    return time.monotonic() - began


# A busy machine may lose packets of the stream.
@pytest.mark.alone
def test_many_flows_with_churn(lab):
    """Flows are made for each connection, changed all at once, and taken away. A stream beside them loses nothing."""
    host, ovs, (one, two, three) = switched(lab, 3)
    # A busy machine changes flows for longer than the ten seconds after which OVS forgets those without packets.
    ovs.vsctl("set", "Open_vSwitch", ".", f"other_config:flow-limit={4 * FLOWS}", "other_config:max-idle=600000")
    ovs.appctl("upcall/set-flow-limit", str(4 * FLOWS))
    one.expect_ping(address(2))
    two.expect_ping(address(1))
    frames = list(datagrams(FLOWS))
    rule(ovs, "output:o2")
    stream = Stream(two.namespace, one.namespace, address(1), rate=200)
    with RawPort(one.namespace, one.device) as raw, stream:
        took = installed(host, raw, frames)
        print(f"{FLOWS} flows after {took:.1f} s: {FLOWS / took:.0f} a second")
        all_arrive(ovs, raw, frames, two)
        # Changed: Viaduct has the new ones, and none of the old.
        began = time.monotonic()
        rule(ovs, "output:o3")
        count = lambda: sum(flow["actions"] == "output o3" for flow in host.viaduct("ovs", "flows", "--port", "o1"))
        eventually(lambda: count() >= FLOWS, "the flows have changed", 300 + FLOWS / 1000, interval=0.5)
        print(f"changed after {time.monotonic() - began:.1f} s")
        before = two.namespace.counter(two.device, "rx_packets")
        all_arrive(ovs, raw, frames, three)
        assert two.namespace.counter(two.device, "rx_packets") - before < FLOWS / 100, "what the guests themselves say"
        began = time.monotonic()
        ovs.appctl("revalidator/purge")
        eventually(lambda: flows_of(host) < FLOWS / 100, "flows are gone")
        print(f"gone after {time.monotonic() - began:.1f} s")
    result = stream.result()
    assert (result.lost, result.duplicates) == (0, 0), result


@switches
def test_open_vswitch_is_killed_in_the_middle_of_everything(lab):
    """Where OVS is killed while it makes and changes flows, all that Viaduct has taken for it is given back."""
    seed = int(os.environ.get("VIADUCT_SEED", random.randrange(1 << 32)))
    print(f"VIADUCT_SEED={seed}")
    chance = random.Random(seed)
    host, ovs, (one, two) = switched(lab)
    rule(ovs, "output:o2")
    one.expect_ping(address(2))
    frames = list(datagrams(5000))
    before = Account.of(daemon_pid(host))
    ending = threading.Event()

    def bustle():
        with RawPort(one.namespace, one.device) as raw:
            while not ending.is_set():
                send_slowly(raw, chance.sample(frames, 500))

    sender = threading.Thread(target=bustle)
    sender.start()
    try:
        for _ in range(KILLS):
            # At any instant: while the driver connects, ports open, flows come.
            time.sleep(chance.uniform(0, 1.5))
            ovs.kill()
            ovs.start_switch(*ovs.LOG)
            if chance.random() < 0.5:
                try:
                    rule(ovs, "output:o2", chance.choice(["output:in_port", "output:o2"]))
                except Failed:
                    pass  # the bridge is not there yet
    finally:
        ending.set()
        sender.join()
    ovs.vsctl("show")
    eventually(lambda: one.reaches(address(2)), "packets by the last one")
    eventually(lambda: all(port["stale"] == 0 for port in host.viaduct("ovs", "ports")), "old flows are swept")
    one.expect_ping(address(2))
    offloaded(ovs, rf"src={mac(1)},dst={mac(2)}", "0x0800")
    pass_by(ovs, one, address(2))
    ovs.appctl("exit", "--cleanup")
    eventually(lambda: flows_of(host) == 0, "no flows")
    ovs.switch.stop()
    ovs.programs.pop()
    expect_back(daemon_pid(host), before)
    ovs.restart()
