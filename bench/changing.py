#!/usr/bin/env python3
"""How many packets are lost while a BGP peer changes routes without pause.

    VIADUCT_BIN=target/release scripts/as-root bench/changing.py [CHANGES A SECOND [SECONDS]]

Two containers send each other numbered UDP packets, and one of them to a VM's ring, served by testpmd, which returns
them. Meanwhile the peer announces routes of the containers' network, as many as it changes in two seconds, by one host
and then by another, and so on. The same packets without changes are the control.
"""

import socket
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/lib"))

import learned
from lab import Lab, Stream, eventually
from lab.bgp import AS
from lab.topology import SEATS, host_config, tap, vhost

A1, A2, A3 = SEATS["a1"], SEATS["a2"], SEATS["b1"]
# Messages are sent so often a second.
TIMES = 20


def streams(guests):
    a1, a2 = guests
    return [
        Stream(a1.namespace, a2.namespace, A2.address, rate=5000),
        Stream(a2.namespace, a1.namespace, A1.address, rate=5000),
        Stream(a1.namespace, a1.namespace, A3.address, echo=True, rate=1000),
    ]


def change(peer, rate, seconds):
    """Changes routes for so long. Returns how many in a second."""
    each = rate // TIMES
    bursts = [
        b"".join(learned.announcement(host, range(at, at + each)[of:of + learned.MOST])
                 for of in range(0, each, learned.MOST))
        for host in (1, 2) for at in range(0, 2 * rate, each)
    ]
    begun, sent = time.monotonic(), 0
    while time.monotonic() < begun + seconds:
        peer.sendall(bursts[sent % len(bursts)])
        sent += 1
        time.sleep(max(0, begun + sent / TIMES - time.monotonic()))
    return sent * each / (time.monotonic() - begun)


def lost(guests, meanwhile):
    """Returns what is lost of each stream, and how many packets were sent."""
    first, second, third = streams(guests)
    with first, second, third:
        meanwhile()
    results = [stream.result() for stream in (first, second, third)]
    return [result.lost for result in results], sum(result.sent for result in results)


def main(rate, seconds):
    # In memory, as a run-dir is.
    tempfile.tempdir = "/dev/shm"
    with Lab() as lab:
        lab.plug("a")
        for name, address in (("a", learned.HERE), ("rr", learned.THERE)):
            lab.plug(name, "ctl0", fabric="control").ip("addr add", f"{address}/24", "dev ctl0")
        config = host_config("a", {"a1": tap("a1"), "a2": tap("a2"), "b1": vhost("b1")})
        for name in ("a1", "a2", "b1"):
            del config.entry("guest", name)["label"]
        config.bgp.update({"as": AS, "listen": [learned.HERE]})
        del config.entry("network", "blue")["vni"]
        config.add("bgp.peer", address=learned.THERE, passive=True)
        host = lab.host(config)
        guests = [lab.container(host, name) for name in ("a1", "a2")]
        lab.testpmd(host, "b1", mode="5tswap")
        guests[0].namespace.ip("neigh replace", A3.address, "lladdr", A3.mac, "dev", guests[0].device)
        with lab.namespace("rr").entered():
            peer = socket.create_connection((learned.HERE, 179), source_address=(learned.THERE, 0))
        peer.sendall(learned.opening() + learned.message(learned.KEEPALIVE))
        eventually(lambda: host.viaduct("bgp")["peers"][0]["state"] == "Established", "the session")
        missing, sent = lost(guests, lambda: time.sleep(seconds))
        print(f"without changes: lost of the three streams {missing}, of {sent} packets", flush=True)
        rates = []
        missing, sent = lost(guests, lambda: rates.append(change(peer, rate, seconds)))
        eventually(lambda: host.viaduct("status")["routes"] >= 2 * rate, "the routes")
        print(f"with {rates[0]:.0f} changes a second for {seconds} s: lost {missing}, of {sent} packets")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*given, *(10_000, 60)[len(given):])
