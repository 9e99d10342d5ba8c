"""Counts a daemon's descriptors, threads, mappings and memory, and checks that other guests notice nothing."""

import os
import re
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .shell import PATIENCE, Failed, eventually
from .stream import Stream

# Heaps keep a part of freed memory; the more threads, the larger the part.
MEMORY_TOLERANCE = 48 << 20
# The C library keeps the stacks of about twenty threads for later ones, and arenas; each takes two mappings.
MAPPINGS_TOLERANCE = 100
# Each thread that signals others' eventfds has one, after the first time.
OF_THREADS = "/dev/null"
# Threads of the API server: their number follows that of concurrent requests, and falls 10 s after the last one.
POOL = "control"


@dataclass
class Account:
    """The resources of a process at one moment."""

    descriptors: Counter
    threads: Counter
    mappings: int
    memory: int

    @classmethod
    def of(cls, pid):
        proc = Path(f"/proc/{pid}")
        return cls(_descriptors(proc), _threads(proc), len((proc / "maps").read_text().splitlines()), _memory(proc))

    def beyond(self, before):
        """Describes what there is more of than before; empty if everything was returned."""
        more = [
            f"{count} x {what}"
            for what, count in (self.descriptors - before.descriptors).items()
            if what != OF_THREADS
        ]
        if self.descriptors[OF_THREADS] > self.threads.total() + 1:
            more.append(f"{self.descriptors[OF_THREADS]} x {OF_THREADS}")
        more += [f"{count} threads {name}" for name, count in (self.threads - before.threads).items()]
        if self.mappings > before.mappings + MAPPINGS_TOLERANCE:
            more.append(f"{self.mappings - before.mappings} mappings")
        if self.memory > before.memory + MEMORY_TOLERANCE:
            more.append(f"{(self.memory - before.memory) >> 20} MiB")
        return ", ".join(more)


def _descriptors(proc):
    """Counts open files by their kind. For sockets and pipes, the number is left out."""
    kinds = Counter()
    for entry in os.scandir(proc / "fd"):
        try:
            kinds[re.sub(r":\[\d+\]$", "", os.readlink(entry.path))] += 1
        except FileNotFoundError:
            pass
    return kinds


def _threads(proc):
    names = Counter()
    for task in os.scandir(proc / "task"):
        try:
            name = Path(task.path, "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name != POOL:
            names[name] += 1
    return names


def _memory(proc):
    """Reads how many bytes of its own memory are resident, without memory that guests share with it."""
    status = (proc / "status").read_text()
    return 1024 * int(re.search(r"^RssAnon:\s+(\d+)", status, re.M)[1])


def daemon_pid(host):
    """Returns the process of the daemon: the started one is `ip netns exec`, which becomes it."""
    return host.viaduct("status")["pid"]


class Pulse:
    """Asks the daemon for `status`, and adds and removes a route, again and again while the `with` block runs: the
    tables change, and every worker must follow, as for any `apply`."""

    ROUTE = ("--network", "blue", "198.51.100.0/24")

    def __init__(self, host):
        self.host = host
        self.ending = threading.Event()
        self.beats = 0
        self.failure = None

    def __enter__(self):
        self.thread = threading.Thread(target=self._beat, daemon=True)
        self.thread.start()
        return self

    def _beat(self):
        while not self.ending.wait(0.1):
            try:
                self.host.viaduct("status", timeout=PATIENCE)
                self.host.call("rt", "add", *self.ROUTE, "--to", "drop", timeout=PATIENCE)
                self.host.call("rt", "del", *self.ROUTE, timeout=PATIENCE)
                self.beats += 1
            except Failed as failure:
                self.failure = failure
                return

    def wait(self, beats=2):
        """Waits until it has answered this many more times."""
        goal = self.beats + beats
        eventually(lambda: self.beats >= goal or self.failure, f"{beats} answers to status and changes", 2 * PATIENCE)
        if self.failure:
            raise self.failure

    def __exit__(self, *_):
        self.ending.set()
        self.thread.join()


@contextmanager
def unharmed(host, source, target, packets=200):
    """Fails if something inside the block affects others: a stream between two guests must lose nothing, the daemon
    must answer `status` and changes, and afterwards it must have no more than before."""
    pid = daemon_pid(host)
    address = target.addresses[0]
    source.expect_ping(address, 1)
    before = Account.of(pid)
    with Stream(source.namespace, target.namespace, address, rate=400) as stream, Pulse(host) as pulse:
        stream.wait(packets // 2)
        yield stream
        stream.wait(packets // 2)
        pulse.wait()
    result = stream.result()
    if result.lost:
        raise Failed(f"{result.lost} of {result.sent} packets between two other guests were lost: {result.gaps[:5]}")
    expect_back(pid, before)


def expect_back(pid, before, timeout=PATIENCE):
    """Waits until a process has no more than it had."""
    try:
        eventually(lambda: not Account.of(pid).beyond(before), "all that was taken is given back", timeout, 0.2)
    except Failed:
        raise Failed(f"not given back: {Account.of(pid).beyond(before)}") from None
