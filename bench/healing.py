#!/usr/bin/env python3
"""How soon flows leave a host that dies, without BGP, and how many packets they lose.

    VIADUCT_BIN=target/release scripts/as-root bench/healing.py [TIMES [MILLISECONDS]]

Host a has a route by hosts b and c, which watch each other by BFD at this interval (`tunnel_bfd`; 0: not at all). A
guest of a sends a numbered datagram each millisecond to a flow that goes by b, and a guest there echoes it. Then the
daemon of b is killed. Times are from the kill to the sending of the first datagram from which on c answers.
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
from lab.topology import ANYCAST, anycast_hosts, remotes
from lab.traffic import EchoServer

PORT, EVERY = 7000, 0.001
# How long datagrams are sent after the kill, in seconds: without BFD they are asked for three times by ARP.
AFTER = 1.0
AFTER_WITHOUT = 15.0


def flow_by(guest, host, name):
    """Returns a socket of a guest whose flow goes to that host's guest."""
    given = lambda: next(row["tx_packets"] for row in host.viaduct("vif") if row["name"] == name)
    for port in range(20000, 20100):
        one = guest.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind(("", port))
        one.connect((ANYCAST, PORT))
        one.settimeout(1)
        before = given()
        one.send(b"0")
        try:
            one.recv(64)
        except OSError:
            pass
        if given() > before:
            return one
        one.close()
    raise SystemExit("no flow goes by host b")


def heal(one, daemon, after):
    """Kills a daemon under a flow. Returns milliseconds until it heals, and the datagrams lost."""
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
            os.kill(daemon.process.pid, signal.SIGKILL)
        while time.monotonic() < sent[number] + EVERY:
            try:
                answered.add(int(one.recv(64)))
            except BlockingIOError:
                time.sleep(EVERY / 10)
    lost = [number for number in sent if number not in answered and sent[number] < killed + after - 0.2]
    if not lost:
        return 0.0, 0
    return (sent[max(lost) + 1] - killed) * 1000, len(lost)


def main(times, interval):
    # In memory, as a run-dir is.
    tempfile.tempdir = "/dev/shm"
    healed, lost = [], 0
    with Lab() as lab:
        keys = {"tunnel_bfd": interval} if interval else {}
        hosts, guests = anycast_hosts(lab, **keys)
        up = lambda name: (remotes(hosts["a"])[name].get("bfd") or {}).get("state") == "Up"
        with EchoServer(guests["b"], PORT), EchoServer(guests["c"], PORT):
            for _ in range(times):
                if interval:
                    eventually(lambda: up("b") and up("c"), "both sessions")
                one = flow_by(guests["a"], hosts["b"], "anyb")
                took, missing = heal(one, hosts["b"].daemon, AFTER if interval else AFTER_WITHOUT)
                one.close()
                healed.append(took)
                lost += missing
                hosts["b"].kill()
                hosts["b"].start()
    healed.sort()
    p50 = healed[len(healed) // 2]
    print(f"{times} times a host killed, BFD every {interval} ms: flows heal after {p50:.1f} ms (p50),")
    print(f"{healed[0]:.1f} to {healed[-1]:.1f} ms; {lost / times:.1f} datagrams of 1000 a second lost on average")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*given, *(20, 10)[len(given):])
