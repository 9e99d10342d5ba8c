"""Attacks by a verbs program's memory: a peer's that it was trusted with, and its own whose pages never come. They
hurt nobody else."""

import re
import signal

import pytest

from lab import eventually, meet, unharmed
from lab.topology import host_config, tap, verbs


PEER = """
import signal
from lab.peer import Peer
directory, name, other = sys.argv[1:]
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
"""
# Fills the other's memory with 1, then 2 and so on until that fails; then it tries a hundred times more.
WRITER = PEER + """
peer, number, failed = Peer(65536), 0, 0
peer.connect(directory, name, other)
while failed < 100:
    status = peer.write((number + 1).to_bytes(8, "little") * 8192)
    number, failed = (number, failed + 1) if status else (number + 1, failed)
print("wrote", number, "times", flush=True)
signal.pause()
"""
# Prints the numbers in its memory at each SIGUSR1.
OWNER = PEER + """
peer = Peer(65536)
peer.connect(directory, name, other)
while signal.sigwait({signal.SIGUSR1}):
    words = peer.region.read(65536, 0)
    print("has", *sorted({int.from_bytes(words[at:at + 8], "little") for at in range(0, 65536, 8)}), flush=True)
"""


@pytest.fixture
def host(lab):
    """Starts a host with two guests that exchange traffic, and two verbs devices that trust each other."""
    guests = {"a1": tap("a1"), "a2": tap("a2"), "b1": verbs(rdma_trust="job"), "b2": verbs(rdma_trust="job")}
    host = lab.host(host_config("a", guests, wire=False))
    host.a1, host.a2 = lab.container(host, "a1"), lab.container(host, "a2")
    host.b1, host.b2 = lab.verbs(host, "b1"), lab.verbs(host, "b2")
    host.meeting = lab.directory / "meeting"
    host.meeting.mkdir()
    return host


def listed(host, what):
    """Returns a column of the list of devices."""
    return {row["name"]: row[what] for row in host.viaduct("rdma")}


def without_trust(host, guest):
    """Takes the trust of a guest away; returns the configuration."""
    config = host.config.copy()
    del config.entry("guest", guest)["rdma_trust"]
    host.apply(config)
    return config


@pytest.mark.parametrize("memory, first", [("everything", "holder"), ("regions", "owner")])
def test_trust_is_taken_away(monkeypatch, host, memory, first):
    """The connection ends on both sides, nothing more is written, and the daemon says who may still have the
    memory."""
    if memory == "regions":
        monkeypatch.setenv("VIADUCT_RDMA_SHARE", "1")
    with unharmed(host, host.a1, host.a2):
        owner = host.b2.python(OWNER, host.meeting, "owner", "writer")
        writer = host.b1.python(WRITER, host.meeting, "writer", "owner")
        try:
            taken_away(host, owner, writer, memory)
            (writer if first == "holder" else owner).stop(signal.SIGKILL)
            eventually(lambda: host.viaduct("rdma", "holders") == [], "nobody who has memory of another")
            assert listed(host, "distrusted") == {"b1": 0, "b2": 0}
        finally:
            writer.stop(signal.SIGKILL), owner.stop(signal.SIGKILL)
        host.b1.expect_free(), host.b2.expect_free()
        # New programs get on without trust: the daemon copies.
        meet(host.b1, host.b2, "ibv_rc_pingpong", "-g", "1", "-n", "100", "-c", "-e")
        assert host.viaduct("rdma", "holders") == []


