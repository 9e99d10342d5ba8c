"""UDP streams whose packets carry sequence numbers: what was lost is counted, not guessed."""

import socket
import struct
import threading
import time
from dataclasses import dataclass, field

from .shell import PATIENCE, Failed, eventually

PORT = 7777
# Packets a second. A container's tap keeps 10,000, so the daemon may have no CPU for twenty seconds.
RATE = 500
# How often the receiver looks whether the stream ends, in seconds. How often it does so in vain where the last packet
# has arrived, and where it has not: a busy machine may have no CPU for the daemon.
LOOK, LATER, LATE = 0.1, 3, 600
_HEAD = struct.Struct("!QQ")  # sequence number, time of sending in ns


@dataclass
class Result:
    """The result of a stream."""

    sent: int = 0
    received: int = 0
    duplicates: int = 0
    reordered: int = 0
    gaps: list = field(default_factory=list)  # (first missing, how many)

    @property
    def lost(self):
        return sum(count for _, count in self.gaps)


class Stream:
    """Sends from one namespace to an address of another, at a steady rate, while the `with` block runs.

    With `echo` the packets come back to the sender's namespace (through a guest that returns them).
    """

    def __init__(self, source, target, address, *, rate=RATE, size=200, port=PORT, echo=False):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.address = (address, port)
        self.period = 1 / rate
        self.padding = bytes(max(0, size - _HEAD.size))
        self.sender = source.socket(family, socket.SOCK_DGRAM)
        self.receiver = self.sender if echo else target.socket(family, socket.SOCK_DGRAM)
        self.receiver.bind(("", 0 if echo else port))
        self.receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self.receiver.settimeout(LOOK)
        self.ending = threading.Event()
        self.arrived = []
        self.sent = 0

    def __enter__(self):
        self.threads = [threading.Thread(target=run, daemon=True) for run in (self._receive, self._send)]
        for thread in self.threads:
            thread.start()
        eventually(lambda: self.arrived, f"a first packet of the stream to {self.address[0]}")
        return self

    def __exit__(self, *_):
        self.ending.set()
        for thread in self.threads:
            thread.join()
        self.sender.close()
        self.receiver.close()

    def wait(self, packets, timeout=PATIENCE):
        """Waits until this many more packets have arrived."""
        goal = len(self.arrived) + packets
        eventually(lambda: len(self.arrived) >= goal, f"{packets} more packets of the stream", timeout)

    def result(self):
        """Returns the account, counted from the first packet that arrived (those before it waited for neighbours)."""
        if not self.ending.is_set():
            raise Failed("the stream still runs")
        seen, last, outcome = set(), -1, Result()
        for number in self.arrived:
            outcome.duplicates += number in seen
            outcome.reordered += number < last
            seen.add(number)
            last = max(last, number)
        first = min(seen)
        outcome.sent = self.sent - first
        outcome.received = len(seen)
        missing = None
        for number in range(first, self.sent):
            if number in seen:
                missing = None
            elif missing is None:
                missing = number
                outcome.gaps.append((number, 1))
            else:
                outcome.gaps[-1] = (missing, outcome.gaps[-1][1] + 1)
        return outcome

    def _send(self):
        due = time.monotonic()
        while not self.ending.is_set():
            try:
                self.sender.sendto(_HEAD.pack(self.sent, time.monotonic_ns()) + self.padding, self.address)
            except OSError:
                pass  # counted as sent: a refusal on the way is a loss too
            self.sent += 1
            due += self.period
            delay = due - time.monotonic()
            if delay > 0:
                time.sleep(delay)

    def _receive(self):
        quiet, last = 0, -1
        # Packets that are under way at the end are not lost.
        while quiet < (LATER if last == self.sent - 1 else LATE):
            try:
                packet = self.receiver.recv(65536)
            except TimeoutError:
                quiet = quiet + 1 if self.ending.is_set() else 0
                continue
            except OSError:
                continue
            if len(packet) >= _HEAD.size:
                last = _HEAD.unpack_from(packet)[0]
                self.arrived.append(last)
