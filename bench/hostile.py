"""A guest that behaves as badly as it can, over and over: python3 -m bench.hostile SOCKET MAC VICTIM-MAC [--harmless]

With --harmless it does the same in memory that the device never looks at: rings are written, not started. So both take
the same share of the generator's core, so that the only difference is the device's work."""

import argparse
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/lib"))

from lab.driver import (
    CSUM,
    GSO_TCPV4,
    HEADER,
    HOST_TSO4,
    MRG_RXBUF,
    NEEDS_CSUM,
    NEXT,
    VERSION_1,
    WRITE,
    Driver,
    spoil,
)

TURNS = 200
SIZE = 1024
PAYLOAD = 1000


def frame(source, destination):
    """Makes a TCP segment to be cut into pieces of one byte."""
    packed = lambda mac: bytes.fromhex(mac.replace(":", ""))
    ip = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, PAYLOAD + 40, 1, 0, 64, 6, 0, bytes([10, 1, 0, 9]), bytes([10, 1, 0, 2])
    )
    total = sum(struct.unpack("!10H", ip))
    ip = ip[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + ip[12:]
    tcp = struct.pack("!HHIIBBHHH", 1, 2, 0, 0, 0x50, 0x10, 1024, 0, 0)
    vnet = struct.pack("<BBHHHHH", NEEDS_CSUM, GSO_TCPV4, 54, 1, 34, 16, 0)
    return vnet + packed(destination) + packed(source) + b"\x08\x00" + ip + tcp + bytes(PAYLOAD)


def misbehave(driver, data):
    """Carries out one connection's attacks: a receive ring of malformed chains, frames to segment, floods, and
    notifications that would block."""
    receive, transmit = driver.rings
    for index in range(256):
        receive.descriptor(index, driver.buffers + 64 * index, 64, WRITE | NEXT, (index + 1) % 256)
    receive.offer(*[0] * receive.size)
    to_all = bytes(HEADER) + b"\xff" * 6 + data[HEADER + 6 :]
    one, other = driver.put(0, data), driver.put(4096, to_all)
    for index in range(SIZE):
        transmit.descriptor(index, one if index % 2 else other, len(data))
    for ring in driver.rings:
        spoil(ring.call)
    for _ in range(TURNS):
        transmit.offer(*range(64))
    transmit.set_available(transmit.next + 0x8000)


def main():
    parser = argparse.ArgumentParser()
    for name in ("socket", "mac", "victim"):
        parser.add_argument(name)
    parser.add_argument("--harmless", action="store_true")
    options = parser.parse_args()
    data = frame(options.mac, options.victim)
    features = VERSION_1 | MRG_RXBUF | CSUM | HOST_TSO4
    print("ready", flush=True)
    while True:
        try:
            with Driver(options.socket, features=features, size=SIZE, start=not options.harmless) as driver:
                misbehave(driver, data)
        except OSError:
            pass  # the device hung up


if __name__ == "__main__":
    main()