def taken_away(host, owner, writer, memory):
    """Has two programs share memory; then one of the guests loses its `rdma_trust`."""
    held = [owner.process.pid, "b1", writer.process.pid, memory]
    holders = lambda: [[row[key] for key in ("pid", "holder", "holder_pid", "memory", "trusted")]
                       for row in host.viaduct("rdma", "holders")]
    eventually(lambda: holders() == [[*held, True]], "memory that is shared")
    assert listed(host, "distrusted") == {"b1": 0, "b2": 0}
    without_trust(host, "b2")
    writer.wait_for("wrote ")
    (ours,), (theirs,) = host.b1.queue_pairs(), host.b2.queue_pairs()
    assert [ours["state"], theirs["state"]] == ["ERROR", "ERROR"], (ours, theirs)
    assert "trust" in ours["error"] and "trust" in theirs["error"], (ours, theirs)
    assert holders() == [[*held, False]]
    assert listed(host, "distrusted") == {"b1": 0, "b2": 1}
    # None of the later attempts wrote anything.
    owner.process.send_signal(signal.SIGUSR1)
    owner.wait_for("has ")
    last = int(re.search(r"wrote (\d+)", writer.text())[1])
    words = {int(word) for word in re.search(r"has (.*)", owner.text())[1].split()}
    assert last > 0 and words <= {last, last + 1}, (last, words)


# Has memory whose pages never come, and eventfds that block whoever writes to them.
SLOW = PEER + """
import os
import pyverbs.enums as e
from pyverbs.device import Context
from lab import spoil
from lab.slow import SlowMemory
memory, context = SlowMemory(f"{directory}/slow"), Context(name="viaduct0")
for descriptor in os.listdir("/proc/self/fd"):
    link = f"/proc/self/fd/{descriptor}"
    if os.path.islink(link) and "eventfd" in os.readlink(link):
        spoil(int(descriptor))
if name == "registers":
    memory.lose()
peer = Peer(memory.length, memory.address, context)
peer.connect(directory, name, other)
memory.lose()
if name == "sends":
    peer.post(e.IBV_WR_RDMA_WRITE, memory.length)
signal.pause()
"""


@pytest.mark.parametrize("what", ["registers", "sends", "is written to"])
def test_memory_that_never_comes(host, what):
    """Only the program's own thread waits. Its peer, other programs of its device and everybody else go on."""
    config = without_trust(host, "b1")
    with unharmed(host, host.a1, host.a2):
        peer = host.b2.python(WRITER if what == "is written to" else OWNER, host.meeting, "peer", what)
        slow = host.b1.python(SLOW, host.meeting, what, "peer")
        try:
            eventually(lambda: listed(host, "stuck")["b1"] == 1, "a program that stands still")
            meet(host.b1, host.b2, "ibv_rc_pingpong", "-g", "1", "-n", "100", "-c", "-e")
            meet(host.b2, host.b2, "ibv_rc_pingpong", "-g", "1", "-n", "100", "-c", "-e")
            for limit in (100, 200):
                config.entry("guest", "b1")["rdma_limits"] = {"qps": limit}
                host.apply(config)
                assert host.b1.shown()["limits"]["qps"] == limit
            assert listed(host, "stuck") == {"b1": 1, "b2": 0}, slow.describe()
        finally:
            slow.stop(signal.SIGKILL), peer.stop(signal.SIGKILL)
        host.b1.expect_free(), host.b2.expect_free()


# Sends from a file that it cut short after it was registered.
GONE = PEER + """
import ctypes, mmap, os
import pyverbs.enums as e
file = os.memfd_create("gone")
os.ftruncate(file, 65536)
memory = mmap.mmap(file, 65536)
peer = Peer(65536, ctypes.addressof(ctypes.c_char.from_buffer(memory)))
peer.connect(directory, name, other)
os.ftruncate(file, 0)
print("ended with", peer.post(e.IBV_WR_RDMA_WRITE, 65536), flush=True)
signal.pause()
"""


def test_memory_that_is_cut_off(host):
    """The send fails, and nothing else does."""
    without_trust(host, "b1")
    with unharmed(host, host.a1, host.a2):
        owner = host.b2.python(OWNER, host.meeting, "owner", "gone")
        gone = host.b1.python(GONE, host.meeting, "gone", "owner")
        try:
            gone.wait_for("ended with")
            assert "ended with 4" in gone.text(), gone.text()  # IBV_WC_LOC_PROT_ERR
            meet(host.b1, host.b2, "ibv_rc_pingpong", "-g", "1", "-n", "100", "-c", "-e")
            assert listed(host, "stuck") == {"b1": 0, "b2": 0}
        finally:
            gone.stop(signal.SIGKILL), owner.stop(signal.SIGKILL)
        host.b1.expect_free(), host.b2.expect_free()
