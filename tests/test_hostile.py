"""What comes from those who mean harm, or just don't know better: it hurts nobody else."""

import os
import socket
import struct

import pytest

from lab import PATIENCE, Stream, eventually
from lab.topology import SEATS, host_config, tap, vhost

A1, A2 = SEATS["a1"], SEATS["a2"]


@pytest.fixture
def host(lab):
    host = lab.host(host_config("a", {"a1": tap("a1"), "a2": tap("a2"), "b1": vhost("b1")}, wire=False))
    host.a1, host.a2 = lab.container(host, "a1"), lab.container(host, "a2")
    host.a1.expect_ping(A2.address)
    return host


def unix(path):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE)
    connection.connect(str(path))
    return connection


@pytest.mark.parametrize(
    "garbage", [b"", b"\0" * 4096, b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 999]
)
def test_garbage_on_the_control_socket(host, garbage):
    with Stream(host.a1.namespace, host.a2.namespace, A2.address) as stream:
        for _ in range(20):
            with unix(host.run_dir / "viaduct.sock") as connection:
                connection.sendall(garbage)
        host.viaduct("status")
        stream.wait(300)
    assert stream.result().lost == 0


def test_many_idle_control_connections(host):
    idle = [unix(host.run_dir / "viaduct.sock") for _ in range(200)]
    assert host.viaduct("status")
    for connection in idle:
        connection.close()


# request, flags (version 1), size, payload: what a broken VMM could say
VHOST_USER = {
    "nothing": b"",
    "half a header": struct.pack("<II", 1, 1),
    "huge size": struct.pack("<III", 5, 1, 0xFFFFFFF0) + b"x" * 64,
    "unknown request": struct.pack("<III", 9999, 1, 8) + bytes(8),
    "ring before memory": struct.pack("<III", 9, 1, 40) + struct.pack("<IIQQQQ", 0, 0, 0x1000, 0x2000, 0x3000, 0),
    "ring that does not exist": struct.pack("<III", 8, 1, 8) + struct.pack("<II", 77, 256),
    "size that is no power of two": struct.pack("<III", 8, 1, 8) + struct.pack("<II", 0, 777),
    "memory without a descriptor": struct.pack("<III", 5, 1, 40) + struct.pack("<IIQQQQ", 1, 0, 0, 1 << 30, 0, 0),
    "more regions than there are": struct.pack("<III", 5, 1, 8) + struct.pack("<II", 4000000, 0),
    "wrong version": struct.pack("<III", 1, 2, 0),
}


@pytest.mark.parametrize("case", VHOST_USER)
def test_broken_vmm_harms_nobody_else(host, lab, case):
    with Stream(host.a1.namespace, host.a2.namespace, A2.address) as stream:
        for _ in range(5):
            with unix(host.socket("b1")) as connection:
                connection.sendall(VHOST_USER[case])
        stream.wait(300)
        host.viaduct("status")
    assert stream.result().lost == 0
    # And the socket serves the next VMM.
    host.a1.expect_ping(A2.address)
    with unix(host.socket("b1")) as connection:
        connection.sendall(struct.pack("<III", 1, 1, 0))  # GET_FEATURES
        answer = connection.recv(20)
        assert len(answer) == 20 and struct.unpack("<IIIQ", answer)[0] == 1


def test_memory_file_that_shrinks_disables_that_guest_alone(host):
    """A VMM gives memory and takes it away again: touching it is SIGBUS, which must not end the daemon."""
    descriptor = os.memfd_create("guest")
    os.ftruncate(descriptor, 1 << 20)
    with unix(host.socket("b1")) as connection:
        features = 1 << 32
        connection.sendall(struct.pack("<III", 1, 1, 0))
        connection.recv(20)
        connection.sendall(struct.pack("<IIIQ", 2, 1, 8, features))
        connection.sendall(struct.pack("<III", 3, 1, 0))
        table = struct.pack("<III", 5, 1, 40) + struct.pack("<IIQQQQ", 1, 0, 0, 1 << 20, 0, 0)
        socket.send_fds(connection, [table], [descriptor])
        kick, call = os.eventfd(0), os.eventfd(0)
        for ring in (0, 1):
            connection.sendall(struct.pack("<IIIII", 8, 1, 8, ring, 256))
            connection.sendall(struct.pack("<IIIII", 10, 1, 8, ring, 0))
            base = ring << 16
            connection.sendall(struct.pack("<IIIIIQQQQ", 9, 1, 40, ring, 0, base, base + 0x2000, base + 0x1000, 0))
            socket.send_fds(connection, [struct.pack("<IIIQ", 13, 1, 8, ring)], [call])
            socket.send_fds(connection, [struct.pack("<IIIQ", 12, 1, 8, ring)], [kick])
        connection.sendall(struct.pack("<III", 1, 1, 0))
        connection.recv(20)  # so that all of the above was done
        os.ftruncate(descriptor, 0)
        os.eventfd_write(kick, 1)
        # Broadcasts go to every guest of the network: the daemon has to touch the rings.
        host.a1.run(["ping", "-b", "-c", 3, "-i", 0.2, "-W", 1, "10.1.1.255"], check=False)
        host.a1.expect_ping(A2.address)
    os.close(descriptor)
    host.viaduct("status")


def test_enormous_file_is_refused_or_applied_in_time(host, lab):
    file = lab.directory / "huge.toml"
    file.write_text("[host]\nname = \"" + "x" * (32 << 20) + "\"\n")
    assert host.call("apply", file, check=False).returncode in (1, 2)
    file.write_text(host.config.text() + "\n" + "[[route]]\n" * 200000)
    assert host.call("apply", file, check=False).returncode in (1, 2)
    host.a1.expect_ping(A2.address)


def test_flood_of_new_flows_stays_within_the_quota(host):
    """One guest opens flows as fast as it can: another one's connections go on."""
    with Stream(host.a2.namespace, host.a1.namespace, A1.address) as stream:
        sender = host.a1.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for number in range(30000):
            sender.sendto(b"x", (A2.address, 1024 + number))
        sender.close()
        stream.wait(200)
    assert stream.result().lost == 0
    eventually(lambda: host.viaduct("status"), "status")
