"""A guest's driver and VMM in one, controlled by a test: vhost-user messages by hand, rings written byte by byte.

Memory is one file: the two areas of rings first, then buffers. Guest addresses and the VMM's own are offsets in it."""

import array
import fcntl
import mmap
import os
import select
import socket
import struct

from .shell import PATIENCE, Failed, eventually

# From vhost-user (QEMU, docs/interop/vhost-user.rst).
GET_FEATURES, SET_FEATURES, SET_OWNER, SET_MEM_TABLE = 1, 2, 3, 5
SET_VRING_NUM, SET_VRING_ADDR, SET_VRING_BASE, GET_VRING_BASE = 8, 9, 10, 11
SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR = 12, 13, 14
# From virtio (VIRTIO 1.2, sections 5.1.3 and 6).
CSUM, HOST_TSO4, MRG_RXBUF, INDIRECT, EVENT_IDX, VERSION_1, PACKED = (1 << bit for bit in (0, 11, 15, 28, 29, 32, 34))
NEXT, WRITE, INDIRECT_TABLE = 1, 2, 4
AVAIL, USED = 1 << 7, 1 << 15  # flags of a packed descriptor
NEEDS_CSUM, GSO_TCPV4 = 1, 1
HEADER = 12
RECEIVE, TRANSMIT = 0, 1

FULL = (1 << 64) - 2


def spoil(descriptor):
    """Does to an eventfd what its other holder can do: clears O_NONBLOCK, and fills the counter."""
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_NONBLOCK)
    try:
        os.read(descriptor, 8)
    except BlockingIOError:
        pass
    os.write(descriptor, FULL.to_bytes(8, "little"))
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_NONBLOCK)


class Ring:
    """One virtqueue of a driver: the location of its parts, and the driver's state."""

    def __init__(self, driver, index, size):
        self.driver = driver
        self.index = index
        self.size = size
        self.desc = index * driver.area
        self.avail = self.desc + 16 * size
        self.used = (self.avail + 2 * size + 6 + 4095) & ~4095
        self.kick, self.call, self.err = (os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3))
        self.next = 0  # split: what avail.idx becomes next
        self.slot, self.wrap = 0, 1  # packed: the next descriptor and the driver's wrap counter

    def descriptor(self, index, address, length, flags=0, following=0):
        """Writes an entry of a split ring's descriptor table."""
        self.driver.memory[self.desc + 16 * index : self.desc + 16 * index + 16] = struct.pack(
            "<QIHH", address, length, flags, following
        )

    def head(self, slot, index):
        """Writes an entry of the available ring."""
        struct.pack_into("<H", self.driver.memory, self.avail + 4 + 2 * (slot % self.size), index)

    def set_available(self, index, kick=True):
        """Sets `avail.idx` to any value."""
        self.next = index & 0xFFFF
        struct.pack_into("<H", self.driver.memory, self.avail + 2, self.next)
        if kick:
            self.notify()

    def offer(self, *heads):
        """Makes chains available, as a driver does."""
        for head in heads:
            self.head(self.next, head)
            self.next = (self.next + 1) & 0xFFFF
        self.set_available(self.next)

    def packed(self, address, length, flags=0, identity=0):
        """Makes one descriptor of a packed ring available."""
        marks = AVAIL if self.wrap else USED
        at = self.desc + 16 * self.slot
        struct.pack_into("<QIH", self.driver.memory, at, address, length, identity)
        struct.pack_into("<H", self.driver.memory, at + 14, flags | marks)
        self.slot += 1
        if self.slot == self.size:
            self.slot, self.wrap = 0, self.wrap ^ 1

    @property
    def used_index(self):
        return struct.unpack_from("<H", self.driver.memory, self.used + 2)[0]

    def used_bytes(self):
        """Returns the used ring in memory, without the index."""
        return bytes(self.driver.memory[self.used + 4 : self.used + 4 + 8 * self.size])

    def notify(self):
        try:
            os.eventfd_write(self.kick, 1)
        except BlockingIOError:
            pass  # full: it is readable

    def close(self):
        for descriptor in (self.kick, self.call, self.err):
            os.close(descriptor)


