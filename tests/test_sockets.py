"""Sockets at memory speed: unmodified programs of two containers whose connections go by rings in common memory."""

import itertools
import json
import os
import signal
import time
from pathlib import Path

import pytest

from lab import eventually
from lab.host import binaries
from lab.shell import run
from lab.topology import SEATS, host_config, tap

# Connections are matched in time only if both programs get a CPU.
pytestmark = pytest.mark.alone

RINGS = Path(__file__).parent / "rings"
A1, A2 = SEATS["a1"], SEATS["a2"]
KINDS = ["block", "poll", "select", "epoll", "edge"]
FATES = ["fork", "execute", "rights", "late", "killed", "unread", "closed", "polled", "halves", "again", "stream"]
PORTS = itertools.count(6000)
NAMES = itertools.count()
MEGABYTE = 1 << 20


class World:
    """A host with two containers, a1 and a2, whose programs may share memory."""

    def __init__(self, lab, trust="t", rules=(), metrics=None, extend=lambda config: None, **keys):
        sockets = {"sockets": True, "rdma_trust": trust} if trust else {"sockets": True}
        config = host_config("a", {guest: {**tap(guest), **sockets, **keys} for guest in ("a1", "a2")}, wire=False)
        if metrics:
            config.host["metrics"] = metrics
        for priority, action, matches in rules:
            config.rule("blue", priority, action, **matches)
        extend(config)
        self.host = lab.host(config)
        self.a1, self.a2 = (lab.container(self.host, guest) for guest in ("a1", "a2"))

    def words(self, container, command, mode=None, **environment):
        """Returns the command line of a program with the library."""
        if mode:
            environment["VIADUCT_SOCKETS_MODE"] = mode
        variables = [f"{key}={value}" for key, value in environment.items()]
        viaduct = [binaries() / "viaduct", "--run-dir", self.host.run_dir, "run", "--guest", container.name, "--"]
        return ["env", *variables, *viaduct, *command]

    def start(self, container, command, ready="ready", **options):
        program = container.background(self.words(container, command, **options), f"server{next(NAMES)}")
        program.wait_for(ready)
        return program

    def run(self, container, command, timeout=120, **options):
        return container.run(self.words(container, command, **options), timeout=timeout).stdout

    def sockets(self):
        return json.loads(self.host.call("--json", "sockets").stdout)

    def guests(self):
        return json.loads(self.host.call("--json", "sockets", "--guests").stdout)

    def talk(self, kind="block", length=4 * MEGABYTE, count=2, address=A2.address, **options):
        """Runs both ends; returns what the daemon counted meanwhile."""
        port, before = next(PORTS), self.sockets()["matched"]
        server = self.start(self.a2, [RINGS / "talk.py", "serve", port, kind, length, count], **options)
        self.run(self.a1, [RINGS / "talk.py", "call", address, port, kind, length, count], **options)
        server.wait_for("done")
        return self.sockets()["matched"] - before


@pytest.fixture(scope="module")
def world(shared_lab):
    return World(shared_lab)


