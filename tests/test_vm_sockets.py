"""Sockets at memory speed in virtual machines: unmodified programs in stock Debian kernels whose connections go by rings
in the window that the machines have in common, with each other and with a container. In each, an agent passes on what
programs offer."""

import itertools
import json
import signal

import pytest

from lab import eventually
from lab.host import REPOSITORY, binary
from lab.topology import host_config, tap, vhost
from lab.verbs_vm import VerbsVm

# The first test waits for the machines, which may be translated.
pytestmark = [
    pytest.mark.takes_long,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("sockets in machines"),
]

RINGS = REPOSITORY / "tests/rings"
EAGER = {"VIADUCT_SOCKETS_MODE": "eager"}
MEGABYTE = 1 << 20
PORTS = itertools.count(7000)
SOCKET = "/run/viaduct/sockets.sock"
LIBRARY = {"LD_PRELOAD": "verbs/libviaduct-sockets.so.1", "VIADUCT_SOCKETS": SOCKET}
# Runs a program that reads a line once there is a file.
PAUSED = 'until [ -e "$0" ]; do sleep 0.2; done | "$@"'


class World:
    """A host with two machines and a container that trust each other, and an agent in each machine."""

    def __init__(self, lab):
        trusting = {"rdma_trust": "job", "sockets": True}
        machine = lambda name: vhost(name, rdma=name, window_mb=64, **trusting)
        config = host_config("a", {name: machine(name) for name in ("a1", "a2")}, wire=False)
        place = {"network": "blue", "mac": "02:00:00:00:01:05", "addresses": ["10.1.1.5"], "label": 105}
        config.add("guest", name="c1", **place, **tap("c1"), rdma="c1", **trusting)
        self.host = lab.host(config)
        self.container = lab.container(self.host, "c1")
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

    def beside(self, words, user=None, **environment):
        """Starts a program of the container."""
        settings = [f"{key}={value}" for key, value in environment.items()]
        run = [binary("viaduct"), "--run-dir", self.host.run_dir, "run", "--guest", "c1", "--"]
        prefix = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"] if user else []
        return self.container.background(["env", *settings, *prefix, *run, *words], f"beside-{next(PORTS)}")

    def call_from_container(self, user=None):
        """Has a program of the container talk with one of a machine; returns how many connections were moved."""
        vm, port, before = self.vms[0], next(PORTS), self.sockets()["matched"]
        words = [port, "block", MEGABYTE, 2]
        server = self.start(vm, [RINGS / "talk.py", "serve", *words], **EAGER)
        eventually(lambda: vm.programs.listens(port), f"a listener: {server.describe()}")
        client = self.beside([RINGS / "talk.py", "call", vm.programs.address, *words], user, **EAGER)
        client.wait_for("done")
        server.wait(120)
        assert "done" in server.text(), server.describe()
        return self.sockets()["matched"] - before

    def sockets(self):
        return json.loads(self.host.call("--json", "sockets").stdout)

    def meet(self, program, *words, **options):
        """Runs both ends of a program of tests/rings; returns how many connections were moved."""
        (one, other), port, before = self.vms, next(PORTS), self.sockets()["matched"]
        server = self.start(other, [RINGS / program, "serve", port, *words], **options)
        eventually(lambda: other.programs.listens(port), f"a listener: {server.describe()}")
        client = self.start(one, [RINGS / program, "call", other.programs.address, port, *words], **options)
        for end in (client, server):
            end.wait(120)
        # Some end by a signal.
        done = all("done" in end.text() and "failed" not in end.text() for end in (client, server))
        assert done, f"{client.describe()}\n{server.describe()}"
        return self.sockets()["matched"] - before

    def talk(self, kind="block", count=2, length=MEGABYTE, **options):
        """Has both ends check every byte."""
        return self.meet("talk.py", kind, length, count, **options)

    def expect_moved(self, *kind, **options):
        """Has both ends check every byte until their connections are moved before their end, for which programs and
        agents must be quick."""
        eventually(lambda: self.talk(*kind, **{**EAGER, **options}) == 2, "connections are moved")

    def expect_clean(self):
        eventually(lambda: not self.sockets()["pairs"], "no pair is left")
        eventually(lambda: windows_are_clean(self), "nothing of the windows is used")


