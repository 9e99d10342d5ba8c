"""Frames sent and received on a device by hand: a peer that does what no kernel would."""

import itertools
import socket
import struct
import time

from .netns import Namespace
from .shell import PATIENCE, Failed

ETH_P_ALL = 3
SOL_PACKET, PACKET_AUXDATA, PACKET_IGNORE_OUTGOING = 263, 8, 23
# struct tpacket_auxdata of linux/if_packet.h, and a bit of its first field: the kernel removed a VLAN tag from the
# frame.
AUXDATA = struct.Struct("=IIIHHHH")
TP_STATUS_VLAN_VALID = 1 << 4


class RawPort:
    """A packet socket on one device of a namespace."""

    def __init__(self, namespace: Namespace, device):
        self.device = device
        self.socket = namespace.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        self.socket.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        self.socket.bind((device, ETH_P_ALL))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, *frames):
        """Sends frames: bytes, or scapy packets."""
        for frame in frames:
            self.socket.send(bytes(frame))

    def before(self, last, wanted, what="marker"):
        """Returns the frames for which `wanted(bytes)` is true and that come before one for which `last(bytes)` is;
        fails if that does not come."""
        found = []
        for frame in self._frames(lambda _: True, PATIENCE):
            if last(frame):
                return found
            if wanted(frame):
                found.append(frame)
        raise Failed(f"no {what} on {self.device} within {PATIENCE} s")

    def take(self, count, seconds=PATIENCE):
        """Returns the next so many frames, or as many as arrive within that time."""
        return list(itertools.islice(self._frames(lambda _: True, seconds), count))

    def expect(self, wanted, what, seconds=PATIENCE):
        """Returns the first such frame; fails if none comes."""
        for frame in self._frames(wanted, seconds):
            return frame
        raise Failed(f"no {what} on {self.device} within {seconds:g} s")

    def collect(self, wanted, seconds):
        """Returns all such frames that come within that time."""
        return list(self._frames(wanted, seconds))

    def _frames(self, wanted, seconds):
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                frame = self._receive()
            except TimeoutError:
                return
            if wanted(frame):
                yield frame

    def _receive(self):
        """Returns the next frame, with the outermost tag that the kernel removed."""
        frame, control, *_ = self.socket.recvmsg(65536, socket.CMSG_SPACE(AUXDATA.size))
        for level, kind, data in control:
            if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
                status, _, _, _, _, tci, tpid = AUXDATA.unpack(data[: AUXDATA.size])
                if status & TP_STATUS_VLAN_VALID:
                    return frame[:12] + struct.pack("!HH", tpid, tci) + frame[12:]
        return frame
