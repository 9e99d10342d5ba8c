"""Attacks by a guest's driver and its VMM: rings, descriptors, packets. They hurt nobody else."""

import fcntl
import os
import socket
import struct

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether

from lab import Driver, Failed, RawPort, eventually, spoil, unharmed
from lab.driver import (
    CSUM,
    GSO_TCPV4,
    HEADER,
    HOST_TSO4,
    INDIRECT,
    INDIRECT_TABLE,
    MRG_RXBUF,
    NEEDS_CSUM,
    NEXT,
    PACKED,
)
from lab.driver import VERSION_1, WRITE
from lab.topology import SEATS, host_config, tap, vhost


A1, A2, B1, B2 = (SEATS[name] for name in ("a1", "a2", "b1", "b2"))
# Chains that a worker may look at for one packet, before it gives up for this turn.
WORK = 1024


@pytest.fixture
def host(lab):
    """Starts a host with two guests that exchange traffic, a1 and a2, and seats for two drivers, b1 and b2."""
    guests = {"a1": tap("a1"), "a2": tap("a2"), "b1": vhost("b1"), "b2": vhost("b2")}
    host = lab.host(host_config("a", guests, wire=False))
    host.a1, host.a2 = lab.container(host, "a1"), lab.container(host, "a2")
    # A port of the guest that receives: frames sent here take no room from the stream.
    with RawPort(host.a2.namespace, host.a2.device) as port:
        host.port = port
        yield host


def frame_to(seat, payload=b"x" * 40):
    return bytes(
        Ether(src=A2.mac, dst=seat.mac) / IP(src=A2.address, dst=seat.address) / UDP(sport=1, dport=2) / payload
    )


def vif(host, name):
    return next(row for row in host.viaduct("vif") if row["name"] == name)


def deliver(host, driver, payload=b"x" * 40, seat=B1):
    """Sends one frame to a driver; returns once it was delivered, or dropped for what the driver did."""
    row = vif(host, seat.name)
    before = row["tx_packets"] + row["tx_drops"]
    host.port.send(frame_to(seat, payload))

    def done():
        row = vif(host, seat.name)
        return row["tx_packets"] + row["tx_drops"] > before or row["fault"]

    eventually(done, f"an end of the frame to {seat.name}")


def test_the_available_index_goes_back_to_what_was_read(host):
    """A driver offers so many bytes that a worker needs many turns. Meanwhile the index goes back: heads that were
    read before do not count any more, no turn completes more chains than the ring has, and nothing is written past the
    used ring."""
    size, big = 32, 1 << 20
    small = size - 1
    with unharmed(host, host.a1, host.a2):
        for _ in range(20):
            with Driver(host.socket("b1"), size=size, buffers=big) as driver:
                ring = driver.transmit
                for index in range(small):
                    ring.descriptor(index, driver.buffers, big)
                ring.descriptor(small, driver.buffers, HEADER)
                end = ring.used + 4 + 8 * size
                behind = bytes(driver.memory[end : driver.buffers])
                others, entries = struct.pack("<32H", *[small] * size), ring.avail + 4
                used = ring.used + 2
                ring.offer(*range(size))
                while not driver.memory[used]:
                    pass
                driver.memory[entries : entries + 2 * size] = others
                ring.set_available(small)
                eventually(lambda: vif(host, "b1")["fault"] or ring.used_index >= small, "its turns")
                driver.settle()
                assert driver.memory[end : driver.buffers] == behind, "written behind the used ring"


@pytest.mark.parametrize("jump", [3, 0x8000, 0xFF00])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_available_index_jumps(host, size, jump):
    """A driver that offers more than the ring has, or less than it did, is disabled, and that is shown."""
    with unharmed(host, host.a1, host.a2), Driver(host.socket("b1"), size=size) as driver:
        for ring in driver.rings:
            ring.set_available(size + jump)
        eventually(lambda: vif(host, "b1")["fault"], "a fault of b1")
        for ring in driver.rings:
            assert ring.used_index == 0


