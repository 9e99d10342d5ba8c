#!/usr/bin/env python3
"""How soon a host that starts has all routes of many others, by a route reflector.

    VIADUCT_BIN=target/release scripts/as-root bench/fabric.py [HOSTS [GUESTS [frr | gobgp]]]

The other hosts are this program: so many sessions with the reflector, each of which announces the VPN-IPv4 routes of so
many guests in full UPDATE messages. When each of them has got the routes of all others, a daemon starts. Its time is
from the start of the process to the moment at which `viaduct status` counts all routes in the tables.
"""

import selectors
import socket
import sys
import tempfile
import threading
import time
from ipaddress import ip_address
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/lib"))

import learned
from lab import Lab, eventually
from lab.bgp import AS, Frr, Gobgp
from lab.topology import host_config, tap

HERE, REFLECTOR, NET = "10.200.0.1", "10.200.0.9", "10.200.0.0/16"
# The addresses of other hosts begin there.
OTHERS = ip_address("10.200.1.0")
# No byte came for so long: all routes were sent.
QUIET = 5.0


class DynamicFrr(Frr):
    """FRR's bgpd, which takes clients from the whole network. By default it lets a new one wait for 50 ms a client
    that it has, up to ten seconds."""

    def text(self):
        text = super().text().replace(" no bgp default ipv4-unicast", f""" no bgp default ipv4-unicast
 neighbor hosts peer-group
 neighbor hosts remote-as {AS}
 coalesce-time 100
 bgp listen limit 5000
 bgp listen range {NET} peer-group hosts""")
        return text.replace(" exit-address-family", "  neighbor hosts activate\n"
                            "  neighbor hosts route-reflector-client\n exit-address-family")


class DynamicGobgp(Gobgp):
    """A gobgpd that takes clients from the whole network."""

    def text(self):
        families = "".join(
            f'[[peer-groups.afi-safis]]\n[peer-groups.afi-safis.config]\nafi-safi-name = "{family}"\n'
            for family in self.families
        )
        return (
            f'[global.config]\nas = {AS}\nrouter-id = "{self.address}"\nlocal-address-list = ["{self.address}"]\n'
            f'[[peer-groups]]\n[peer-groups.config]\npeer-group-name = "hosts"\npeer-as = {AS}\n'
            "[peer-groups.route-reflector.config]\nroute-reflector-client = true\n"
            f'route-reflector-cluster-id = "{self.address}"\n{families}'
            f'[[dynamic-neighbors]]\n[dynamic-neighbors.config]\nprefix = "{NET}"\npeer-group = "hosts"\n'
        )


def reflector(lab, kind):
    namespace = lab.plug("rr", "ctl0", fabric="control")
    namespace.ip("addr add", f"{REFLECTOR}/16", "dev ctl0")
    directory = lab.directory / "rr"
    made = {
        "frr": lambda: DynamicFrr(namespace, directory, REFLECTOR, []),
        "gobgp": lambda: DynamicGobgp(namespace, directory, REFLECTOR, None),
    }[kind]()
    lab.cleanup.callback(made.stop)
    return made.start()


class Others:
    """All other hosts: their sessions, which take what comes and answer nothing but with KEEPALIVE."""

    def __init__(self, namespace, count, guests):
        self.sockets, self.heard, self.bytes = [], time.monotonic(), 0
        self.ends = False
        with namespace.entered():
            for number in range(count):
                address = str(OTHERS + number)
                one = socket.create_connection((REFLECTOR, 179), source_address=(address, 0))
                one.sendall(learned.opening(address) + learned.message(learned.KEEPALIVE))
                self.sockets.append(one)
        for number, one in enumerate(self.sockets):
            one.sendall(learned.announcement(number, range(number * guests, (number + 1) * guests)))
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()

    def listen(self):
        selector = selectors.DefaultSelector()
        for one in self.sockets:
            selector.register(one, selectors.EVENT_READ)
        alive = time.monotonic()
        while not self.ends:
            for key, _ in selector.select(0.5):
                self.bytes += len(key.fileobj.recv(1 << 18))
                self.heard = time.monotonic()
            if time.monotonic() > alive + 30:
                alive = time.monotonic()
                for one in self.sockets:
                    one.sendall(learned.message(learned.KEEPALIVE))

    def stop(self):
        self.ends = True
        self.thread.join()
        for one in self.sockets:
            one.close()


def main(count, guests, kind):
    # In memory, as a run-dir is.
    tempfile.tempdir = "/dev/shm"
    with Lab() as lab:
        reflector(lab, kind)
        namespace = lab.plug("others", "ctl0", fabric="control")
        batch = "".join(f"addr add {OTHERS + number}/16 dev ctl0\n" for number in range(count))
        namespace.run(["ip", "-batch", "-"], stdin=batch)
        begun = time.monotonic()
        others = Others(namespace, count, guests)
        lab.cleanup.callback(others.stop)
        eventually(lambda: time.monotonic() > others.heard + QUIET, "the others' routes", 3600, 0.2)
        took = others.heard - begun
        print(f"{kind} had {count} hosts with {guests} guests each complete after {took:.1f} s, and sent them"
              f" {others.bytes / 1e6:.0f} MB", flush=True)
        lab.plug("a")
        lab.plug("a", "ctl0", fabric="control").ip("addr add", f"{HERE}/16", "dev ctl0")
        config = host_config("a", {"a1": tap("a1")})
        del config.entry("guest", "a1")["label"]
        del config.entry("network", "blue")["vni"]
        config.bgp["as"] = AS
        config.add("bgp.peer", address=REFLECTOR)
        begun = time.monotonic()
        host = lab.host(config)
        ready = time.monotonic() - begun
        eventually(lambda: host.viaduct("status")["routes"] >= count * guests + 1, "all routes", 600, 0.02)
        took = time.monotonic() - begun
        print(f"a host that starts has {count * guests} routes after {took:.2f} s; it was ready after {ready:.2f} s")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(*[int(word) for word in given[:2]], *[500, 50][len(given[:2]):], (given[2:] or ["frr"])[0])
