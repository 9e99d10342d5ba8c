#!/usr/bin/env python3
"""How soon flows leave a host that dies, or a path that breaks, without BGP, and how many packets they lose.

    VIADUCT_BIN=target/release scripts/as-root bench/healing.py [TIMES [MILLISECONDS [path]]]

Host a has a route by hosts b and c, which watch each other by BFD at this interval (`tunnel_bfd`; 0: not at all). A
guest of a sends a numbered datagram each millisecond to a flow that goes by b, and a guest there echoes it. Then the
daemon of b is killed. Times are from the kill to the sending of the first datagram from which on c answers.

With `path`, hosts a and b have two wires, and the switch of one of them drops everything, while its links stay up.
Times are from then to the sending of the first datagram from which on b answers by the other one.
"""

import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/lib"))

from lab import Lab, eventually
from lab.topology import ANYCAST, SEATS, anycast_hosts, remotes, two_wires
from lab.traffic import EchoServer

PORT, EVERY = 7000, 0.001
# How long datagrams are sent after the kill, in seconds: without BFD they are asked for three times by ARP.
AFTER = 1.0
AFTER_WITHOUT = 15.0


def flow_by(guest, address, given):
    """Returns a socket of a guest whose flow to an address is counted by `given`."""
    for port in range(20000, 20100):
        one = guest.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind(("", port))
        one.connect((address, PORT))
        one.settimeout(1)
        before = given()
        one.send(b"0")
        try:
            one.recv(64)
        except OSError:
            pass
        # Packets of BFD are counted as well, on a wire.
        if given() > before and all(counts(one, given) for _ in range(5)):
            return one
        one.close()
    raise SystemExit("no flow goes there")


def counts(one, given):
    """Returns whether most of ten datagrams are counted."""
    before = given()
    for _ in range(10):
        one.send(b"0")
        one.recv(64)
    return given() - before >= 9


def heal(one, kill, after):
    """Kills something under a flow. Returns milliseconds until it heals, and the datagrams lost."""
    one.setblocking(False)
    sent, answered, killed = {}, set(), None
    begun = time.monotonic()
    number = 0
    while killed is None or time.monotonic() < killed + after:
        number += 1
        sent[number] = time.monotonic()
        one.send(str(number).encode())
        if killed is None and sent[number] > begun + 0.2:
            killed = time.monotonic()
            kill()
        while time.monotonic() < sent[number] + EVERY:
            try:
                answered.add(int(one.recv(64)))
            except BlockingIOError:
                time.sleep(EVERY / 10)
    lost = [number for number in sent if number not in answered and sent[number] < killed + after - 0.2]
    if not lost:
        return 0.0, 0
    return (sent[max(lost) + 1] - killed) * 1000, len(lost)


def dying_hosts(lab, times, interval):
    """Kills host b again and again."""
    keys = {"tunnel_bfd": interval} if interval else {}
    hosts, guests = anycast_hosts(lab, **keys)
    up = lambda name: (remotes(hosts["a"])[name].get("bfd") or {}).get("state") == "Up"
    given = lambda: next(row["tx_packets"] for row in hosts["b"].viaduct("vif") if row["name"] == "anyb")
    with EchoServer(guests["b"], PORT), EchoServer(guests["c"], PORT):
        for _ in range(times):
            if interval:
                eventually(lambda: up("b") and up("c"), "both sessions")
            one = flow_by(guests["a"], ANYCAST, given)
            kill = lambda: os.kill(hosts["b"].daemon.process.pid, signal.SIGKILL)
            yield heal(one, kill, AFTER if interval else AFTER_WITHOUT)
            one.close()
            hosts["b"].kill()
            hosts["b"].start()


def breaking_paths(lab, times, interval):
    """Breaks one of two paths to host b again and again."""
    hosts, guests = two_wires(lab, tunnel_bfd=interval)
    switch, address = lab.namespace("fabric1"), str(SEATS["b1"].address)
    works = lambda: "paths are down" not in hosts["a"].call("status").stdout
    given = lambda: switch.counter("a-up1", "rx_packets")
    with EchoServer(guests["b1"], PORT):
        for _ in range(times):
            eventually(works, "both paths")
            time.sleep(2)
            one = flow_by(guests["a1"], address, given)
            kill = lambda: switch.ip("link set a-up1 nomaster")
            yield heal(one, kill, AFTER)
            one.close()
            switch.ip("link set a-up1 master br0")


def main(times, interval, what="host"):
    # In memory, as a run-dir is.
    tempfile.tempdir = "/dev/shm"
    with Lab() as lab:
        each = breaking_paths if what == "path" else dying_hosts
        healed, lost = zip(*each(lab, times, interval))
    healed = sorted(healed)
    p50 = healed[len(healed) // 2]
    print(f"{times} times a {what} killed, BFD every {interval} ms: flows heal after {p50:.1f} ms (p50),")
    print(f"{healed[0]:.1f} to {healed[-1]:.1f} ms; {sum(lost) / times:.1f} datagrams of 1000 a second lost on average")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(*map(int, (*given[:2], *("20", "10")[len(given[:2]):])), *given[2:])
