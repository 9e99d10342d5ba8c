"""A new daemon takes over from the running one: no packet that can wait is lost, and nobody has to connect again."""

import contextlib
import grp
import json
import os
import select
import signal
import socket
import stat
import struct
import threading
import time

import pytest

from lab import PATIENCE, Lines, Stream, eventually
from lab.marks import at_night, machines, polls
from lab.shell import run
from lab.topology import SEATS, UNDERLAY, host_config, one_host, tap, verbs, vhost

A1, A2, B1 = SEATS["a1"], SEATS["a2"], SEATS["b1"]


# Packets a second of streams. A tap keeps 1000 (its `txqueuelen`), so a busy machine may delay a replacement for three
# seconds.
RATE = 300


def replace(host, times=3):
    """Replaces the daemon some times; prints how long packets waited."""
    gaps = [host.replace() for _ in range(times)]
    print("packets waited", ", ".join(f"{gap:.1f} ms" for gap in gaps))


def account(stream):
    """Returns how much of a stream was lost, came twice and out of order."""
    result = stream.result()
    return result.lost, result.duplicates, result.reordered


def test_containers_lose_nothing(lab):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    with Stream(a1.namespace, a2.namespace, A2.address, rate=RATE) as stream:
        replace(host)
        stream.wait(100)
    assert account(stream) == (0, 0, 0)
    host.kill()  # The taps are the last daemon's.
    host.start()
    a1.expect_ping(A2.address)
    host.replace()
    host.stop()
    host.start()
    a2.expect_ping(A1.address)


def test_wires_lose_nothing(lab):
    lab.plug("a"), lab.plug("b")
    route = lambda to, seat: [{"tunnel": "mpls-over-udp", "remote": UNDERLAY[to], "label": seat.label}]
    a = host_config("a", {"a1": tap("a1")})
    a.add("route", network="blue", prefix=f"{B1.address}/32", to=route("b", B1))
    b = host_config("b", {"b1": tap("b1")})
    b.add("route", network="blue", prefix=f"{A1.address}/32", to=route("a", A1))
    a, b = lab.host(a), lab.host(b)
    a1, b1 = lab.container(a, "a1"), lab.container(b, "b1")
    a1.expect_ping(B1.address)
    with Stream(a1.namespace, b1.namespace, B1.address, rate=RATE) as stream:
        replace(a)
        replace(b)
        stream.wait(100)
    assert account(stream) == (0, 0, 0)


@pytest.mark.since_this_build
def test_af_xdp_wires_lose_nothing(lab):
    route = lambda to, seat: [{"tunnel": "mpls-over-udp", "remote": UNDERLAY[to], "label": seat.label}]

    def plug(name):
        # See test_wire.py. The same MAC each time: the other host knows it.
        lab.plug(name, mtu=1500, mac=f"02:00:00:00:ff:{ord(name):02x}")
        lab.namespace("fabric").run(["ethtool", "-K", f"{name}-up0", "tx", "off", "txvlan", "off"])

    hosts = {}
    for name, local, other, remote in (("a", A1, "b", B1), ("b", B1, "a", A1)):
        plug(name)
        config = host_config(name, {local.name: tap(local.name)}, mtu=1500)
        config.entry("wire", "up0").update(driver="af-xdp")
        config.add("route", network="blue", prefix=f"{remote.address}/32", to=route(other, remote))
        hosts[name] = lab.host(config)
    a1, b1 = lab.container(hosts["a"], "a1"), lab.container(hosts["b"], "b1")
    a1.expect_ping(B1.address)
    streams = [
        Stream(a1.namespace, b1.namespace, B1.address, rate=RATE),
        Stream(b1.namespace, a1.namespace, A1.address, rate=RATE),
    ]
    with streams[0], streams[1]:
        for _ in range(3):
            for host in hosts.values():
                replace(host, 1)
                assert "can't be opened" not in host.daemon.text()
        for stream in streams:
            stream.wait(100)
    assert [account(stream) for stream in streams] == [(0, 0, 0)] * 2
    # The new daemon follows the device.
    hosts["a"].namespace.ip("link del up0")
    eventually(lambda: hosts["a"].viaduct("wire")[0].get("fault"), "it is gone")
    plug("a")
    a1.expect_ping(B1.address, 20)
    replace(hosts["a"], 1)
    b1.expect_ping(A1.address, 20)