@pytest.mark.parametrize("which", ["call", "err"])
def test_a_notification_would_block(host, which):
    """The VMM clears O_NONBLOCK of the eventfd and fills it: a thread that writes to it would sleep for ever."""
    with unharmed(host, host.a1, host.a2), Driver(host.socket("b1")) as driver:
        for ring in driver.rings:
            spoil(getattr(ring, which))
        driver.post_buffers()
        for _ in range(5):
            deliver(host, driver)
        for _ in range(5):
            driver.send(
                Ether(src=B1.mac, dst=A1.mac) / IP(src=B1.address, dst=A1.address) / UDP(sport=1, dport=9) / b"z"
            )
        if which == "err":
            driver.transmit.head(driver.transmit.next, 0xFFFF)
            driver.transmit.set_available(driver.transmit.next + 1)
            eventually(lambda: vif(host, "b1")["fault"], "a fault of b1")


def test_the_kick_is_never_read(host):
    """The same holds for the descriptor that the driver writes to."""
    with unharmed(host, host.a1, host.a2), Driver(host.socket("b1")) as driver:
        for ring in driver.rings:
            fcntl.fcntl(ring.kick, fcntl.F_SETFL, 0)
            os.eventfd_read(ring.kick) if ring.next else None
        driver.post_buffers()
        deliver(host, driver)


def test_notifications_come_to_one_who_listens(host):
    """The bounds of the daemon lose no interrupt."""
    with unharmed(host, host.a1, host.a2), Driver(host.socket("b1")) as driver:
        driver.post_buffers()
        for _ in range(20):
            before = driver.receive.used_index
            host.port.send(frame_to(B1))
            eventually(lambda: driver.receive.used_index != before, "the frame")
            assert driver.notified(driver.receive), "no notification"
            os.eventfd_read(driver.receive.call)


def rubbish(driver, flags):
    """Fills a receive ring with 32768 chains, each a circle of 256 descriptors."""
    ring = driver.receive
    for index in range(256):
        ring.descriptor(index, driver.buffers + 64 * index, 64, flags | NEXT, (index + 1) % 256)
    for slot in range(ring.size):
        ring.head(slot, 0)
    ring.set_available(ring.size)


def indirect_rubbish(driver, flags):
    """Does the same by tables that link in a circle."""
    ring = driver.receive
    entries = [
        struct.pack("<QIHH", driver.buffers + 65536, 64, flags | NEXT, (index + 1) % 256) for index in range(256)
    ]
    table = driver.put(0, b"".join(entries))
    ring.descriptor(0, table, 16 * 256, INDIRECT_TABLE)
    for slot in range(ring.size):
        ring.head(slot, 0)
    ring.set_available(ring.size)


@pytest.mark.parametrize("post", [rubbish, indirect_rubbish])
def test_a_ring_full_of_malformed_chains(host, post):
    """A worker looks at no more of them for a packet than its budget; a driver that posts nothing else is disabled."""
    features = VERSION_1 | MRG_RXBUF | INDIRECT
    with unharmed(host, host.a1, host.a2), Driver(host.socket("b1"), features=features, size=32768) as driver:
        post(driver, WRITE)
        before = vif(host, "b1")["malformed"]
        deliver(host, driver)
        assert vif(host, "b1")["malformed"] - before <= WORK
        for _ in range(100):
            if vif(host, "b1")["fault"]:
                break
            host.port.send(*[frame_to(B1)] * 128)
        assert vif(host, "b1")["fault"], "a driver that posts only rubbish is disabled"


def test_a_transmit_ring_full_of_malformed_chains(host):
    """The same holds for a ring to be read from."""
    with unharmed(host, host.a1, host.a2), Driver(host.socket("b1"), size=32768) as driver:
        ring = driver.transmit
        for index in range(256):
            ring.descriptor(index, driver.buffers + 64 * index, 64, NEXT, (index + 1) % 256)
        for slot in range(ring.size):
            ring.head(slot, 0)
        for _ in range(20):
            ring.set_available(ring.used_index + ring.size)
            if vif(host, "b1")["fault"]:
                break
        eventually(lambda: vif(host, "b1")["fault"], "a fault of b1")


