"""Sockets at memory speed between hosts: connections of two containers whose daemons carry the bytes by RoCE."""

import itertools
import json
import os
import time
from pathlib import Path

import pytest

from lab import eventually
from lab.host import binaries
from lab.topology import SEATS, host_config, tap, tunnel_routes

pytestmark = pytest.mark.alone

RINGS = Path(__file__).parent / "rings"
B1 = SEATS["b1"]
PORTS = itertools.count(6000)
NAMES = itertools.count()
MEGABYTE = 1 << 20


class World:
    """Two hosts with a container each."""

    def __init__(self, lab, **keys):
        self.hosts, self.containers = {}, {}
        for name, guest, other in (("a", "a1", "b1"), ("b", "b1", "a1")):
            lab.plug(name, mtu=9000)
            config = host_config(name, {guest: {**tap(guest), "sockets": True, "rdma": guest, **keys}})
            tunnel_routes(config, "mpls-over-udp", other)
            self.hosts[name] = lab.host(config)
            self.containers[name] = lab.container(self.hosts[name], guest)

    def words(self, name, command, mode=None, **environment):
        if mode:
            environment["VIADUCT_SOCKETS_MODE"] = mode
        environment["VIADUCT_SOCKETS_HOSTS"] = "on"
        variables = [f"{key}={value}" for key, value in environment.items()]
        viaduct = [binaries() / "viaduct", "--run-dir", self.hosts[name].run_dir, "run"]
        return ["env", *variables, *viaduct, "--guest", self.containers[name].name, "--", *command]

    def start(self, name, command, ready="ready", **options):
        program = self.containers[name].background(self.words(name, command, **options), f"program{next(NAMES)}")
        program.wait_for(ready)
        return program

    def run(self, name, command, **options):
        return self.containers[name].run(self.words(name, command, **options), timeout=120).stdout

    def sockets(self, name="a"):
        return json.loads(self.hosts[name].call("--json", "sockets").stdout)

    def talk(self, kind="block", length=2 * MEGABYTE, count=2, **options):
        """Runs both ends; returns what the first daemon counted meanwhile."""
        port, before = next(PORTS), self.sockets()["matched"]
        server = self.start("b", [RINGS / "talk.py", "serve", port, kind, length, count], **options)
        self.run("a", [RINGS / "talk.py", "call", B1.address, port, kind, length, count], **options)
        server.wait_for("done")
        return self.sockets()["matched"] - before


@pytest.fixture(scope="module")
def world(shared_lab):
    return World(shared_lab)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("block", "eager"), ("poll", "eager"), ("edge", "eager"), ("block", "flap"), ("epoll", "flap"), ("epoll", None)],
)
def test_every_byte(world, kind, mode):
    """Both directions at once, and switching to and fro."""
    matched = world.talk(kind, mode=mode)
    assert matched == 2 if mode else matched <= 2


def test_streams_go_by_rings_and_short_messages_by_tcp(world):
    port, go = next(PORTS), world.hosts["a"].run_dir / "go"
    os.mkfifo(go)
    server = world.start("b", [RINGS / "turns.py", "serve", port])
    program = world.start("a", [RINGS / "turns.py", "call", B1.address, port, go], "short")
    eventually(lambda: len(world.sockets()["pairs"]) == 1, "the connection is matched")
    ways = []
    for part in ("stream", "again", "done"):
        ways.append(world.sockets()["pairs"][0]["sends"])
        go.write_bytes(b"go")
        program.wait_for(part)
    assert ways == ["tcp", "ring", "tcp"]
    server.stop()


def test_one_end_without_the_library(world):
    """It stays TCP, and works."""
    port, before = next(PORTS), world.sockets()["matched"]
    server = world.start("b", [RINGS / "talk.py", "serve", port, "block", MEGABYTE, 2])
    world.containers["a"].run([RINGS / "talk.py", "call", B1.address, port, "block", MEGABYTE, 2], timeout=120)
    server.wait_for("done")
    assert world.sockets()["matched"] == before


def test_a_library_that_does_not_carry_stays_with_tcp(world):
    port, doors = next(PORTS), RINGS / "doors.py"
    world.start("b", [doors, "serve", port], mode="eager")
    daemon = world.hosts["a"].run_dir / "sockets/a1"
    world.containers["a"].run([doors, "refused", B1.address, port, daemon], timeout=60)