@pytest.mark.since_this_build
def test_a_simulated_card_is_refused_beforehand(lab):
    """Whichever of the two daemons has a card, the running one goes on."""
    host, (a1, _) = one_host(lab, "a1", "a2")
    for old, new in (("cpu", "card-sim"), ("card-sim", "cpu")):
        host.kill()
        host.config.host["executor"] = old
        host.start()
        running = host.daemon
        host.config.host["executor"] = new
        asks = host.launch("--replace")
        assert asks.process.wait(PATIENCE) == 1 and "a card can't be handed over" in asks.text(), asks.text()
        host.daemon = running
        running.wait_for("another daemon does not take over")
        assert running.running()
        a1.expect_ping(A2.address, 20)


_HOLD = """
import signal
from pyverbs.device import Context
context = Context(name="viaduct0")
print("open")
signal.pause()
"""


@pytest.mark.since_this_build
def test_verbs_programs_that_end_are_named(lab):
    host = lab.host(host_config("a", {"a1": verbs(), "a2": verbs()}, wire=False))
    device = lab.verbs(host, "a1")
    program = device.python(_HOLD)
    program.wait_for("open")
    host.replace()
    assert f'programs that use verbs device "{device.device}" (1) have to open it again' in host.daemon.text()
    program.stop()
    again = device.python(_HOLD)
    again.wait_for("open")
    host.replace()


@machines
@pytest.mark.parametrize("options", [at_night(""), "packed=on"])
def test_a_vm_notices_nothing(lab, options):
    host = lab.host(host_config("a", {"a1": vhost("a1", queues=2), "a2": tap("a2")}, wire=False))
    vm = lab.vm(host, "a1", options=options)
    peer = lab.container(host, "a2")
    vm.boot()
    lines = Lines(peer, vm, A1.address)
    for _ in range(3):
        replace(host, 1)
        lines.more()
    assert "VMM taken over" in host.daemon.text() and "VMM connected" not in host.daemon.text()
    assert vm.reaches(A2.address)
    # The VM can still have its connection anew.
    host.kill()
    host.start()
    if not options:
        vm.expect_ping(A2.address)


@polls
@pytest.mark.parametrize("role", ["server", "client"])
@pytest.mark.parametrize("ring", ["", "packed_vq=1"])
def test_user_space_drivers_lose_nothing(lab, role, ring):
    host = lab.host(host_config("a", {"a1": tap("a1"), "a2": vhost("a2", role=role)}, wire=False))
    a1 = lab.container(host, "a1")
    lab.testpmd(host, "a2", mode="5tswap", ring=ring)
    a1.namespace.ip("neigh replace", A2.address, "lladdr", A2.mac, "dev", a1.device)
    # A driver that gets no CPU for half a second still has room.
    with Stream(a1.namespace, a1.namespace, A2.address, echo=True, rate=RATE) as stream:
        replace(host)
        stream.wait(100)
    assert account(stream) == (0, 0, 0)


def test_connections_and_what_was_learned_go_on(lab):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    with Stream(a1.namespace, a2.namespace, A2.address, rate=100) as stream:
        stream.wait(300)
        eventually(lambda: host.viaduct("flow", "--match", "udp & port 7777")[0]["packets"] > 100, "it is counted")
        [before] = host.viaduct("flow", "--match", "udp & port 7777")
        replace(host, 2)
        stream.wait(300)
        eventually(lambda: host.viaduct("flow", "--match", "udp & port 7777")[0]["packets"] > before["packets"], "on")
        [after] = host.viaduct("flow", "--match", "udp & port 7777")
    assert (after["source"], after["state"]) == (before["source"], before["state"])
    assert after["age"] > before["age"], "no new connection"


