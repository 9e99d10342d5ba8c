"""Packets on a cable, as dumpcap captured and tshark decodes them."""

import json
import signal
import time
from pathlib import Path

from .netns import Namespace
from .shell import Failed, eventually, run


class Capture:
    """Captures on one device while the `with` block runs; the packets are there afterwards."""

    def __init__(self, namespace: Namespace, device, file: Path, expression=""):
        self.namespace = namespace
        self.device = device
        self.file = file
        self.expression = expression

    def __enter__(self):
        # dumpcap rather than tcpdump, which switches to another user and can't do so in a user namespace.
        words = ["dumpcap", "-q", "-P", "-i", self.device, "-w", self.file, "-f", self.expression]
        self.dumpcap = self.namespace.background(words, f"dumpcap-{self.file.stem}")
        self.dumpcap.wait_for("File: ")
        return self

    def __exit__(self, *_):
        # The kernel hands packets over in blocks, after a quarter of a second at the latest, which nobody can await.
        # Those that it still holds when dumpcap ends are lost.
        time.sleep(0.3)
        if self.dumpcap.stop(signal.SIGINT) != 0:
            raise Failed(self.dumpcap.describe())

    def wait_for(self, display_filter, count=1):
        """Waits until this many packets of that kind were captured."""
        enough = lambda: len(self.fields(display_filter, "frame.number")) >= count
        # tshark takes half a second of a CPU.
        eventually(enough, f"{count} x {display_filter}", interval=0.3)

    def fields(self, display_filter, *names):
        return fields(self.file, display_filter, *names)

    def expert(self):
        return expert(self.file)


def tshark(file, *words):
    """Returns the output of `tshark WORDS` for a file, which may still be growing."""
    # Its Thrift dissector mistakes random TCP payloads for Thrift.
    done = run(["tshark", "-n", "--disable-protocol", "thrift", "-r", file, *words], check=False)
    if done.returncode != 0 and "cut short" not in done.stderr:
        raise Failed(f"tshark {' '.join(map(str, words))}: {done.stderr}")
    return done.stdout


def fields(file, display_filter, *names):
    """Returns the named fields of the packets that match, one list for each packet; every occurrence of a field, joined
    by commas."""
    words = [word for name in names for word in ("-e", name)]
    output = tshark(file, "-Y", display_filter, "-T", "fields", *words)
    return [line.split("\t") for line in output.splitlines()]


def expert(file):
    """Returns the complaints of tshark: malformed packets, and expert notes of severity warning or error except on TCP,
    where a retransmission or a reset is nobody's mistake."""
    severe = "_ws.malformed || (_ws.expert.severity >= 6291456 && !tcp)"
    return fields(file, severe, "frame.number", "_ws.col.Protocol", "_ws.expert.message")


def packets(file, display_filter=""):
    """Returns the packets as tshark's JSON."""
    return [packet["_source"]["layers"] for packet in json.loads(tshark(file, "-Y", display_filter, "-T", "json"))]
