"""Sockets at memory speed between hosts, for a virtual machine: connections of its unmodified programs with those of a
container on another host, whose daemons carry the bytes by RoCE. An agent passes bells on."""

import itertools
import json
import signal

import pytest

from lab import eventually
from lab.host import REPOSITORY, binary
from lab.topology import SEATS, host_config, tap, tunnel_routes, vhost
from lab.verbs_vm import VerbsVm

pytestmark = [
    pytest.mark.takes_long,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("sockets in machines between hosts"),
]

RINGS = REPOSITORY / "tests/rings"
MEGABYTE = 1 << 20
PORTS = itertools.count(8000)
SOCKET = "/run/viaduct/sockets.sock"
B1 = SEATS["b1"]


class World:
    """A machine with an agent on host a, a container on host b."""

    def __init__(self, lab):
        self.hosts = {}
        machine = vhost("a1", rdma="a1", window_mb=64, rdma_trust="job", sockets=True)
        container = {**tap("b1"), "rdma": "b1", "sockets": True}
        for name, guest, keys, other in (("a", "a1", machine, "b1"), ("b", "b1", container, "a1")):
            lab.plug(name, mtu=9000)
            config = host_config(name, {guest: keys})
            tunnel_routes(config, "mpls-over-udp", other)
            self.hosts[name] = lab.host(config)
        self.container = lab.container(self.hosts["b"], "b1")
        self.vm = lab.vm(self.hosts["a"], "a1", VerbsVm)
        self.vm.boot()
        self.agent = None
        self.start_agent()

    def start_agent(self):
        if not self.agent or not self.agent.running():
            self.agent = self.vm.programs.start([binary("viaduct-agent")])
            self.vm.shell(f"until [ -S /system{SOCKET} ]; do sleep 0.1; done")

    def inside(self, words, mode="eager", **environment):
        """Starts a program of the machine."""
        preload = {"LD_PRELOAD": binary("verbs/libviaduct-sockets.so.1"), "VIADUCT_SOCKETS": SOCKET}
        modes = {"VIADUCT_SOCKETS_HOSTS": "on", "VIADUCT_SOCKETS_MODE": mode}
        return self.vm.programs.start(words, **preload, **modes, **environment)

    def outside(self, words, mode="eager", **environment):
        """Starts a program of the container."""
        settings = {"VIADUCT_SOCKETS_HOSTS": "on", "VIADUCT_SOCKETS_MODE": mode, **environment}
        settings = [f"{key}={value}" for key, value in settings.items()]
        run = [binary("viaduct"), "--run-dir", self.hosts["b"].run_dir, "run", "--guest", "b1", "--"]
        return self.container.background(["env", *settings, *run, *words], f"outside-{next(PORTS)}")

    def sockets(self):
        return json.loads(self.hosts["a"].call("--json", "sockets").stdout)

    def pair(self):
        pairs = self.sockets()["pairs"]
        return pairs[0] if len(pairs) == 1 else None

    def meet(self, program, *words, calls_out=True, **options):
        """Runs both ends of a program of tests/rings, of which the machine's calls, or is called. Returns both."""
        port = next(PORTS)
        serve, call = [RINGS / program, "serve", port, *words], [RINGS / program, "call"]
        if calls_out:
            other = self.outside(serve, **options)
            other.wait_for("ready")
            return self.inside([*call, B1.address, port, *words], **options), other
        own = self.inside(serve, **options)
        eventually(lambda: self.vm.programs.listens(port), f"a listener: {own.describe()}")
        return own, self.outside([*call, self.vm.programs.address, port, *words], **options)

    def talk(self, program="talk.py", *words, **options):
        """Has both ends check every byte. Returns how many connections were moved."""
        before = self.sockets()["matched"]
        own, other = self.meet(program, *words, **options)
        other.wait_for("done")
        own.wait(120)
        assert "done" in own.text() and "failed" not in own.text(), own.describe()
        return self.sockets()["matched"] - before

    def expect_clean(self):
        eventually(lambda: not self.sockets()["pairs"], "no pair is left")
        # Programs tell, when they open the device, that others of their machine have ended.
        self.vm.programs.run(["ibv_devinfo"])
        used = lambda window: window["users"] or window["left_bytes"]
        eventually(
            lambda: not any(map(used, self.hosts["a"].viaduct("rdma", "windows"))), "nothing of the window is used"
        )


@pytest.fixture(scope="module")
def built(shared_lab):
    return World(shared_lab)


@pytest.fixture
def world(built):
    built.start_agent()
    return built


def nightly(*values):
    return pytest.param(*values, marks=pytest.mark.nightly)


@pytest.mark.parametrize(
    ("kind", "mode", "calls_out"),
    [
        ("block", "eager", True),
        ("edge", "flap", False),
        nightly("block", "eager", False),
        nightly("epoll", "eager", True),
        nightly("epoll", "eager", False),
        nightly("edge", "flap", True),
    ],
)
def test_every_byte(world, kind, mode, calls_out):
    moved = lambda: world.talk("talk.py", kind, MEGABYTE, 2, mode=mode, calls_out=calls_out)
    eventually(lambda: moved() == 2, "connections are moved before their end")
    world.expect_clean()


@pytest.mark.nightly
@pytest.mark.parametrize("fate", ["fork", "execute", "killed", "halves", "stream"])
def test_fates(world, fate):
    assert world.talk("fates.py", fate) == 1
    world.expect_clean()


def paused(world):
    """Returns both ends of a moved connection, and what lets them go on."""
    go = f"/tmp/go-{next(PORTS)}"
    port, words = next(PORTS), ["block", 4 * MEGABYTE, 1]
    script = ["sh", "-c", f'until [ -e {go} ]; do sleep 0.2; done | "$@"', "paused", RINGS / "talk.py"]
    other = world.outside([*script, "serve", port, *words], PAUSE="1")
    other.wait_for("ready")
    own = world.inside([*script, "call", B1.address, port, *words], PAUSE="1")

    def is_moved():
        pair = world.pair()
        return bool(pair) and pair["sends"] == pair["receives"] == "ring" and pair["sent"] > 0

    eventually(is_moved, "the connection is moved", 60)

    def let_go():
        world.vm.shell(f"touch /system{go}")
        world.container.run(["touch", go])

    return own, other, let_go


def test_a_replaced_daemon_returns_it_to_tcp(world):
    own, other, let_go = paused(world)
    world.hosts["a"].replace()
    let_go()
    other.wait_for("done")
    assert own.wait(120) == 0, own.describe()
    world.expect_clean()


def test_an_agent_that_ends_resets_it(world):
    """Nobody knows what has arrived. New connections are moved once it runs again."""
    own, other, let_go = paused(world)
    world.agent.stop(signal.SIGKILL)
    world.start_agent()
    let_go()
    own.wait(120)
    assert "failed" in own.text(), own.describe()
    eventually(lambda: "failed" in other.text(), "the other program hears of it")
    eventually(lambda: world.talk("talk.py", "block", MEGABYTE, 1) == 1, "a connection is moved")
    world.expect_clean()