@polls
def test_a_vmm_that_comes_later_is_served(lab):
    host = lab.host(host_config("a", {"a1": tap("a1"), "a2": vhost("a2")}, wire=False))
    a1 = lab.container(host, "a1")
    replace(host, 2)
    lab.testpmd(host, "a2")
    a1.expect_ping(A2.address)
    host.stop()
    assert not host.socket("a2").exists() and not (host.run_dir / "viaduct.sock").exists()


@pytest.mark.since_this_build
def test_a_vmm_that_breaks_off_holds_nobody_up(lab):
    """Half a message is answered by the daemon that has the connection when the rest comes."""
    host = lab.host(host_config("a", {"a1": tap("a1"), "a2": vhost("a2")}, wire=False))
    get_features = struct.pack("<3I", 1, 1, 0)
    with socket.socket(socket.AF_UNIX) as vmm:
        vmm.settimeout(PATIENCE)
        vmm.connect(str(host.socket("a2")))
        vmm.send(get_features)
        assert len(vmm.recv(20, socket.MSG_WAITALL)) == 20
        vmm.send(get_features[:7])
        replace(host)
        vmm.send(get_features[7:])
        assert len(vmm.recv(20, socket.MSG_WAITALL)) == 20


def test_what_changed_is_stored_and_clients_find_the_new_daemon(lab):
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2")}, wire=False)
    host = lab.host(config)
    a1, a2 = lab.container(host, "a1"), lab.container(host, "a2")
    host.call("rt", "add", "10.99.0.0/16", "--network", "blue", "--to", "drop")
    host.config = config.copy().rule("blue", 10, "drop", protocol="icmp")
    host.replace()
    a1.expect_no_ping(A2.address, 1)
    prefixes = lambda: {row["prefix"] for row in host.viaduct("rt", "--network", "blue")}
    assert "10.99.0.0/16" in prefixes()
    host.call("rt", "add", "10.98.0.0/16", "--network", "blue", "--to", "drop")
    assert "the store can" not in host.daemon.text(), "nothing was wrong with it"
    host.kill()
    host.start()
    assert {"10.98.0.0/16", "10.99.0.0/16"} <= prefixes()
    a2.expect_no_ping(A1.address, 1)


class FakeDaemon:
    """A daemon that takes over, as far as told."""

    def __init__(self, host, **greeting):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(str(host.run_dir / "replace.sock"))
        self.say({"oldest": 1, "newest": 1, "build": "9.0.0", "pid": os.getpid(), **greeting})
        self.greeting = self.hear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def say(self, message):
        self.socket.send(json.dumps(message).encode())

    def hear(self):
        message, descriptors, _, _ = socket.recv_fds(self.socket, 65536, 253)
        for descriptor in descriptors:
            os.close(descriptor)
        return json.loads(message)

    def hear_until(self, kind):
        """Returns the kinds of all messages up to this one."""
        kinds = []
        while not kinds or kinds[-1] != kind:
            kinds.append(self.hear()["kind"])
        return kinds


@polls
def test_a_daemon_that_does_not_get_ready_leaves_the_old_one(lab):
    host = lab.host(host_config("a", {"a1": tap("a1"), "a2": vhost("a2")}, wire=False))
    a1 = lab.container(host, "a1")
    lab.testpmd(host, "a2", mode="5tswap")
    a1.namespace.ip("neigh replace", A2.address, "lladdr", A2.mac, "dev", a1.device)
    with Stream(a1.namespace, a1.namespace, A2.address, echo=True, rate=50) as stream:
        old, config = host.daemon, host.config
        # A file with an error.
        host.config = config.copy()
        host.config.entry("guest", "a2")["mac"] = "nonsense"
        assert host.launch("--replace").process.wait(PATIENCE) == 2
        host.daemon = old
        host.config = config
        # It dies while it prepares; it dies when everything has stopped; it does nothing any more.
        for how in ("prepare", "frozen", "stuck"):
            with FakeDaemon(host) as new:
                new.hear_until("shared")
                if how != "prepare":
                    new.say({"kind": "freeze"})
                    assert "session" in new.hear_until("frozen")
                if how == "stuck":
                    assert new.hear()["kind"] == "refused"
        stream.wait(20)
        assert old.running() and "VMM disconnected" not in old.text()
        replace(host, 1)
        stream.wait(20)
    assert account(stream) == (0, 0, 0)


