"""Shows that something does not come: it would have to come before something else that does."""

import itertools

from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import Ether

from .topology import GATEWAY_MAC, NETWORKS

_numbers = itertools.count(1)


def unwanted(port, seat, wanted):
    """Sends a ping to the gateway by the raw port of a guest, and returns the frames for which `wanted` is true and
    that come there before its answer: all that the daemon had sent there earlier."""
    text = b"marker %d of silence.py" % next(_numbers)
    gateway = NETWORKS[seat.network]["gateways"][0].split("/")[0]
    port.send(Ether(src=seat.mac, dst=GATEWAY_MAC) / IP(src=seat.address, dst=gateway) / ICMP() / text)
    return port.before(lambda frame: text in frame, wanted, "answer of the gateway")