class Paused:
    """A connection in the middle of its bytes."""

    def __init__(self, world, length=4 * MEGABYTE):
        self.world, self.go, port = world, f"/tmp/go-{next(PORTS)}", next(PORTS)
        one, other = world.vms
        words = lambda *talk: ["sh", "-c", PAUSED, self.go, RINGS / "talk.py", *talk, port, "block", length, 1]
        self.ends = [world.start(other, words("serve"), PAUSE="1", **EAGER)]
        eventually(lambda: other.programs.listens(port), f"a listener: {self.ends[0].describe()}")
        self.ends.append(world.start(one, words("call", other.programs.address), PAUSE="1", **EAGER))

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
    world.expect_clean()


@pytest.fixture
def agents(world):
    world.start_agents()
    return world


def test_a_container_and_a_machine(agents):
    """They share a piece of the window, which is free after both have ended, however the container's program does. Users
    of the container who can't map the window stay with TCP."""
    eventually(lambda: agents.call_from_container() == 2, "connections are moved")
    agents.expect_clean()
    assert agents.call_from_container(user=65534) == 0
    vm, port = agents.vms[0], next(PORTS)
    server = agents.beside([RINGS / "talk.py", "serve", port, "block", 1 << 40, 1], **EAGER)
    server.wait_for("ready")
    client = agents.start(vm, [RINGS / "talk.py", "call", "10.1.1.5", port, "block", 1 << 40, 1], **EAGER)
    eventually(lambda: any(pair["sent"] > 0 for pair in agents.sockets()["pairs"]), "bytes go by rings")
    server.stop(signal.SIGKILL)
    client.wait(120)
    agents.expect_clean()


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["eager", "flap"])
@pytest.mark.parametrize("kind", ["block", "poll", "select", "epoll", "edge"])
def test_every_byte(agents, kind, mode):
    agents.expect_moved(kind, VIADUCT_SOCKETS_MODE=mode)
    agents.expect_clean()


@pytest.mark.nightly
@pytest.mark.parametrize("fate", ["fork", "execute", "rights", "killed", "unread", "halves", "again", "stream"])
def test_fates(agents, fate):
    assert agents.meet("fates.py", fate) == 1
    agents.expect_clean()


@pytest.mark.nightly
def test_a_user_without_the_window_stays_with_tcp(agents):
    before = agents.sockets()["offered"]
    assert agents.talk(user="65534", **EAGER) == 0
    assert agents.sockets()["offered"] == before


@pytest.mark.nightly
def test_an_agent_ends(agents):
    """Its programs go on by TCP, and by rings once it runs again. What they may have of the window waits for their end."""
    paused = Paused(agents)
    paused.expect_moved()
    agents.agents[agents.vms[0]].stop(signal.SIGKILL)
    eventually(lambda: paused.pair()["returned"], "the daemon asks for TCP")
    agents.start_agents()
    paused.finish()
    agents.expect_moved()
    expect_freed(agents)


@pytest.mark.nightly
def test_the_daemon_is_replaced(agents):
    paused = Paused(agents)
    paused.expect_moved()
    agents.host.replace()
    eventually(lambda: not agents.sockets()["pairs"], "the new daemon knows no pairs")
    paused.finish()
    agents.expect_moved()
    expect_freed(agents)


@pytest.mark.nightly
def test_a_rate_takes_the_window_away(agents):
    """Its guest has no window in common any more, and its connections return."""
    paused = Paused(agents)
    paused.expect_moved()
    entry = agents.host.config.entry("guest", "a1")
    entry["rate"] = {"mbps": 1000, "burst_kb": 1000}
    agents.host.apply(agents.host.config)
    eventually(lambda: not paused.pair() or paused.pair()["returned"], "the daemon asks for TCP")
    paused.finish()
    assert agents.talk(**EAGER) == 0
    del entry["rate"]
    agents.host.apply(agents.host.config)
    agents.expect_moved()


@pytest.mark.nightly
def test_a_machine_ends(agents):
    """Its peer's programs hear no more of it by the ring once its agent runs again, and then its memory is free."""
    paused = Paused(agents)
    paused.expect_moved()
    vm = agents.vms[1]
    vm.reboot()
    vm.boot()
    agents.start_agents()
    agents.expect_moved()
    # Or it is gone: the kernel there does not know it, and says so if it is asked.
    eventually(lambda: all(pair["returned"] for pair in agents.sockets()["pairs"]), "the connection returns")
    agents.vms[0].shell(f"touch /system{paused.go}")
    paused.ends[1].wait()
    assert "failed" in paused.ends[1].text()
    expect_freed(agents)


def expect_freed(world):
    """Programs tell, when they open the device, that others of their machine have ended."""
    for vm in world.vms:
        vm.programs.run(["ibv_devinfo"])
    world.expect_clean()