@polls
def test_sockets_and_windows_are_given_away_by_the_daemon_that_serves(lab):
    """The next daemon's file says who else may connect. At first, that daemon lacks the queues which a VMM has."""

    def config(queues, owner, mode, user=None):
        keys = {"queues": queues, "owner": f"{user or owner}:{owner}", "socket_mode": mode}
        keys.update(rdma="a1", window_mb=64, rdma_trust="t")
        guests = {"a1": vhost("a1", **keys), "a2": verbs(rdma_owner=f"{owner}:{owner}")}
        return host_config("a", guests, wire=False, readers=grp.getgrgid(owner).gr_name)

    def groups():
        names = ["viaduct-read.sock", "a1.sock", "rdma/a2", "rdma/vm/a1", "rdma/vm/trust-t", "rdma/vm/a1.vsock_4791"]
        files = [host.run_dir / name for name in names]
        return [(of.st_gid, stat.S_IMODE(of.st_mode)) for of in (file.stat() for file in files)]

    host = lab.host(config(2, 65534, "660"), start=False)
    windows = host.run_dir / "rdma/vm"
    windows.mkdir(parents=True)
    run(["mount", "-t", "tmpfs", "-o", "mode=755", "windows", windows])
    lab.cleanup.callback(lambda: run(["umount", "--lazy", windows], check=False))
    host.start()
    lab.testpmd(host, "a1")
    old, before = host.daemon, groups()
    assert before == [(65534, 0o660)] * 6
    for refused, why in [
        (config(1, 2, "600"), "its VMM uses 2 pairs of queues"),
        (config(2, 2, "600", user="no-such-user"), "its VMM is connected, and the port can't be opened: "),
    ]:
        host.config = refused
        new = host.launch("--replace")
        assert new.process.wait(PATIENCE) == 1 and "the running daemon goes on: " in new.text(), new.text()
        assert why in new.text() and why in old.text() and groups() == before
    host.daemon, host.config = old, config(2, 2, "600")
    host.replace()
    assert groups() == [(2, 0o660), (2, 0o600), (2, 0o660)] + [(2, 0o600)] * 3
    # A daemon that serves no readers does not listen for them either, nor is it in the way of one that does again.
    del host.config.host["readers"]
    host.replace()
    with pytest.raises(ConnectionRefusedError), socket.socket(socket.AF_UNIX) as reader:
        reader.connect(str(host.run_dir / "viaduct-read.sock"))
    host.config = config(2, 2, "600")
    host.replace()
    assert groups()[0] == (2, 0o660)


@polls
def test_what_somebody_did_to_a_socket_stops_no_replacement(lab):
    """Whoever may write the directory of a VM's socket can't keep the host's daemon from being replaced."""
    host = lab.host(host_config("a", {"a1": tap("a1"), "a2": vhost("a2")}, wire=False))
    lab.testpmd(host, "a2")
    host.socket("a2").unlink()
    host.replace()
    assert "its VMM has to connect again" in host.daemon.text()
    eventually(host.socket("a2").is_socket, "the socket is there again")


@polls
@pytest.mark.since_this_build
def test_programs_come_to_the_daemon_that_serves(lab):
    """A daemon that prepares to take over has the sockets of verbs devices as well, and takes nobody along when it
    fails."""
    config = lambda queues: host_config("a", {"a1": vhost("a1", queues=queues), "a2": verbs()}, wire=False)
    host = lab.host(config(2))
    lab.testpmd(host, "a1")
    old, host.config = host.daemon, config(1)
    with contextlib.ExitStack() as stack:
        programs = []
        new = host.launch("--replace")
        while new.process.poll() is None:
            # A device has places for some more.
            if len(programs) < 150:
                programs.append(stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)))
                programs[-1].connect(str(host.run_dir / "rdma/a2"))
            time.sleep(0.005)
        assert new.process.returncode == 1 and "its VMM uses 2 pairs of queues" in new.text(), new.text()
        host.daemon = old
        closed = select.select(programs, [], [], 0)[0]
        assert not closed, f"{len(closed)} of {len(programs)} lost the device"
    device = lab.verbs(host, "a2")
    host.config = config(2)
    for _ in range(2):
        device.python(_HOLD).wait_for("open")
        host.replace()


