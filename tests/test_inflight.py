"""VMMs that keep memory for requests in flight (vhost-user, INFLIGHT_SHMFD): the daemon is killed, and its own files
for packed rings are removed."""

import os
import random
import socket
import struct

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from lab import PATIENCE, Driver, Failed, RawPort, eventually
from lab.driver import AVAIL, HEADER, PACKED, TRANSMIT, USED, VERSION_1
from lab.topology import SEATS, host_config, tap, vhost

KILLS, SIZE = 20, 64
# Chains that the daemon may have taken and not returned when it dies: they are sent again.
BURST = 64
VM, CONTAINER = SEATS["b1"], SEATS["a1"]

# From vhost-user (QEMU, docs/interop/vhost-user.rst).
GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, SET_VRING_ENABLE = 15, 16, 18
GET_INFLIGHT_FD, SET_INFLIGHT_FD = 31, 32
PROTOCOL_FEATURES, INFLIGHT_SHMFD = 1 << 30, 1 << 12
FORM = struct.Struct("<QQHH4x")
MARK = b"number"
FRAME = bytes(
    Ether(src=VM.mac, dst=CONTAINER.mac)
    / IP(src=VM.address, dst=CONTAINER.address)
    / UDP(sport=1, dport=9, chksum=0)
    / (MARK + bytes(4))
)


class Keeper(Driver):
    """Sends numbered frames by a packed ring. It connects to each new daemon with the memory that the first one
    gave."""

    def __init__(self, path):
        self.kept = None
        self.sent = self.returned = 0
        super().__init__(path, features=VERSION_1 | PACKED | PROTOCOL_FEATURES, size=SIZE)

    def negotiate(self):
        super().negotiate()
        (offered,) = struct.unpack("<Q", self.ask(GET_PROTOCOL_FEATURES))
        assert offered & INFLIGHT_SHMFD
        self.say(SET_PROTOCOL_FEATURES, struct.pack("<Q", INFLIGHT_SHMFD))
        if not self.kept:
            self.say(GET_INFLIGHT_FD, FORM.pack(0, 0, len(self.rings), SIZE))
            answer, (file,), _, _ = socket.recv_fds(self.connection, 12 + FORM.size, 1)
            self.kept = (FORM.unpack(answer[12:]), file)
        form, file = self.kept
        self.say(SET_INFLIGHT_FD, FORM.pack(*form), [file])

    def start(self):
        # Frames sent by a ring that runs and is not enabled are discarded.
        for ring in self.rings:
            self.say(SET_VRING_ENABLE, struct.pack("<II", ring.index, 1))
        super().start()

    def come_again(self, path):
        self.connection.close()
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(str(path))
        self.connection.settimeout(PATIENCE)
        self.negotiate()
        self.start()

    def send_next(self):
        """Sends the frame with the next number, if there is room."""
        if self.sent - self.returned == SIZE:
            return
        slot = self.sent % SIZE
        data = bytes(HEADER) + FRAME[:-4] + struct.pack("!I", self.sent)
        self.transmit.packed(self.put(slot * 256, data), len(data), identity=slot)
        self.sent += 1
        self.transmit.notify()

    def reclaim(self):
        """Takes back what the daemon used: each chain comes once, in order."""
        while self.returned < self.sent:
            slot, lap = self.returned % SIZE, self.returned // SIZE
            identity, flags = struct.unpack_from("<HH", self.memory, self.rings[TRANSMIT].desc + 16 * slot + 12)
            if flags & (AVAIL | USED) != (0 if lap % 2 else AVAIL | USED):
                return
            assert identity == slot
            self.returned += 1


def test_a_vmm_that_keeps_memory_loses_nothing_though_the_daemon_forgets(lab):
    seed = int(os.environ.get("VIADUCT_SEED", random.randrange(1 << 32)))
    print(f"VIADUCT_SEED={seed}")
    chance = random.Random(seed)
    host = lab.host(host_config("a", {"a1": tap("a1"), "b1": vhost("b1")}, wire=False))
    container = lab.container(host, "a1")
    counts = {}

    with RawPort(container.namespace, container.device) as port, Keeper(host.socket("b1")) as vmm:
        port.socket.setblocking(False)

        def collect():
            try:
                while frame := port.socket.recv(2048):
                    if MARK in frame:
                        (number,) = struct.unpack_from("!I", frame, frame.index(MARK) + len(MARK))
                        counts[number] = counts.get(number, 0) + 1
            except BlockingIOError:
                pass

        def traffic(frames):
            end = vmm.sent + frames
            while vmm.sent < end:
                vmm.send_next()
                vmm.reclaim()
                collect()

        for _ in range(KILLS):
            # More than the ring has, most times: the last ones are on their way.
            traffic(chance.randrange(1, 4 * SIZE))
            host.kill()
            (host.run_dir / "rings").unlink()
            host.start()
            vmm.come_again(host.socket("b1"))
        traffic(4 * SIZE)

        def done():
            vmm.reclaim()
            collect()
            return vmm.returned == vmm.sent and len(counts) == vmm.sent

        try:
            eventually(done, "all arrives")
        except Failed:
            missing = [number for number in range(vmm.sent) if number not in counts]
            raise Failed(f"{vmm.returned} of {vmm.sent} came back, missing: {missing[:20]}") from None
    twice = sum(counts.values()) - len(counts)
    print(f"{len(counts)} frames, {twice} of them more than once")
    assert twice <= BURST * KILLS