@pytest.mark.parametrize("mode", [None, "eager", "flap"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_byte(world, kind, mode):
    """Both directions at once, in every way to wait, and switching to and fro."""
    matched = world.talk(kind, mode=mode)
    # Otherwise a connection may end before it is offered at both ends.
    assert matched == 2 if mode else matched <= 2


def differ(world, mode, seed, seconds):
    """Makes random calls at both ends, which must do what the model allows. Returns the connections that were moved."""
    port, control = next(PORTS), world.host.run_dir / f"differ-{next(NAMES)}"
    words = lambda container, *more: world.words(container, more, mode) if mode else more
    before, program = world.sockets()["matched"], RINGS / "differ.py"
    serve = words(world.a2, program, "serve", port, control)
    server = world.a2.background(serve, f"server{next(NAMES)}")
    server.wait_for("ready")
    call = words(world.a1, program, "call", A2.address, port, control, seed, seconds)
    world.a1.run(call, timeout=60 + seconds)
    server.wait_for("done")
    return world.sockets()["matched"] - before


@pytest.mark.parametrize("mode", [None, "eager", "flap"])
def test_random_calls(world, mode):
    """On the kernel's TCP, so that the model is right, then by rings, and switching to and fro."""
    assert (differ(world, mode, 1, 3) > 0) == bool(mode)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["eager", "flap"])
@pytest.mark.parametrize("seed", range(2, 5))
def test_more_random_calls(world, mode, seed):
    differ(world, mode, seed, 30)


@pytest.mark.parametrize("fate", FATES)
def test_fates(world, fate):
    """A connection that has been moved is forked with, given away, or loses its program."""
    port = next(PORTS)
    server = world.start(world.a2, [RINGS / "fates.py", "serve", port, fate])
    before = world.sockets()["matched"]
    world.run(world.a1, [RINGS / "fates.py", "call", A2.address, port, fate])
    server.wait_for("done")
    assert world.sockets()["matched"] == before + 1


def test_a_hostile_peer_disturbs_nobody_else(world):
    """It misuses the memory and the bells that it shares with a server, which serves others all the same."""
    port, end, before = next(PORTS), world.host.run_dir / f"end-{next(NAMES)}", world.sockets()["matched"]
    doors = RINGS / "doors.py"
    world.start(world.a2, [doors, "serve", port], mode="eager")
    attack = [doors, "attack", A2.address, port, world.host.run_dir / "sockets/a1", end]
    attacker = world.a1.background(attack, f"attacker{next(NAMES)}")
    attacker.wait_for("ready")
    world.run(world.a1, [doors, "call", A2.address, port], mode="eager")
    end.touch()
    attacker.wait_for("done")
    assert world.sockets()["matched"] == before + 2


def test_a_fork_sees_no_later_connections(world):
    """And it unmaps nothing but files, also if the parent is just unmapping some."""
    port, doors = next(PORTS), RINGS / "doors.py"
    world.start(world.a2, [doors, "serve", port], mode="eager")
    world.run(world.a1, [doors, "fork", A2.address, port], mode="eager")
    world.run(world.a1, [doors, "forks", A2.address, port], mode="eager")


def test_a_closed_connection_is_in_no_set(world):
    """Not even while the daemon still has the socket that was offered to it."""
    daemon = world.host.daemon.process
    daemon.send_signal(signal.SIGSTOP)
    try:
        assert "done" in world.run(world.a2, [RINGS / "doors.py", "closed"])
    finally:
        daemon.send_signal(signal.SIGCONT)


def test_one_end_without_the_library(world):
    """It stays TCP, and works."""
    port = next(PORTS)
    server = world.start(world.a2, [RINGS / "talk.py", "serve", port, "block", MEGABYTE, 2])
    before = world.sockets()["matched"]
    world.a1.run([RINGS / "talk.py", "call", A2.address, port, "block", MEGABYTE, 2], timeout=120)
    server.wait_for("done")
    assert world.sockets()["matched"] == before


def test_off(world):
    port = next(PORTS)
    words = ["env", "VIADUCT_SOCKETS=off", binaries() / "viaduct", "run", "--"]
    talk = [*words, RINGS / "talk.py", "serve", port, "block", MEGABYTE, 1]
    server = world.a2.background(talk, f"server{next(NAMES)}")
    server.wait_for("ready")
    before = world.sockets()["offered"]
    world.a1.run([*words, RINGS / "talk.py", "call", A2.address, port, "block", MEGABYTE, 1], timeout=120)
    assert world.sockets()["offered"] == before


class Paused:
    """A connection in the middle of its bytes."""

    def __init__(self, world, kind="block"):
        self.world, port = world, next(PORTS)
        serve, call = ("serve", port), ("call", A2.address, port)
        self.ends = []
        for container, words in ((world.a2, serve), (world.a1, call)):
            command = ["sh", "-c", 'while [ ! -e "$0" ]; do sleep 0.1; done | "$@"', self.go]
            command += [str(word) for word in (RINGS / "talk.py", *words, kind, 8 * MEGABYTE, 1)]
            self.ends.append(container.background(world.words(container, command, "eager", PAUSE=1), f"end{next(NAMES)}"))
            if words is serve:
                self.ends[0].wait_for("ready")

    @property
    def go(self):
        return self.world.host.run_dir / f"go-{id(self)}"

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
    world.host.config.entry("guest", "a1")["rate"] = {"mbps": 1000, "burst_kb": 1000}
    world.host.apply(world.host.config)
    eventually(lambda: paused.pair()["returned"], "the daemon asks for TCP")
    paused.finish()


def test_the_daemons_end_returns_it_to_tcp(lab):
    """Nobody judges by the rules without a daemon. The connection outlives two of them."""
    world = World(lab)
    paused = Paused(world)
    eventually(paused.moved, "the connection is moved")
    world.host.replace()
    eventually(lambda: not world.sockets()["pairs"], "the new daemon knows no pairs")
    paused.finish()
    eventually(lambda: all(not guest.get("problem") for guest in world.sockets()["guests"]), "the sockets are open")
    assert world.talk(mode="eager") == 2


def test_a_peer_that_does_not_return_is_cut_off(lab):
    """A rule that forbids rings holds two seconds later, whatever one of the programs does."""
    world = World(lab)
    paused = Paused(world)
    eventually(paused.moved, "the connection is moved")
    os.kill(paused.pair()["peer_pid"], signal.SIGSTOP)
    world.host.config.entry("guest", "a1")["rate"] = {"mbps": 1000, "burst_kb": 1000}
    world.host.apply(world.host.config)
    eventually(lambda: any("failed" in end.text() for end in paused.ends), "the program hears of it")
    assert any("ConnectionResetError" in end.text() for end in paused.ends)


def test_a_program_that_was_stopped_loses_nothing_by_the_daemons_end(lab):
    """Nobody forbids anything then: as long as its peer is quiet, a program waits for it."""
    world = World(lab)
    paused = Paused(world)
    eventually(paused.moved, "the connection is moved")
    stopped = paused.pair()["peer_pid"]
    os.kill(stopped, signal.SIGSTOP)
    world.host.replace()
    eventually(lambda: any(guest["programs"] for guest in world.guests()), "the other program has a daemon again")
    time.sleep(3)
    os.kill(stopped, signal.SIGCONT)
    paused.finish()


@pytest.mark.parametrize("keys", [{"trust": None}, {"rate": {"mbps": 1000, "burst_kb": 1000}}], ids=["trust", "rate"])
def test_where_memory_is_not_allowed(lab, keys):
    world = World(lab, **keys)
    assert world.talk() == 0
    assert world.sockets()["refused"] > 0


def test_floating_addresses(lab):
    """A connection between floating addresses of two guests is recognised. One from outside the host stays with TCP."""

    def extend(config):
        config.add("wire", name="ext0", driver="af-packet", device="ext0")
        config.add("network", name="public", vrf=3, gateways=["203.0.113.254/24"], wire="ext0")
        config.add("route", network="blue", prefix="0.0.0.0/0", to={"network": "public"})
        for guest, outside in ((A1, "203.0.113.7"), (A2, "203.0.113.8")):
            config.add("nat", network="blue", inside=guest.address, outside=outside, outside_network="public")

    lab.plug("a", "ext0", mtu=1500, fabric="outside")
    outside = lab.plug("c", "ext0", mtu=1500, fabric="outside")
    outside.ip("addr add 203.0.113.1/24 dev ext0")
    world = World(lab, extend=extend)
    assert world.talk(mode="flap", address="203.0.113.8") == 2
    assert world.talk(mode="eager") == 2
    port, before = next(PORTS), world.sockets()
    server = world.start(world.a2, [RINGS / "talk.py", "serve", port, "block", MEGABYTE, 1])
    outside.run([RINGS / "talk.py", "call", "203.0.113.8", port, "block", MEGABYTE, 1], timeout=120)
    server.wait_for("done")
    after = world.sockets()
    assert after["matched"] == before["matched"] and after["refused"] > before["refused"]


def test_metrics(lab):
    """Prometheus sees what there is, by the names that the documentation lists."""
    world = World(lab, metrics="127.0.0.1:9101")
    paused = Paused(world)
    eventually(paused.moved, "the connection is moved")
    text = lambda: world.host.namespace.run(["curl", "-s", "http://127.0.0.1:9101/metrics"]).stdout
    assert 'viaduct_sockets_connections{way="ring"} 1\n' in text()
    world.host.config.entry("guest", "a1")["rate"] = {"mbps": 1000, "burst_kb": 1000}
    world.host.apply(world.host.config)
    eventually(lambda: 'viaduct_sockets_returns_total{reason="tables"} 1\n' in text(), "the return is counted")
    eventually(lambda: 'viaduct_sockets_connections{way="tcp"} 1\n' in text(), "it is TCP")
    paused.finish()
    assert world.talk() == 0
    assert 'viaduct_sockets_refused_total{reason="not_allowed"}' in text()
    page = (Path(__file__).parent.parent / "docs/watch.md").read_text()
    names = {line.split("{")[0].split()[0] for line in text().splitlines() if line.startswith("viaduct_sockets_")}
    assert len(names) == 7 and all(f"`{name}`" in page for name in names), names


def test_flows_live_and_count(lab):
    """The connection's entry counts what goes by the ring."""
    world = World(lab)
    paused = Paused(world)
    eventually(paused.moved, "the connection is moved")
    flows = lambda: world.host.viaduct("flow")
    counted = lambda: any(flow.get("bytes", 0) + flow.get("reply_bytes", 0) > MEGABYTE for flow in flows())
    eventually(counted, "the flow has counted")
    paused.finish()


@pytest.mark.nightly
def test_killed_programs(world):
    """A program that is killed at any time ends its connections, as with TCP, and takes nothing with it."""
    for kind in KINDS:
        port = next(PORTS)
        server = world.start(world.a2, [RINGS / "talk.py", "serve", port, kind, 1 << 40, 4], mode="flap")
        call = [RINGS / "talk.py", "call", A2.address, port, kind, 1 << 40, 4]
        client = world.a1.background(world.words(world.a1, call, mode="flap"), f"client{next(NAMES)}")
        eventually(lambda: len(world.sockets()["pairs"]) == 4, "four pairs")
        server.stop(signal.SIGKILL)
        client.wait_for("failed")
    eventually(lambda: not world.sockets()["pairs"], "all pairs are gone")


def test_the_librarys_thread_sleeps(world):
    """Between messages of the daemon the library's thread is in a call of ppoll without a time."""
    paused = Paused(world)
    eventually(paused.moved, "the connection is moved")
    pair = paused.pair()
    for pid in (pair["pid"], pair["peer_pid"]):
        calls = lambda pid=pid: [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/syscall")]
        # The number of ppoll on x86-64, on others.
        sleeps = lambda calls=calls: any(call[0] in ("271", "73") and call[3] == "0x0" for call in calls())
        eventually(sleeps, "the thread sleeps")
    paused.finish()


def test_loopback_within_a_container(world):
    port = next(PORTS)
    before = world.sockets()["matched"]
    server = world.start(world.a2, [RINGS / "talk.py", "serve", port, "epoll", MEGABYTE, 2], mode="eager")
    world.run(world.a2, [RINGS / "talk.py", "call", "127.0.0.1", port, "epoll", MEGABYTE, 2], mode="eager")
    server.wait_for("done")
    assert world.sockets()["matched"] == before + 2


def test_iperf3(world):
    port = next(PORTS)
    world.start(world.a2, ["iperf3", "-s", "-1", "-p", port, "--forceflush"], "listening")
    before = world.sockets()["matched"]
    world.run(world.a1, ["iperf3", "-c", A2.address, "-p", port, "-t", "1"])
    assert world.sockets()["matched"] > before


def test_redis(world):
    port = next(PORTS)
    command = ["redis-server", "--port", port, "--bind", "0.0.0.0", "--save", "", "--protected-mode", "no"]
    world.start(world.a2, command, "eady to accept")
    before = world.sockets()["matched"]
    said = world.run(
        world.a1, ["redis-benchmark", "-h", A2.address, "-p", port, "-n", 20000, "-c", 20, "-t", "set,get", "--csv"]
    )
    assert said.count('"') > 4
    assert world.sockets()["matched"] >= before + 20


NGINX = """user root; daemon off; worker_processes 2; pid {dir}/nginx.pid; error_log {dir}/error.log;
events {{ worker_connections 256; }}
http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000;
  server {{ listen {port}; location / {{ root {dir}/www; }} }} }}
"""


def test_nginx(world, tmp_path):
    """Two workers, edge-triggered, with sendfile; each file is compared."""
    port, www = next(PORTS), tmp_path / "www"
    www.mkdir()
    for directory in (tmp_path, *tmp_path.parents[:3], www):
        directory.chmod(0o755)
    files = {f"f{size}": bytes(number % 251 for number in range(size)) for size in (10, 5000, 300_000, 3_000_000)}
    for name, content in files.items():
        (www / name).write_bytes(content)
    (tmp_path / "nginx.conf").write_text(NGINX.format(dir=tmp_path, port=port))
    server = world.start(world.a2, ["nginx", "-c", tmp_path / "nginx.conf"], "", mode="eager")
    reaches = lambda: world.a1.run(["curl", "-sf", f"http://{A2.address}:{port}/f10"], check=False).returncode == 0
    eventually(reaches, "nginx answers")
    before = world.sockets()["matched"]
    urls = [f"http://{A2.address}:{port}/{name}" for name in files for _ in range(5)]
    outputs = [word for number in range(len(urls)) for word in ("-o", tmp_path / f"o{number}")]
    world.run(world.a1, ["curl", "-sf", *urls, *outputs], mode="eager")
    for number, url in enumerate(urls):
        assert (tmp_path / f"o{number}").read_bytes() == files[url.rpartition("/")[2]]
    assert world.sockets()["matched"] > before
    server.stop()


def test_the_command_line(world):
    guests = json.loads(world.host.call("--json", "sockets", "--guests").stdout)
    assert [guest["name"] for guest in guests] == ["a1", "a2"]
    assert "GUEST" in world.host.call("sockets").stdout
    assert "sockets = true" in run([binaries() / "viaduct", "--run-dir", world.host.run_dir, "sockets", "--guest", "x"],
                                   check=False).stderr
