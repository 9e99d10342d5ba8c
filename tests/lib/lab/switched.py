"""Containers on ports that an Open vSwitch programs, and flows of it that a test makes and watches.

Host `a` has containers o1, o2, ... on ports whose mode is "ovs", and Debian's ovs-vswitchd-dpdk.
"""

import re

from .config import Config
from .shell import Failed, eventually
from .topology import tap

# Sends datagrams to a port, of which the first make the flow.
SENDER = """
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range({count}):
    s.sendto(b"x" * {size}, ("{address}", {port}))
    time.sleep({pause})
"""

# Payload bytes of datagrams that go past OVS, and what tshark says of those.
PAST = 99
WENT_PAST = f"udp.length == {PAST + 8}"


def mac(number):
    return f"02:00:00:00:0f:{number:02x}"


def address(number):
    return f"10.9.0.{number}"


def guest_config(count=2, **host):
    config = Config("a", **host)
    for number in range(1, count + 1):
        config.add("guest", name=f"o{number}", mode="ovs", **tap(f"o{number}"))
    return config


def switched(lab, count=2, addresses=True, config=None):
    """Starts a host, an Open vSwitch with the ports in its bridge, and containers."""
    host = lab.host(config or guest_config(count))
    own = lambda n: (f"{address(n)}/24", f"fd09::{n}/64") if addresses else ()
    guests = [lab.ovs_container(host, f"o{n}", mac(n), *own(n)) for n in range(1, count + 1)]
    ovs = lab.controller(host)
    for guest in guests:
        ovs.add_port(guest.name)
    return host, ovs, guests


def send(guest, port, count=6, to=address(2), pause=0.05, size=64):
    guest.run(["python3", "-c", SENDER.format(count=count, address=to, port=port, pause=pause, size=size)])


def send_past(ovs, guest, port, count=20, to=address(2)):
    """Sends datagrams of `PAST` bytes until so many in a row do not reach OVS, which changes flows in the background.
    Returns how many were sent."""
    for attempt in range(1, 61):
        before = ovs.received()
        send(guest, port, count, to, 0.005, PAST)
        seen = ovs.received() - before
        if seen < count / 2:
            return attempt * count
    raise Failed(f"{seen} packets of {count} reached OVS\n{ovs.appctl('dpctl/dump-flows', '-m')}")


def offloaded(ovs, *patterns):
    """Waits for a flow that is offloaded, and returns its line."""
    try:
        return eventually(lambda: ovs.offloaded(*patterns), f"an offloaded flow with {patterns}")[0]
    except Failed as failed:
        raise Failed(f"{failed}\n{ovs.appctl('dpctl/dump-flows', '-m')}\n{ovs.switch.describe(40)}") from None


def pass_by(ovs, one, to, count=50):
    """Fails unless all echoes come back, and OVS does not see their packets any more once it has made all flows."""

    def unseen():
        before = ovs.received()
        received, output = one.ping(to, count, interval=0.01)
        assert received == count, output
        return ovs.received() - before < count / 5

    eventually(unseen, f"echoes from {to} go past OVS")


def only_echoes_by_ovs(ovs, one, to):
    """Fails unless all echoes come back by OVS, which does not see the requests any more once it has made all flows."""

    def seen_once():
        before = ovs.received()
        received, output = one.ping(to, 50, interval=0.01)
        assert received == 50, output
        # More than 50, where an echo was late.
        sent = int(re.search(r"(\d+) packets transmitted", output)[1])
        seen = ovs.received() - before
        assert seen >= 50, f"{seen} packets of {2 * sent} reached OVS"
        return seen < 1.8 * sent

    eventually(seen_once, f"requests to {to} go past OVS")


def udp_flow(ovs, port, actions):
    ovs.ofctl("add-flow", f"priority=10,in_port=o1,udp,tp_dst={port},actions={actions}")