def sent_and_dropped(host):
    workers = host.viaduct("stats")["workers"]
    return sum(worker["sent_packets"] + worker["drops"] for worker in workers)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_segments_of_a_few_bytes(host, size):
    """A burst of frames to be cut into pieces of a byte, for a guest that takes no large frames, does not make 64,000
    packets."""
    features = VERSION_1 | MRG_RXBUF | CSUM | HOST_TSO4
    room = Driver(host.socket("b2"), size=32768, buffers=32768 * 256)
    with unharmed(host, host.a1, host.a2) as stream, room as receiver:
        receiver.post_buffers(length=256)
        with Driver(host.socket("b1"), features=features) as driver:
            length = 1000 * size
            headers = (
                Ether(src=B1.mac, dst=B2.mac)
                / IP(src=B1.address, dst=B2.address, len=length + 40)
                / TCP(sport=1, dport=2)
            )
            frame = bytes(headers)[:54] + b"x" * length
            vnet = struct.pack("<BBHHHHH", NEEDS_CSUM, GSO_TCPV4, 54, size, 34, 16, 0)
            before, streamed = sent_and_dropped(host), stream.sent
            driver.send_often(64, frame, vnet)
            # Other packets meanwhile, with some for those that the kernels of the others send by themselves.
            beside = stream.sent - streamed + 500
            made = sent_and_dropped(host) - before - beside
            assert made <= 4096, f"{made} packets of 64 frames"
            assert receiver.receive.used_index <= 4096
            assert host.drops()["segment_too_small"] == 64


def test_a_frame_of_nothing_and_of_headers_alone(host):
    """Lengths that no driver sends do no harm."""
    with unharmed(host, host.a1, host.a2), Driver(host.socket("b1")) as driver:
        ring = driver.transmit
        for length in (0, 1, HEADER - 1, HEADER, HEADER + 13, 1 << 31, 0xFFFFFFFF):
            before = ring.used_index
            ring.descriptor(0, driver.buffers, length)
            ring.offer(0)
            eventually(lambda: ring.used_index != before or vif(host, "b1")["fault"], "the descriptor")


def test_a_packed_ring_of_rubbish(host):
    """Descriptors that follow one another for ever, and wrap, are found out."""
    features = VERSION_1 | MRG_RXBUF | PACKED
    with unharmed(host, host.a1, host.a2), Driver(host.socket("b1"), features=features, size=256) as driver:
        ring = driver.receive
        for _ in range(256):
            ring.packed(driver.buffers, 64, WRITE | NEXT)
        ring.notify()
        host.port.send(*[frame_to(B1)] * 64)
        ring = driver.transmit
        for _ in range(512):
            ring.packed(1 << 60, 64, NEXT)
        ring.notify()
        eventually(lambda: vif(host, "b1")["fault"] or vif(host, "b1")["malformed"], "that it is found out")


def test_rings_come_and_go_while_packets_flow(host):
    """A VMM may start and stop its rings as fast as it can."""
    with unharmed(host, host.a1, host.a2):
        for _ in range(30):
            with Driver(host.socket("b1")) as driver:
                driver.post_buffers()
                host.port.send(*[frame_to(B1)] * 32)
                for index in (0, 1):
                    driver.ask(11, struct.pack("<II", index, 0))  # GET_VRING_BASE stops it
                driver.start()


def test_connections_that_say_nothing(host):
    """A VMM's socket takes one connection; others wait or are turned away, and leave nothing behind."""
    with unharmed(host, host.a1, host.a2):
        for _ in range(100):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.setblocking(False)
                try:
                    connection.connect(str(host.socket("b1")))
                except BlockingIOError:
                    pass  # as many wait as may
    with Driver(host.socket("b1")) as driver:
        driver.post_buffers()
        deliver(host, driver)


def test_refused_requests_do_not_fill_the_log(host):
    """A VMM that asks a thousand times a second for what it can't have is told so, and the log is not."""
    log = host.daemon.log
    with unharmed(host, host.a1, host.a2):
        before = log.stat().st_size
        for _ in range(20):
            try:
                with Driver(host.socket("b1"), start=False) as driver:
                    for _ in range(500):
                        driver.say(2, struct.pack("<Q", 1 << 63))
                    driver.settle()
            except (OSError, Failed):
                pass  # the daemon may hang up on a VMM that asks for what was not offered
        lines = log.read_bytes()[before:].count(b"\n")
    assert lines < 200, f"{lines} lines"
