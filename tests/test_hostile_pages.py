"""Attacks by the pages of a guest's memory, of which its VMM decides when they come and who pays for them. They hurt
nobody else."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from lab import Driver, eventually, unharmed
from lab.driver import HEADER, WRITE
from lab.topology import SEATS, host_config, tap, vhost


A1, B1 = SEATS["a1"], SEATS["b1"]
FRAME = bytes(Ether(src=B1.mac, dst=A1.mac) / IP(src=B1.address, dst=A1.address) / UDP(sport=1, dport=9) / bytes(18))
# To punch so many bytes takes tens of milliseconds, and whoever touches them meanwhile waits.
PUNCHED = 256 << 20
RING = 256
# A quiet machine takes more looks for as many waits, so time counts, seconds.
PATIENCE = 200
# Fills and punches the memory of a file again and again.
PUNCHER = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
file, start, length = map(int, sys.argv[1:])
print("ready", flush=True)
while True:
    assert libc.fallocate(file, 0, start, length) == 0
    assert libc.fallocate(file, 3, start, length) == 0
"""


@pytest.fixture
def host(lab):
    """Starts a host with two guests that exchange traffic, a1 and a2, and a driver's seat, b1."""
    guests = {"a1": tap("a1"), "a2": tap("a2"), "b1": vhost("b1")}
    config = host_config("a", guests, wire=False)
    config.host["guest_memory_mb"] = 1024
    host = lab.host(config)
    host.a1, host.a2 = lab.container(host, "a1"), lab.container(host, "a2")
    return host


class Punched:
    """A VMM that punches the buffers of its guest's driver."""

    def __init__(self, driver):
        arguments = [str(number) for number in (driver.file, driver.buffers, PUNCHED)]
        self.process = subprocess.Popen([sys.executable, "-c", PUNCHER, *arguments], pass_fds=[driver.file],
                                        stdout=subprocess.PIPE)
        self.process.stdout.readline()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def threads(host, name):
    """Returns the folders of the daemon's threads whose names begin so."""
    tasks = Path(f"/proc/{host.viaduct('status')['pid']}/task").iterdir()
    return [task for task in tasks if (task / "comm").read_text().startswith(name)]


def waits_for_page(tasks):
    return any("shmem_fault" in (task / "stack").read_text() for task in tasks)


def is_aside(host, name):
    warnings = host.viaduct("status")["warnings"]
    return any(f'"{name}"' in warning["object"] and "pages of its memory" in warning["message"] for warning in warnings)


def spread(driver, index, count=RING):
    """Returns the place of one of the buffers, which are far from each other."""
    return driver.buffers + PUNCHED // count * index


def send(driver):
    """Offers all buffers to send, if the last ones came back."""
    ring = driver.transmit
    if ring.used_index == ring.next:
        for index in range(RING):
            ring.descriptor(index, spread(driver, index), HEADER + len(FRAME))
        ring.offer(*range(RING))


def receive(driver):
    """Offers all buffers to receive, if most of the last ones came back."""
    ring = driver.receive
    if (ring.next - ring.used_index) & 0xFFFF < RING // 2:
        free = RING - ((ring.next - ring.used_index) & 0xFFFF)
        heads = [(ring.next + number) % RING for number in range(free)]
        for index in heads:
            ring.descriptor(index, spread(driver, index), 2048, WRITE)
        ring.offer(*heads)


def attack(host, act):
    """Goes on until the guest is found out; from then on, no worker waits for its pages."""

    def found():
        act()
        return is_aside(host, "b1")

    eventually(found, "a warning about b1")
    workers, aside = threads(host, "worker"), threads(host, "aside-pages")
    assert workers and aside
    seen, by_workers, looks, began = 0, 0, 0, time.monotonic()
    while looks < 2000 or seen < 5:
        act()
        # Workers are looked at first: if the guest comes back in between, that counts for nobody.
        waits = waits_for_page(workers)
        if is_aside(host, "b1") if waits else False:
            by_workers += waits_for_page(workers)
        seen += waits_for_page(aside)
        looks += 1
        assert looks < 2000 or time.monotonic() < began + PATIENCE, f"nobody waits for pages: {seen} of {looks} looks"
    return by_workers, seen, looks


def test_pages_of_a_sender_are_punched(host):
    """Workers leave the guest to the thread for such, which is seen to wait for its pages."""
    with Driver(host.socket("b1"), buffers=PUNCHED) as driver, unharmed(host, host.a1, host.a2):
        with Punched(driver):
            by_workers, seen, looks = attack(host, lambda: send(driver))
            assert by_workers <= 2, f"workers waited {by_workers} times, the thread {seen} times, of {looks}"
        # What its driver offers is taken all the same.
        ring = driver.transmit
        eventually(lambda: ring.used_index == ring.next, "all that was offered")


def test_pages_of_a_receiver_are_punched(host):
    """The same for what others send to it. Who sends is not taken for the one who punches."""
    with Driver(host.socket("b1"), buffers=PUNCHED) as driver, unharmed(host, host.a1, host.a2):
        with host.a2.namespace.socket(2, 2) as sender:
            host.a2.namespace.ip("neigh replace", B1.address, "lladdr", B1.mac, "dev", host.a2.device)

            def act():
                receive(driver)
                for _ in range(8):
                    sender.sendto(b"x" * 64, (B1.address, 9))

            with Punched(driver):
                by_workers, seen, looks = attack(host, act)
                assert by_workers <= 2, f"workers waited {by_workers} times, the thread {seen} times, of {looks}"


def shared(host):
    """Returns the bytes of files that the daemon has in memory."""
    lines = Path(f"/proc/{host.viaduct('status')['pid']}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssShmem"))


def test_a_sparse_file_larger_than_a_guest_may_be(host):
    """What the VMM has not populated is charged to the daemon once it is touched: up to the limit, and no further."""
    with unharmed(host, host.a1, host.a2):
        before = shared(host)
        with Driver(host.socket("b1"), buffers=8 << 30, start=False) as driver:
            driver.negotiate()
            refused = lambda: next(row for row in host.viaduct("vif") if row["name"] == "b1")["fault"]
            eventually(refused, "the reason for b1")
            assert "guest_memory_mb" in refused(), refused()
        assert shared(host) - before < 16 << 20
