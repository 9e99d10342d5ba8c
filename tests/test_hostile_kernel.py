"""Attacks by what the kernel does within the daemon's calls: many watch an eventfd or a socket, what was received takes
long to close, requests come without end. They hurt nobody else."""

import contextlib
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from socket import AF_INET, SOCK_DGRAM

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from lab import Driver, Stream, eventually, unharmed
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
    return time_of(host, "worker")


def time_of(host, name):
    """Returns the CPU time of all threads of the daemon whose names begin so, seconds."""
    tasks = Path(f"/proc/{host.viaduct('status')['pid']}/task").iterdir()
    chosen = [task for task in tasks if (task / "comm").read_text().startswith(name)]
    assert chosen
    return sum(int((task / "schedstat").read_text().split()[0]) for task in chosen) / 1e9


def is_aside(host, name):
    """Says whether `status` warns that the kernel works too long for a guest."""
    warnings = host.viaduct("status")["warnings"]
    return any(name in warning["object"] and "works too long" in warning["message"] for warning in warnings)


def cost(host, send, name):
    """Sends until the guest is found out, and returns the workers' CPU time for a hundred packets more."""

    def found():
        # Too few a second cost too little to be found out.
        for _ in range(20):
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


# A VMM may cause one second of work in so many, and so much at once (crates/virtio/src/control/budget.rs).
SECONDS, AT_ONCE = 20, 0.5
FLOODER = """
import struct, sys
from lab import Driver
with Driver(sys.argv[1], start=False) as driver:
    driver.negotiate()
    print("ready", flush=True)
    driver.connection.settimeout(None)
    request = struct.pack("<III", 8, 1, 8) + struct.pack("<II", 0, 256)
    while True:
        driver.connection.sendall(request * 4096)
"""


def test_a_vmm_sends_requests_without_end(host):
    """The thread that serves it has its share of a CPU, and no more."""
    command = [sys.executable, "-c", FLOODER, host.socket("b1")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent / "lib")}
    with unharmed(host, host.a1, host.a2):
        flooder = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
        try:
            flooder.stdout.readline()
            # Beyond what it may cause at once.
            eventually(lambda: time_of(host, "vhost-b1") > AT_ONCE / 2, "work for it")
            before, began = time_of(host, "vhost-b1"), time.monotonic()
            eventually(lambda: time.monotonic() - began > 10, "ten seconds")
            took, elapsed = time_of(host, "vhost-b1") - before, time.monotonic() - began
            assert took < AT_ONCE + elapsed / SECONDS, f"{took:.2f} s of CPU in {elapsed:.0f} s"
        finally:
            flooder.kill()
            flooder.wait()


def lingering():
    """Makes a TCP connection with unsent data. To close the first end as the last one who has it takes a minute."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        end = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    end.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            end.send(bytes(65536))
    return end, other


def close_elsewhere(end):
    """Closes an end in a process of its own, which may have to wait."""
    if os.fork() == 0:
        end.close()
        os._exit(0)
    # Not the last one: the process has a copy.
    os.close(end.detach())


def test_a_driver_of_open_vswitch_sends_what_takes_long_to_close(lab):
    """It comes by the socket that wakes the worker, which does not close it."""
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2")}, wire=False)
    host = lab.host(config.add("guest", name="o1", kind="tap", device="o1", mode="ovs"))
    host.a1, host.a2 = lab.container(host, "a1"), lab.container(host, "a2")
    stream = Stream(host.a1.namespace, host.a2.namespace, host.a2.addresses[0], rate=400)
    with stream, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as driver:
        driver.connect(str(host.run_dir / "ovs.sock"))
        driver.send(struct.pack("<IIIIII32s", 1, 56, 0x53564F56, 1, os.getpid(), 1, b"DPDK"))
        _, files, _, _ = socket.recv_fds(driver, 8192, 4)
        driver.send(struct.pack("<IIII64s", 2, 80, 7, 0, b"o1"))
        _, more, _, _ = socket.recv_fds(driver, 8192, 4)
        assert len(more) == 2, more
        with socket.socket(fileno=more[1]) as bell:
            others = []
            for _ in range(5):
                end, other = lingering()
                others.append(other)
                with contextlib.suppress(OSError):
                    socket.send_fds(bell, [b"x"], [end.fileno()])
                close_elsewhere(end)
            # A worker that closed one would stand still from now on, and lose packets of the others.
            stream.wait(4000)
        for other in others:
            # With data that nobody read: the closing ends.
            other.close()
        os.close(files[0]), os.close(more[0])
    assert stream.result().lost == 0, stream.result().gaps[:5]