@pytest.mark.nightly
@pytest.mark.parametrize("fate", ["fork", "execute", "killed", "unread", "halves", "stream"])
def test_fates(world, fate):
    port = next(PORTS)
    server = world.start("b", [RINGS / "fates.py", "serve", port, fate], mode="eager")
    before = world.sockets()["matched"]
    world.run("a", [RINGS / "fates.py", "call", B1.address, port, fate], mode="eager")
    server.wait_for("done")
    assert world.sockets()["matched"] == before + 1


class Paused:
    """A connection in the middle of its bytes."""

    def __init__(self, world, length=8 * MEGABYTE):
        self.world, self.port = world, next(PORTS)
        port = self.port
        self.go = world.hosts["a"].run_dir / f"go-{port}"
        self.ends = []
        for name, words in (("b", ("serve", port)), ("a", ("call", B1.address, port))):
            command = ["sh", "-c", 'while [ ! -e "$0" ]; do sleep 0.1; done | "$@"', self.go]
            command += [str(word) for word in (RINGS / "talk.py", *words, "block", length, 1)]
            words = world.words(name, command, "eager", PAUSE=1)
            self.ends.append(world.containers[name].background(words, f"end{next(NAMES)}"))
            if name == "b":
                self.ends[0].wait_for("ready")

    def pair(self):
        pairs = self.world.sockets()["pairs"]
        return pairs[0] if len(pairs) == 1 else None

    def moved(self):
        pair = self.pair()
        return bool(pair) and pair["sends"] == pair["receives"] == "ring" and pair["sent"] > 0

    def finish(self):
        self.go.touch()
        for end in self.ends:
            end.wait_for("done")


def test_a_rate_returns_it_to_tcp(lab):
    """A guest that gets a rate has its connections by the workers from then on, and no byte is lost."""
    world = World(lab)
    paused = Paused(world)
    eventually(paused.moved, "the connection is moved")
    host = world.hosts["a"]
    host.config.entry("guest", "a1")["rate"] = {"mbps": 1000, "burst_kb": 1000}
    host.apply(host.config)
    eventually(lambda: paused.pair()["returned"], "the daemon asks for TCP")
    paused.finish()


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_replaced_daemon_returns_it_to_tcp(lab, name):
    """Both hosts' programs return before the daemon is replaced, and no byte is lost, whoever called whom."""
    world = World(lab)
    paused = Paused(world)
    eventually(paused.moved, "the connection is moved")
    world.hosts[name].replace()
    paused.finish()
    assert world.talk(mode="eager") == 2


@pytest.mark.nightly
def test_a_line_that_fails_is_made_again(lab):
    """Bytes of both directions are under way meanwhile."""
    world = World(lab)
    paused = Paused(world, 96 * MEGABYTE)
    eventually(paused.moved, "the connection is moved")
    paused.go.touch()
    fabric = lab.namespace("fabric")
    # Queue pairs give up within a second.
    fabric.ip("link set a-up0 nomaster")
    time.sleep(3)
    assert not paused.pair()["returned"]
    fabric.ip("link set a-up0 master br0")
    paused.finish()


@pytest.mark.nightly
def test_a_rule_that_forbids_it_resets_it(lab):
    world = World(lab)
    paused = Paused(world)
    eventually(paused.moved, "the connection is moved")
    host = world.hosts["a"]
    host.config.rule("blue", 10, "reject", protocol="tcp", ports=str(paused.port))
    host.apply(host.config)
    paused.go.touch()
    for end in paused.ends:
        eventually(lambda end=end: "failed" in end.text(), "the program hears of it")


@pytest.mark.nightly
def test_a_killed_daemon_resets_it(lab):
    """Nobody knows then what has arrived. The other program hears of it when it sends; new connections work."""
    world = World(lab)
    paused = Paused(world)
    eventually(paused.moved, "the connection is moved")
    world.hosts["b"].kill()
    paused.ends[0].wait_for("failed: ")
    world.hosts["b"].start()
    paused.go.touch()
    paused.ends[1].wait_for("failed: ")
    assert world.talk(mode="eager") == 2


@pytest.mark.nightly
def test_redis(world):
    port = next(PORTS)
    command = ["redis-server", "--port", port, "--bind", "0.0.0.0", "--save", "", "--protected-mode", "no"]
    world.start("b", command, "eady to accept")
    before = world.sockets()["matched"]
    words = ["redis-benchmark", "-h", B1.address, "-p", port, "-n", 20000, "-c", 20, "-t", "set,get", "--csv"]
    assert world.run("a", words).count('"') > 4
    assert world.sockets()["matched"] >= before + 20
