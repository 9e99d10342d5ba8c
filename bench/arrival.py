#!/usr/bin/env python3
"""How soon other hosts reach a guest that comes up, by a route reflector.

    VIADUCT_BIN=target/release scripts/as-root bench/arrival.py [TIMES [frr | gobgp]]

Hosts a and b have sessions with the reflector alone. A guest of a sends a numbered datagram each millisecond to the
address of a guest of b, which is down. Then that guest's link comes up. Times are from then to the sending of the first
datagram that the guest answers: b has noticed the link and announced the guest, the reflector has passed that on, and a
has put it into its tables.
"""

import socket
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/lib"))

from lab import Lab, eventually
from lab.bgp import AS, Frr, Gobgp
from lab.topology import SEATS, host_config, tap
from lab.traffic import EchoServer

PORT, EVERY = 7000, 0.001
CONTROL = {"a": "198.51.100.1", "b": "198.51.100.2", "rr": "198.51.100.9"}
B1 = SEATS["b1"]


class Reflector(Gobgp):
    """A gobgpd that reflects."""

    def __init__(self, namespace, directory, address, clients):
        super().__init__(namespace, directory, address, None)
        self.clients = clients

    def text(self):
        lines = [f'[global.config]\nas = {AS}\nrouter-id = "{self.address}"\nlocal-address-list = ["{self.address}"]']
        for client in self.clients:
            lines.append(f'[[neighbors]]\n[neighbors.config]\nneighbor-address = "{client}"\npeer-as = {AS}')
            lines.append("[neighbors.route-reflector.config]\nroute-reflector-client = true")
            lines.append(f'route-reflector-cluster-id = "{self.address}"')
            lines += [f'[[neighbors.afi-safis]]\n[neighbors.afi-safis.config]\nafi-safi-name = "{family}"'
                      for family in self.families]
        return "\n".join(lines) + "\n"


REFLECTORS = {"frr": Frr, "gobgp": Reflector}


def start(lab, name, guest):
    """Starts a host with one guest, and plugs the host's kernel into the network of the sessions."""
    lab.plug(name)
    lab.plug(name, "ctl0", fabric="control").ip("addr add", f"{CONTROL[name]}/24", "dev ctl0")
    config = host_config(name, {guest: tap(guest)})
    del config.entry("guest", guest)["label"]
    config.bgp["as"] = AS
    config.add("bgp.peer", address=CONTROL["rr"])
    host = lab.host(config)
    return host, lab.container(host, guest)


def arrive(source, guest):
    """Has the guest's link come up. Returns milliseconds until it answers."""
    with source.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect((B1.address, PORT))
        sender.setblocking(False)
        sent = []
        begun = time.monotonic()
        guest.namespace.ip("link set", guest.device, "up")
        while True:
            sent.append(time.monotonic())
            sender.send(str(len(sent) - 1).encode())
            while time.monotonic() < sent[-1] + EVERY:
                try:
                    return (sent[int(sender.recv(64))] - begun) * 1000
                # Not there yet, or refused by a router on the way.
                except OSError:
                    time.sleep(EVERY / 10)


def main(times, reflector):
    # In memory, as a run-dir is.
    tempfile.tempdir = "/dev/shm"
    took = []
    with Lab() as lab:
        rr = lab.plug("rr", "ctl0", fabric="control")
        rr.ip("addr add", f"{CONTROL['rr']}/24", "dev ctl0")
        reflects = REFLECTORS[reflector](rr, lab.directory / "rr", CONTROL["rr"], [CONTROL["a"], CONTROL["b"]])
        lab.cleanup.callback(reflects.stop)
        reflects.start()
        a, a1 = start(lab, "a", "a1")
        _, b1 = start(lab, "b", "b1")
        a1.expect_ping(B1.address)
        # Only what other hosts do is measured, not what the guest asks for first.
        b1.namespace.sysctl(f"net.ipv4.neigh.{b1.device}.base_reachable_time_ms", 3_600_000)
        has_route = lambda: any(route["prefix"] == f"{B1.address}/32" for route in a.viaduct("rt", "list"))
        with EchoServer(b1, PORT):
            for _ in range(times):
                b1.namespace.ip("link set", b1.device, "down")
                eventually(lambda: not has_route(), "the withdrawal")
                took.append(arrive(a1, b1))
    took.sort()
    print(f"{times} times a guest came up, reflected by {reflector}: other hosts reach it after"
          f" {took[len(took) // 2]:.1f} ms (p50), {took[0]:.1f} to {took[-1]:.1f} ms")


if __name__ == "__main__":
    main(int((sys.argv[1:] or [20])[0]), (sys.argv[2:] or ["frr"])[0])