def converse(host, *messages):
    """Sends these messages, and returns what the daemon answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.settimeout(PATIENCE)
        other.connect(str(host.run_dir / "replace.sock"))
        for message in messages:
            other.send(message if isinstance(message, bytes) else json.dumps(message).encode())
        answers = []
        while answer := other.recv(65536):
            answers.append(json.loads(answer))
        return answers


def test_daemons_of_other_versions_agree_or_are_refused(lab):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    # A later one that still speaks our version, with fields and messages that we do not know; it goes away again.
    later = {"oldest": 1, "newest": 7, "colour": "blue"}
    with FakeDaemon(host, **later) as other:
        assert (other.greeting["oldest"], other.greeting["newest"]) == (1, 1)
        assert other.hear_until("shared").count("port") == 2
        other.say({"kind": "wave", "hand": "left"})
        refused = host.call("rt", "add", "10.98.0.0/16", "--network", "blue", "--to", "drop", check=False)
        assert refused.returncode == 1 and "taking over" in refused.stderr
    for greeting in ({"oldest": 2, "newest": 7}, {"oldest": 0, "newest": 0}, b"nonsense", b"{}", ["x"]):
        assert [answer for answer in converse(host, greeting) if "kind" in answer] == []
    said = converse(host, later, {"kind": "commit"})
    assert said[-1]["kind"] == "refused" and "Commit" in said[-1]["reason"], said
    host.call("rt", "add", "10.98.0.0/16", "--network", "blue", "--to", "drop")
    a1.expect_ping(A2.address)
    replace(host, 1)
    a1.expect_ping(A2.address)


def test_an_old_daemon_of_another_version_is_left_alone(lab):
    host = lab.host(host_config("a", {"a1": tap("a1")}, wire=False), start=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as old:
        old.bind(str(host.run_dir / "replace.sock"))
        old.listen()

        def greet():
            peer, _ = old.accept()
            peer.recv(65536)
            peer.send(json.dumps({"oldest": 5, "newest": 6, "build": "0.0.1", "pid": os.getpid()}).encode())
            peer.recv(65536)

        threading.Thread(target=greet, daemon=True).start()
        new = host.launch("--replace")
        assert new.process.wait(PATIENCE) == 1
    assert "hands over by versions 5 to 6" in new.text() and "restart" in new.text(), new.text()


def test_without_a_daemon_there_is_nothing_to_replace(lab):
    host = lab.host(host_config("a", {"a1": tap("a1")}, wire=False), start=False)
    new = host.launch("--replace")
    assert new.process.wait(PATIENCE) == 1 and "start without --replace" in new.text()


def test_others_can_not_take_over(lab):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    assert (host.run_dir / "replace.sock").stat().st_mode & 0o777 == 0o600
    (host.run_dir / "replace.sock").chmod(0o666)
    for parent in [host.run_dir, *host.run_dir.parents][:3]:
        parent.chmod(0o755)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setuid(65534)
            code = 0 if converse(host, {"oldest": 1, "newest": 1, "build": "", "pid": os.getpid()}) == [] else 2
        except (BrokenPipeError, ConnectionResetError):
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    eventually(lambda: "it is of user 65534" in host.daemon.text(), "the daemon tells")
    a1.expect_ping(A2.address)


def test_the_old_daemon_may_die_any_time(lab):
    host, (a1, a2) = one_host(lab, "a1", "a2")
    for _ in range(5):
        old = host.daemon
        new = host.launch("--replace")
        new.wait_for("takes over from a daemon")
        old.stop(signal.SIGKILL)
        # The new one has all, or gives up.
        eventually(lambda: "ready" in new.text().splitlines() or not new.running(), "its decision")
        host.daemon = new
        if not new.running():
            host.start()
        a1.expect_ping(A2.address)
