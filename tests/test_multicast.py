"""Multicast of verbs: unmodified mckey, on one host and on two, beside sockets in the same group."""

import contextlib
import signal
import socket
import struct

import pytest

from lab import PATIENCE, eventually, meet
from lab.shell import Failed
from lab.topology import SEATS, bridged_routes, host_config, tap, two_verbs_hosts, verbs

GROUPS = {4: ("239.1.2.3", "address"), 6: ("ff0e::1:2", "address6")}
MESSAGES = 10


class Group:
    """Guests that are to run mckey in one group: by seat, the device of each."""

    def __init__(self, version, devices):
        self.group, self.own = GROUPS[version]
        self.devices = devices

    def start(self, seat, *more):
        # Its lines are looked at while it runs.
        words = [
            "stdbuf",
            "-oL",
            "mckey",
            "-m",
            self.group,
            "-b",
            getattr(SEATS[seat], self.own),
            "-C",
            MESSAGES,
            *more,
        ]
        return self.devices[seat].start(words, "mckey")

    def expect(self, receivers, sender, *more):
        """Fails unless each receiver gets what the sender sends, and all of them end well."""
        programs = [self.start(seat) for seat in receivers]
        with stopping(programs):
            for program in programs:
                eventually(lambda program=program: "joined dgid" in program.text(), "a member")
            programs.append(self.start(sender, "-s", *more))
            eventually(lambda: not any(program.running() for program in programs), "the end of mckey")
            assert [program.process.returncode for program in programs] == [0] * len(programs)
        for device in self.devices.values():
            device.expect_free()


@contextlib.contextmanager
def stopping(programs):
    """Ends programs, and shows what they said where something is wrong."""
    try:
        yield
    except (Failed, AssertionError) as why:
        raise Failed("\n".join([str(why), *(program.describe() for program in programs)])) from None
    finally:
        for program in programs:
            program.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def one_host(shared_lab):
    host = shared_lab.host(host_config("mc", {seat: verbs() for seat in ("a1", "a2", "b1")}, wire=False))
    return {seat: shared_lab.verbs(host, seat) for seat in ("a1", "a2", "b1")}


@pytest.mark.parametrize("version", GROUPS)
def test_on_one_host(one_host, version):
    """Messages come to guests, to two programs of one guest, and to a program of the guest that sends."""
    Group(version, one_host).expect(["a2", "b1", "b1", "a1"], "a1")


def test_who_only_sends(one_host):
    Group(4, one_host).expect(["a2"], "a1", "-o")


@pytest.fixture(scope="module")
def two_hosts(shared_lab):
    _, devices = two_verbs_hosts(shared_lab, bridged_routes, ("a1", "a2", "b1", "b2"))
    # The hosts get to know each other: what is flooded is not held for that.
    meet(devices["a1"], devices["b1"], "ibv_ud_pingpong", "-g", "1", "-n", "10")
    return devices


@pytest.mark.parametrize("version", GROUPS)
def test_between_hosts(shared_lab, two_hosts, version):
    group, _ = GROUPS[version]
    messages = f"infiniband && {'ip' if version == 4 else 'ipv6'}.dst == {group}"
    with shared_lab.capture("fabric", "a-up0", "udp port 4789") as seen:
        Group(version, two_hosts).expect(["b1", "b2", "a2"], "a1")
        seen.wait_for(messages, MESSAGES)
    # Each once, for both guests there.
    assert seen.fields(messages, "infiniband.bth.destqp") == [["0xffffff"]] * MESSAGES
    # RoCE has its ICRC for a checksum, over IPv6 too.
    assert {complaint for *_, complaint in seen.expert()} <= {"Illegal checksum value (0)"}


def test_beside_sockets(lab):
    """Where a guest's sockets are in the same group, packets for UDP 4791 are the device's, the rest is theirs."""
    host = lab.host(host_config("a", {seat: {**tap(seat), "rdma": seat} for seat in ("a1", "a2")}, wire=False))
    containers = {seat: lab.container(host, seat) for seat in ("a1", "a2")}
    devices = {seat: lab.verbs(host, seat) for seat in ("a1", "a2")}
    group = GROUPS[4][0]
    with containers["a2"].namespace.entered():
        heard = {port: socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for port in (5000, 4791)}
        for port, listener in heard.items():
            listener.bind(("", port))
            listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member(group, SEATS["a2"].address))
            listener.settimeout(PATIENCE)
    with containers["a1"].namespace.entered():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        own = socket.inet_aton(SEATS["a1"].address)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)
    Group(4, devices).expect(["a2"], "a1")
    sender.sendto(b"a datagram", (group, 5000))
    assert heard[5000].recv(100) == b"a datagram"
    heard[4791].setblocking(False)
    with pytest.raises(BlockingIOError):
        heard[4791].recv(100)
    # Nor may a guest's sockets say that they are its device.
    sender.sendto(bytes(100), (group, 4791))
    eventually(lambda: host.drops().get("rdma_owned"), "the drop of a forged message")


def member(group, address):
    """Returns a `struct ip_mreq`."""
    return struct.pack("4s4s", socket.inet_aton(group), socket.inet_aton(address))