class Driver:
    """A connection to a guest's vhost-user socket, with memory and rings set up and running."""

    def __init__(self, path, *, features=VERSION_1 | MRG_RXBUF, size=256, buffers=1 << 20, seal=True, start=True):
        self.connection = socket.socket(socket.AF_UNIX)
        # Without a timeout, which would make it fail while others wait to be accepted.
        self.connection.connect(str(path))
        self.connection.settimeout(PATIENCE)
        self.features = features
        # Descriptors, available ring and used ring of one ring, on pages of their own.
        self.area = (16 * size + 2 * size + 6 + 4095 & ~4095) + (8 * size + 6 + 4095 & ~4095)
        self.buffers = 2 * self.area
        self.length = self.buffers + buffers
        self.file = os.memfd_create("guest", os.MFD_ALLOW_SEALING)
        os.ftruncate(self.file, self.length)
        if seal:
            fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.memory = mmap.mmap(self.file, self.length)
        self.rings = [Ring(self, index, size) for index in (RECEIVE, TRANSMIT)]
        if start:
            self.negotiate()
            self.start()

    @property
    def receive(self):
        return self.rings[RECEIVE]

    @property
    def transmit(self):
        return self.rings[TRANSMIT]

    def say(self, request, payload=b"", descriptors=()):
        """Sends a message of the VMM."""
        message = struct.pack("<III", request, 1, len(payload)) + payload
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self.connection.sendmsg([message], rights)

    def ask(self, request, payload=b""):
        """Sends one and returns the answer's payload."""
        self.say(request, payload)
        answer = self._receive(12)
        return self._receive(struct.unpack("<III", answer)[2])

    def _receive(self, count):
        data = b""
        while len(data) < count:
            piece = self.connection.recv(count - len(data))
            if not piece:
                raise Failed("the daemon closed the vhost-user connection")
            data += piece
        return data

    def negotiate(self):
        offered = struct.unpack("<Q", self.ask(GET_FEATURES))[0]
        if self.features & ~offered:
            raise Failed(f"features {self.features & ~offered:#x} are not offered")
        self.say(SET_OWNER)
        self.say(SET_FEATURES, struct.pack("<Q", self.features))
        region = struct.pack("<IIQQQQ", 1, 0, 0, self.length, 0, 0)
        self.say(SET_MEM_TABLE, region, [self.file])

    def start(self):
        """Starts both rings; returns once the daemon has done it."""
        for ring in self.rings:
            self.say(SET_VRING_NUM, struct.pack("<II", ring.index, ring.size))
            self.say(SET_VRING_BASE, struct.pack("<II", ring.index, (1 << 15) if self.features & PACKED else 0))
            self.say(SET_VRING_ADDR, struct.pack("<IIQQQQ", ring.index, 0, ring.desc, ring.used, ring.avail, 0))
            self.say(SET_VRING_CALL, struct.pack("<Q", ring.index), [ring.call])
            self.say(SET_VRING_ERR, struct.pack("<Q", ring.index), [ring.err])
            self.say(SET_VRING_KICK, struct.pack("<Q", ring.index), [ring.kick])
        self.settle()

    def settle(self):
        """Returns when everything sent has been processed: messages are answered in order."""
        self.ask(GET_FEATURES)

    def put(self, offset, data):
        """Writes into the buffers; returns the address."""
        at = self.buffers + offset
        self.memory[at : at + len(data)] = data
        return at

    def post_buffers(self, count=None, length=2048):
        """Fills the receive ring with good buffers, one after the other in memory."""
        count = count or self.receive.size
        for index in range(count):
            self.receive.descriptor(index, self.buffers + index * length, length, WRITE)
        self.receive.offer(*range(count))

    def send(self, frame, header=bytes(HEADER)):
        """Sends one frame in one chain and waits until the daemon returned it."""
        self.send_often(1, frame, header)

    def send_often(self, count, frame, header=bytes(HEADER)):
        """Sends a frame this many times at once, from one buffer, and waits until the daemon returned all."""
        goal = (self.transmit.next + count) & 0xFFFF
        data = header + bytes(frame)
        address = self.put(0, data)
        for index in range(count):
            self.transmit.descriptor(index, address, len(data))
        self.transmit.offer(*range(count))
        eventually(lambda: self.transmit.used_index == goal, f"{count} descriptors")

    def notified(self, ring):
        """Says whether the ring's call event arrives."""
        return bool(select.select([ring.call], [], [], PATIENCE)[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.connection.close()
        for ring in self.rings:
            ring.close()
        self.memory.close()
        os.close(self.file)
