"""Attacks by what the kernel does within the daemon's calls: many watch an eventfd or a socket. They hurt nobody else."""

import contextlib
import os
import resource
import select
import sys
import time
from pathlib import Path
from socket import AF_INET, SOCK_DGRAM

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from lab import Driver, eventually, unharmed
from lab.topology import SEATS, host_config, tap, vhost


A1, B1, B2 = (SEATS[name] for name in ("a1", "b1", "b2"))
# Epolls, and descriptors in each: so many cost some 20 ms a signal.
WATCHERS = 450
# CPU time that workers may take for a hundred packets, seconds: far less than that.
MOST = 0.5
# Watches its socket as often, without privileges.
PROGRAM = """
import os, resource, select, socket, sys
number = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
os.setgid(1000), os.setuid(1000)
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.bind((sys.argv[1], 9000))
copies = [os.dup(own.fileno()) for _ in range(number)]
epolls = [select.epoll() for _ in range(number)]
for epoll in epolls:
    for copy in copies:
        epoll.register(copy, select.EPOLLIN)
print("ready", flush=True)
while True:
    own.recv(9)
"""


@pytest.fixture
def host(lab):
    """Starts a host with two guests that exchange traffic, a1 and a2, and seats for the attackers, b1 and b2."""
    guests = {"a1": tap("a1"), "a2": tap("a2"), "b1": vhost("b1"), "b2": tap("b2")}
    host = lab.host(host_config("a", guests, wire=False))
    host.a1, host.a2, host.b2 = (lab.container(host, name) for name in ("a1", "a2", "b2"))
    return host


@contextlib.contextmanager
def watched(descriptor):
    """Has many watchers wait for a descriptor."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, max(4096, before[1])))
    copies = [os.dup(descriptor) for _ in range(WATCHERS)]
    epolls = [select.epoll() for _ in range(WATCHERS)]
    try:
        for epoll in epolls:
            for copy in copies:
                epoll.register(copy, select.EPOLLIN)
        yield
    finally:
        [epoll.close() for epoll in epolls]
        [os.close(copy) for copy in copies]
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def time_of_workers(host):
    """Returns the CPU time of all workers, seconds."""
    tasks = Path(f"/proc/{host.viaduct('status')['pid']}/task").iterdir()
    workers = [task for task in tasks if (task / "comm").read_text().startswith("worker")]
    assert workers
    return sum(int((task / "schedstat").read_text().split()[0]) for task in workers) / 1e9


def is_aside(host, name):
    """Says whether `status` warns that the kernel works too long for a guest."""
    warnings = host.viaduct("status")["warnings"]
    return any(name in warning["object"] and "works too long" in warning["message"] for warning in warnings)


def cost(host, send, name):
    """Sends until the guest is found out, and returns the workers' CPU time for a hundred packets more."""

    def found():
        send()
        return is_aside(host, name)

    eventually(found, f"a warning about {name}")
    before = time_of_workers(host)
    for _ in range(100):
        send()
    return time_of_workers(host) - before


def test_many_watch_an_eventfd(host):
    frame = Ether(src=B1.mac, dst=A1.mac) / IP(src=B1.address, dst=A1.address) / UDP(sport=1, dport=9) / b"z"
    with Driver(host.socket("b1")) as driver:
        ring = driver.transmit
        with watched(ring.call), unharmed(host, host.a1, host.a2):
            assert cost(host, lambda: driver.send(frame), "b1") < MOST
            # No interrupt is lost.
            assert driver.notified(ring)
            os.eventfd_read(ring.call)
            driver.send(frame)
            assert driver.notified(ring)


def test_many_watch_a_socket(host):
    program = host.b2.namespace.background([sys.executable, "-c", PROGRAM, B2.address, WATCHERS], "watcher")
    program.wait_for("ready")
    with host.a1.namespace.socket(AF_INET, SOCK_DGRAM) as sender, unharmed(host, host.a1, host.a2):

        def send():
            sender.sendto(b"x", (B2.address, 9000))
            time.sleep(0.01)

        assert cost(host, send, "b2") < MOST
    program.stop()
