"""Everything hostile at once, for SOAK_SECONDS: drivers, verbs programs, the wire, clients of the API; and a restart
in the midst of it. It ends with a daemon that has what it had at first."""

import os
import random
import struct
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from test_hostile_verbs import Program, Refused, has_everything
from test_hostile_wire import TUNNELS, UNDERLAY, WIRE_MAC

from lab import PATIENCE, Account, Driver, Failed, RawPort, Stream, daemon_pid, eventually, expect_back, spoil
from lab.driver import CSUM, HOST_TSO4, INDIRECT, MRG_RXBUF, NEXT, PACKED, VERSION_1, WRITE
from lab.topology import SEATS, host_config, tap, tunnel_routes, verbs, vhost

pytestmark = [pytest.mark.alone, pytest.mark.nightly]

SECONDS = float(os.environ.get("SOAK_SECONDS", 20))
A1, A2, B1 = (SEATS[name] for name in ("a1", "a2", "b1"))


class Attack:
    """Something that a thread does again and again. Errors on its own side do not matter."""

    def __init__(self, name, once):
        self.name = name
        self.once = once
        self.done = 0
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self):
        while not self.ending.is_set():
            try:
                self.once()
                self.done += 1
            except (Failed, Refused, OSError, TimeoutError, ValueError):
                # Refused, hung up on, or the daemon restarts.
                time.sleep(0.05)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        self.thread.join(2 * PATIENCE)
        if self.thread.is_alive():
            raise Failed(f"{self.name} does not end: something waits for ever")


def scribble(driver, ring, chance):
    """Writes descriptors and available entries of any kind, some of them right."""
    for index in range(ring.size):
        address = chance.choice(
            [driver.buffers, driver.buffers + 4096 * index % driver.length, 0, 1 << 62, driver.length - 8]
        )
        flags = chance.choice([0, NEXT, WRITE, NEXT | WRITE, 4, 7, 0xFFFF])
        ring.descriptor(
            index, address, chance.choice([0, 14, 64, 2048, 1 << 31]), flags, chance.randrange(2 * ring.size)
        )
        ring.head(index, chance.choice([index, 0, ring.size, 0xFFFF]))
    ring.set_available(ring.next + chance.choice([1, ring.size, ring.size + 1, 0x8000, 0xFFFF]))


def drive(host, seat, chance):
    """Lives the life of a VMM: connects, its driver scribbles, its descriptors are spoilt, it goes without a word."""
    features = VERSION_1 | MRG_RXBUF | chance.choice([0, INDIRECT, CSUM | HOST_TSO4, PACKED])
    size = chance.choice([1, 2, 4, 256, 1024])
    with Driver(host.socket(seat), features=features, size=size) as driver:
        if chance.random() < 0.3:
            for ring in driver.rings:
                spoil(ring.call)
                spoil(ring.err)
        for _ in range(chance.randrange(1, 6)):
            for ring in driver.rings:
                scribble(driver, ring, chance)
        if chance.random() < 0.3:
            os.eventfd_write(driver.transmit.kick, 1)
            driver.ask(11, struct.pack("<II", 1, 0))


def program(device, chance):
    """Lives the life of a program: makes what it may, spoils what it got, goes."""
    with Program(device) as one:
        has_everything(one)
        for _ in range(chance.randrange(20)):
            create_cq = {"create_cq": {"entries": 64, "channel": None, "timestamps": False}}
            one.ask(chance.choice(["create_channel", "alloc_pd", create_cq]))
        for descriptor in one.descriptors:
            if "eventfd" in os.readlink(f"/proc/self/fd/{descriptor}"):
                spoil(descriptor)
            elif chance.random() < 0.2:
                try:
                    os.write(descriptor, os.urandom(8))
                except OSError:
                    pass


def flood(host, port, chance):
    """Sends tunnel packets of anybody to anybody, cut and garbled."""
    for _ in range(50):
        inner = IP(
            src=f"198.18.{chance.randrange(256)}.{chance.randrange(256)}", dst=chance.choice([A1, A2, B1]).address
        )
        outer = IP(src=chance.choice([UNDERLAY["b"], "192.0.2.66"]), dst=UNDERLAY["a"])
        whole = bytearray(
            bytes(Ether(src=WIRE_MAC, dst=host.mac) / outer / chance.choice(list(TUNNELS.values()))(inner / UDP()))
        )
        if chance.random() < 0.5:
            whole[chance.randrange(14, len(whole))] ^= 1 << chance.randrange(8)
        port.send(bytes(whole[: chance.randrange(14, len(whole) + 1)]))


def change(host, chance):
    """Does what a client of the API does: routes and rules come and go, questions are asked."""
    prefix = f"203.0.113.{chance.randrange(256)}/32"
    host.call("rt", "add", "--network", "blue", prefix, "--to", chance.choice(["drop", "guest:a1"]), check=False)
    host.call(chance.choice(["status", "flow", "stats", "dropstats", "nh"]))
    host.call("rdma", "list")
    host.call("rt", "del", "--network", "blue", prefix, check=False)


@contextmanager
def under_attack(moves):
    """Runs all of them at once while the block runs; yields them."""
    with ExitStack() as stack:
        yield [stack.enter_context(Attack(name, once)) for name, once in moves.items()]


def go_on(attacks, seconds):
    """Waits that long, and until each of them has done something."""
    time.sleep(seconds)
    before = [attack.done for attack in attacks]
    for attack, done in zip(attacks, before):
        eventually(lambda: attack.done > done, f"another round of {attack.name}")


@pytest.mark.timeout(SECONDS + 900)
def test_soak(lab):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    lab.plug("a")
    guests = {"a1": tap("a1"), "a2": tap("a2"), "b1": vhost("b1"), "b2": vhost("b2"), "b3": verbs()}
    config = tunnel_routes(host_config("a", guests), "mpls-over-udp")
    remote = {"tunnel": "mpls-over-udp", "remote": UNDERLAY["b"], "label": 999}
    host = lab.host(config.add("route", network="blue", prefix="198.18.0.0/16", to=[remote]))
    host.mac = lab.namespace("a").run(["cat", "/sys/class/net/up0/address"]).stdout.strip()
    a1, a2, device = lab.container(host, "a1"), lab.container(host, "a2"), lab.verbs(host, "b3")
    chances = [random.Random(f"{seed} {number}") for number in range(5)]

    def restart():
        host.stop()
        host.start()

    with RawPort(lab.plug("evil"), "up0") as port:
        moves = {
            "driver b1": lambda: drive(host, "b1", chances[0]),
            "driver b2": lambda: drive(host, "b2", chances[1]),
            "program": lambda: program(device, chances[2]),
            "wire": lambda: flood(host, port, chances[3]),
            "API": lambda: change(host, chances[4]),
        }
        with under_attack(moves) as attacks:
            go_on(attacks, SECONDS / 4)
            # In order, while all of it goes on.
            restart()
            go_on(attacks, 0)
        restart()
        before = Account.of(daemon_pid(host))
        with Stream(a1.namespace, a2.namespace, A2.address, rate=500) as stream:
            with under_attack(moves) as attacks:
                go_on(attacks, SECONDS / 2)
    print(", ".join(f"{attack.name}: {attack.done}" for attack in attacks))
    outcome = stream.result()
    # Attackers take CPU from those that measure: the kernels lose some packets.
    assert outcome.lost <= outcome.sent / 100, f"{outcome.lost} of {outcome.sent} packets of others"
    device.expect_free()
    expect_back(daemon_pid(host), before)
