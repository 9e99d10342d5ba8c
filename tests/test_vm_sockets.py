"""Sockets at memory speed in virtual machines: unmodified programs in stock Debian kernels whose connections go by rings
in the window that the machines have in common. In each, an agent passes on what programs offer."""

import itertools
import json

import pytest

from lab import eventually
from lab.host import REPOSITORY, binary
from lab.topology import host_config, vhost
from lab.verbs_vm import VerbsVm

# The first test waits for the machines, which may be translated.
pytestmark = [
    pytest.mark.takes_long,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("sockets in machines"),
]

TALK = REPOSITORY / "tests/rings/talk.py"
MEGABYTE = 1 << 20
PORTS = itertools.count(7000)
SOCKET = "/run/viaduct/sockets.sock"
LIBRARY = {"LD_PRELOAD": "verbs/libviaduct-sockets.so.1", "VIADUCT_SOCKETS": SOCKET}
# Runs a program that reads a line once there is a file.
PAUSED = 'until [ -e "$0" ]; do sleep 0.2; done | "$@"'


class World:
    """A host with two machines that trust each other, and an agent in each."""

    def __init__(self, lab):
        shared = {"window_mb": 64, "rdma_trust": "job", "sockets": True}
        config = host_config("a", {name: vhost(name, rdma=name, **shared) for name in ("a1", "a2")}, wire=False)
        self.host = lab.host(config)
        self.vms = [lab.vm(self.host, name, VerbsVm) for name in ("a1", "a2")]
        for vm in self.vms:
            vm.boot()
        self.vms[0].expect_ping(self.vms[1].programs.address, 1)
        self.agents = {}

    def start_agents(self):
        for vm in self.vms:
            if vm not in self.agents or not self.agents[vm].running():
                self.agents[vm] = vm.programs.start([binary("viaduct-agent")])
                vm.shell(f"until [ -S /system{SOCKET} ]; do sleep 0.1; done")

    def start(self, vm, words, user=None, **environment):
        environment = {**LIBRARY, "LD_PRELOAD": binary(LIBRARY["LD_PRELOAD"]), **environment}
        prefix = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"] if user else []
        return vm.programs.start([*prefix, *words], **environment)

    def sockets(self):
        return json.loads(self.host.call("--json", "sockets").stdout)

    def talk(self, count=2, length=MEGABYTE, **options):
        """Runs both ends, which check every byte; returns how many connections were moved."""
        (one, other), port, before = self.vms, next(PORTS), self.sockets()["matched"]
        server = self.start(other, [TALK, "serve", port, "block", length, count], **options)
        eventually(lambda: other.programs.listens(port), f"a listener: {server.describe()}")
        client = self.start(one, [TALK, "call", other.programs.address, port, "block", length, count], **options)
        for end in (client, server):
            assert end.wait(120) == 0, f"{client.describe()}\n{server.describe()}"
        return self.sockets()["matched"] - before


class Paused:
    """A connection in the middle of its bytes."""

    def __init__(self, world, length=4 * MEGABYTE):
        self.world, self.go, port = world, f"/tmp/go-{next(PORTS)}", next(PORTS)
        one, other = world.vms
        words = lambda *talk: ["sh", "-c", PAUSED, self.go, TALK, *talk, port, "block", length, 1]
        self.ends = [world.start(other, words("serve"), PAUSE="1", VIADUCT_SOCKETS_MODE="eager")]
        eventually(lambda: other.programs.listens(port), f"a listener: {self.ends[0].describe()}")
        self.ends.append(world.start(one, words("call", other.programs.address), PAUSE="1", VIADUCT_SOCKETS_MODE="eager"))

    def pair(self):
        pairs = self.world.sockets()["pairs"]
        return pairs[0] if len(pairs) == 1 else None

    def moves(self):
        pair = self.pair()
        return bool(pair) and pair["sends"] == pair["receives"] == "ring" and pair["sent"] > 0

    def expect_moved(self):
        eventually(self.moves, "the connection is moved", 60)

    def finish(self):
        for vm in self.world.vms:
            vm.shell(f"touch /system{self.go}")
        for end in self.ends:
            assert end.wait(120) == 0, "\n".join(end.describe() for end in self.ends)


@pytest.fixture(scope="module")
def world(shared_lab):
    return World(shared_lab)


def windows_are_clean(world):
    windows = world.host.viaduct("rdma", "windows")
    return not any(window["users"] or window["left_bytes"] for window in windows)


def test_connections_are_moved_and_return(world):
    """Without agents they are TCP. With them they go by rings, and return for a capture in mid-stream. Then nothing is
    left in the window."""
    assert world.talk(count=1) == 0
    world.start_agents()
    paused = Paused(world)
    paused.expect_moved()
    capture = world.host.background("capture", "--guest", "a1")
    eventually(lambda: paused.pair()["returned"], "the daemon asks for TCP")
    paused.finish()
    capture.stop()
    eventually(lambda: not world.sockets()["pairs"], "no pair is left")
    eventually(lambda: windows_are_clean(world), "nothing of the windows is used")
