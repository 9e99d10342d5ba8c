#!/usr/bin/env python3
"""How fast routes that a BGP peer sends come into force, and what memory they cost the daemon.

    VIADUCT_BIN=target/release scripts/as-root bench/learned.py [ROUTES [HOSTS [LABELS]]]

The peer is this program, a route reflector for so many hosts, each of which gives its routes so many labels: one for
a network, as Viaduct does, or one for a guest, as others do. It replays full UPDATE messages of VPN-IPv4 routes as fast
as the daemon takes them, and then withdraws all. Times are from the first message to the moment at which `viaduct
status` counts all routes, or none, in the tables.
"""

import socket
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/lib"))

from lab import Lab, eventually
from lab.bgp import AS
from lab.topology import host_config, tap

HERE, THERE = "198.51.100.1", "198.51.100.9"
OPEN, UPDATE, KEEPALIVE = 1, 2, 4
VPNV4 = struct.pack("!HB", 1, 128)
# Bytes of a message, and of one route in it: length, label, RD, IPv4 address.
MESSAGE, ROUTE = 4096, 16


def message(kind, body=b""):
    return b"\xff" * 16 + struct.pack("!HB", 19 + len(body), kind) + body


def attribute(flags, kind, value):
    return struct.pack("!BBH", flags | 0x10, kind, len(value)) + value


def opening(speaker=THERE):
    capabilities = struct.pack("!BBHBB", 1, 4, 1, 0, 128) + struct.pack("!BBI", 65, 4, AS)
    options = struct.pack("!BB", 2, len(capabilities)) + capabilities
    return message(OPEN, struct.pack("!BHH", 4, AS, 180) + socket.inet_aton(speaker) + bytes([len(options)]) + options)


def update(*attributes):
    path = b"".join(attributes)
    return message(UPDATE, struct.pack("!HH", 0, len(path)) + path)


def route(number, labels=1):
    rd, label = struct.pack("!HHI", 0, AS, 1), (100_000 + number % labels) << 4 | 1
    return bytes([24 + 64 + 32]) + label.to_bytes(3, "big") + rd + struct.pack("!I", (11 << 24) + number)


# ORIGIN, AS_PATH, LOCAL_PREF, a target, MPLS over UDP.
COMMON = b"".join((
    attribute(0x40, 1, b"\0"),
    attribute(0x40, 2, b""),
    attribute(0x40, 5, struct.pack("!I", 100)),
    attribute(0xC0, 16, struct.pack("!BBHI", 0, 2, AS, 1) + struct.pack("!BBIH", 3, 12, 0, 13)),
))
# Routes in a message.
MOST = (MESSAGE - 64 - len(COMMON)) // ROUTE


def announcement(host, numbers, labels=1):
    """Makes the message that announces routes of one host."""
    hop = bytes(8) + struct.pack("!I", (10 << 24) + (128 << 16) + host)
    routes = b"".join(route(number, labels) for number in numbers)
    return update(COMMON, attribute(0x80, 14, VPNV4 + bytes([len(hop)]) + hop + b"\0" + routes))


def announcements(count, hosts, labels):
    """Makes the messages that announce so many routes, each with those of one host."""
    for at, first in enumerate(range(0, count, MOST)):
        yield announcement(at % hosts, range(first, min(first + MOST, count)), labels)


def withdrawals(count):
    most = (MESSAGE - 64) // ROUTE
    for first in range(0, count, most):
        routes = b"".join(map(route, range(first, min(first + most, count))))
        yield update(attribute(0x80, 15, VPNV4 + routes))


def memory(host):
    """Returns the daemon's resident memory in bytes."""
    text = Path(f"/proc/{host.viaduct('status')['pid']}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) * 1024


def timed(host, peer, messages, wanted, what):
    """Sends messages, and returns the seconds until so many routes are in the tables."""
    begun = time.monotonic()
    peer.sendall(b"".join(messages))
    sent = time.monotonic() - begun
    eventually(lambda: host.viaduct("status")["routes"] == wanted, f"{wanted} routes", 600, 0.1)
    took = time.monotonic() - begun
    print(f"{what}: {took:.1f} s, the messages were taken after {sent:.1f} s", flush=True)
    return took


def main(count, hosts, labels):
    with Lab() as lab:
        lab.plug("a")
        for name, address in (("a", HERE), ("rr", THERE)):
            lab.plug(name, "ctl0", fabric="control").ip("addr add", f"{address}/24", "dev ctl0")
        config = host_config("a", {"a1": tap("a1")})
        del config.entry("guest", "a1")["label"]
        config.bgp.update({"as": AS, "listen": [HERE]})
        del config.entry("network", "blue")["vni"]
        config.add("bgp.peer", address=THERE, passive=True, max_prefixes=2 * count)
        host = lab.host(config)
        before, empty = host.viaduct("status")["routes"], memory(host)
        messages = list(announcements(count, hosts, labels))
        with lab.namespace("rr").entered():
            peer = socket.create_connection((HERE, 179), source_address=(THERE, 0))
        peer.sendall(opening() + message(KEEPALIVE))
        eventually(lambda: host.viaduct("bgp")["peers"][0]["state"] == "Established", "the session")
        took = timed(host, peer, messages, before + count, f"{count} routes of {hosts} hosts, labels of each: {labels}")
        print(f"{took / count * 1e6:.1f} us and {(memory(host) - empty) / count:.0f} bytes of memory a route")
        timed(host, peer, withdrawals(count), before, "withdrawn")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*given, *(100_000, 500, 1)[len(given):])
