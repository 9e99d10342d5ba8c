"""Verbs when something goes wrong: programs and daemons that die or stop, strangers at the socket, limits."""

import array
import errno
import json
import os
import signal
import socket
import time

import pytest

from lab import PATIENCE, Meeting, eventually, meet
from lab.pairwise import pairwise
from lab.topology import host_config, tunnel_routes, two_verbs_hosts, verbs

PERFTEST = ["-d", "viaduct0", "-x", "1", "-F"]
# Longer than the slowest test.
LASTING = ["-D", "900"]
# Acknowledgements may take four seconds, which a daemon without a CPU may need.
PATIENT = ["-u", "20"]
# The version of the protocol between library and daemon (crates/uverbs/src/message.rs).
VERSION = 9


def perftest(program, *options):
    return [f"ib_{program}", *PERFTEST, *options]


def trusting(lab):
    return same_host(lab, rdma_trust="tenant")


def same_host(lab, **keys):
    """Starts two devices of a host."""
    host = lab.host(host_config("a", {"a1": verbs(**keys), "a2": verbs(**keys)}, wire=False))
    return lab.verbs(host, "a1"), lab.verbs(host, "a2")


def two_hosts(lab):
    """Starts a device on each of two hosts."""
    _, devices = two_verbs_hosts(lab, lambda config, *remotes: tunnel_routes(config, "mpls-over-udp", *remotes))
    return devices["a1"], devices["b1"]


PLACES = {"copy": same_host, "shared": trusting, "roce": two_hosts}


@pytest.fixture
def pair(request, lab):
    return PLACES[request.param](lab)


everywhere = pytest.mark.parametrize("pair", PLACES, indirect=True)
on_one_host = pytest.mark.parametrize("pair", ["copy", "shared"], indirect=True)


def under_way(meeting, server, client):
    """Waits until a program that lasts has connected and moves data."""
    before = client.counter("sent_pkts")

    def connected():
        assert all(one.running() for one in meeting.both), meeting.describe()
        rows = client.queue_pairs()
        # Those that share memory do without the device, which counts nothing then.
        shares = [row["transport"] == "shared" for row in rows]
        return rows and rows[0]["state"] == "RTS" and (any(shares) or client.counter("sent_pkts") > before)

    eventually(connected, "a connection")


def good_again(server, client):
    """Fails if something is left of what was, or new programs do not work."""
    for device in (server, client):
        device.expect_free()
    # Programs wait for events: one that polls takes the CPU from the daemons, which then may be late.
    meet(server, client, "ibv_rc_pingpong", "-g", "1", "-n", "100", "-c", "-e")


@pytest.mark.parametrize("pair, program", pairwise(PLACES, ["write_bw", "send_bw", "read_bw"]), indirect=["pair"])
def test_the_peer_is_killed(pair, program):
    server, client = pair
    with Meeting(server, client, perftest(program, *LASTING)) as meeting:
        under_way(meeting, server, client)
        meeting.server.process.kill()
        eventually(lambda: not meeting.client.running(), "the client's end")
        assert meeting.client.process.returncode not in (0, -signal.SIGALRM), meeting.describe()
        assert "Completion with error" in meeting.client.text(), meeting.describe()
    good_again(server, client)


@everywhere
@pytest.mark.parametrize("run", ["send_lat", "send_bw --use-srq -s 65536"])
def test_a_client_is_killed(pair, run):
    server, client = pair
    with Meeting(server, client, perftest(*run.split(), *LASTING)) as meeting:
        under_way(meeting, server, client)
        meeting.client.process.kill()
        client.expect_free()
    good_again(server, client)


@pytest.mark.parametrize(
    "pair, program, who",
    pairwise(["copy", "shared"], ["write_bw", "read_bw", "atomic_bw"], ["server", "client"]),
    indirect=["pair"],
)
def test_one_with_regions_in_files_is_killed(monkeypatch, pair, program, who):
    monkeypatch.setenv("VIADUCT_RDMA_SHARE", "1")
    server, client = pair
    with Meeting(server, client, perftest(program, *LASTING)) as meeting:
        under_way(meeting, server, client)
        getattr(meeting, who).process.kill()
        (client if who == "client" else server).expect_free()
        if who == "server":
            eventually(lambda: not meeting.client.running(), "the client's end")
            assert "Completion with error" in meeting.client.text(), meeting.describe()
    good_again(server, client)


@everywhere
@pytest.mark.parametrize("program", ["write_bw", "send_lat"])
def test_the_daemon_is_killed(pair, program):
    """Running programs end with an error, by themselves; those that come later find the new daemon."""
    server, client = pair
    host = client.host
    with Meeting(server, client, perftest(program, *LASTING)) as meeting:
        under_way(meeting, server, client)
        host.kill()
        eventually(lambda: not meeting.client.running(), "the client's end")
        assert meeting.client.process.returncode != 0, meeting.describe()
        if server.host is host:
            eventually(lambda: not meeting.server.running(), "the server's end")
        host.start()
    good_again(server, client)


@on_one_host
def test_the_daemon_ends_in_order(pair):
    server, client = pair
    with Meeting(server, client, perftest("write_bw", *LASTING)) as meeting:
        under_way(meeting, server, client)
        client.host.stop()
        eventually(lambda: not any(one.running() for one in meeting.both), "the end of both")
        assert meeting.client.process.returncode != 0, meeting.describe()
        client.host.start()
    good_again(server, client)


@pytest.mark.parametrize(
    "pair, program, who", pairwise(PLACES, ["write_bw", "send_bw", "read_bw"], ["server", "client"]), indirect=["pair"]
)
def test_a_program_is_stopped_for_a_while(pair, program, who):
    """A program that was stopped ends well, or with an error that it tells; nothing hangs."""
    server, client = pair
    with Meeting(server, client, perftest(program, "-D", "4")) as meeting:
        under_way(meeting, server, client)
        process = getattr(meeting, who).process
        process.send_signal(signal.SIGSTOP)
        # The stop takes a second, in which the other side may time out and send again.
        time.sleep(1)
        for device in pair:
            assert device.shown()["name"] == device.device, "the daemon answers meanwhile"
        process.send_signal(signal.SIGCONT)
        eventually(lambda: not meeting.client.running(), "the client's end")
        if meeting.client.process.returncode == 0:
            assert meeting.statuses() == (0, 0), meeting.describe()
        else:
            assert "Completion with error" in meeting.client.text(), meeting.describe()
    good_again(server, client)


def stranger(device):
    """Makes a connection of somebody who is no library."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(device.socket))
    connection.settimeout(PATIENCE)
    return connection


def greet(connection, version=VERSION, descriptors=None):
    """Says hello like a library, with the given descriptors, else the one that is due; returns the answer."""
    memory = os.open("/proc/self/mem", os.O_RDWR)
    try:
        rights = array.array("i", [memory] if descriptors is None else descriptors)
        message = json.dumps({"hello": {"version": version, "token": 1}}).encode()
        connection.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else [])
    finally:
        os.close(memory)
    return answer(connection)


def answer(connection):
    """Returns the device's answer; None where it closed the connection instead. Descriptors are closed."""
    try:
        data, ancillary, *_ = connection.recvmsg(1 << 16, socket.CMSG_SPACE(8 * 4))
    except ConnectionResetError:
        return None
    for _, _, bytes_ in ancillary:
        for descriptor in array.array("i", bytes_[: len(bytes_) - len(bytes_) % 4]):
            os.close(descriptor)
    return json.loads(data) if data else None


def ask(connection, request):
    connection.send(json.dumps(request).encode())
    return answer(connection)


def test_another_version_is_refused_with_a_message(lab):
    device, _ = same_host(lab)
    with stranger(device) as connection:
        refused = greet(connection, version=99)["Err"]
    assert refused["errno"] == errno.EPROTONOSUPPORT
    assert "version 99" in refused["message"] and "use the library that came with it" in refused["message"]
    eventually(lambda: "version 99" in device.host.daemon.text(), "a line in the log")


def test_a_device_that_is_not_there_is_told(lab):
    device, _ = same_host(lab)
    program = device.start(["ibv_devinfo"], VIADUCT_RDMA=f"{device.socket}x")
    eventually(lambda: not program.running(), "ibv_devinfo's end")
    assert f"libibverbs: {device.socket}x: No such file or directory" in program.text(), program.text()


@pytest.mark.parametrize("how", ["null", "pipe", "regular file", "directory", "nothing"])
def test_wrong_descriptors_are_refused(lab, how):
    device, _ = same_host(lab)
    end, other = os.pipe()
    opened = {
        "null": lambda: [os.open("/dev/null", os.O_RDWR)],
        "pipe": lambda: [end],
        "regular file": lambda: [os.open(lab.directory / "file", os.O_RDWR | os.O_CREAT)],
        "directory": lambda: [os.open("/", os.O_RDONLY)],
        "nothing": lambda: [],
    }[how]()
    try:
        with stranger(device) as connection:
            assert "Err" in (greet(connection, descriptors=opened) or {"Err": None})
    finally:
        for descriptor in {*opened, end, other}:
            os.close(descriptor)
    device.expect_free()


GARBAGE = [
    *(b"\0", b"{", b"[]", b"null", b'"alloc_pd"', b"\xff" * 65536, b"[" * 60000, os.urandom(4096)),
    *(b'{"hello":{"version":-1}}', b'{"hello":{"version":1e400}}', b'{"hello":{}}', b'{"create_qp":{}}'),
]
HUGE = {"address": 4096, "len": (1 << 64) - 4096, "backing": "file"}
# Requests of a program that was let in.
REQUESTS = [
    {"reg_mr": {"pd": 7, "address": 0, "length": 1 << 63, "iova": (1 << 64) - 1, "access": 0xFFFFFFFF, "pages": []}},
    {"reg_mr": {"pd": 0, "address": 0, "length": (1 << 64) - 1, "iova": 0, "access": 7, "pages": []}},
    {"reg_mr": {"pd": 1, "address": 0, "length": 0, "iova": 0, "access": 0, "pages": [HUGE]}},
    {"alloc_pages": {"len": (1 << 64) - 1}},
    {"free_pages": {"part": {"window": "own", "offset": 1 << 63, "len": 1 << 63}}},
    {"pages": {"qpn": 17, "rkey": 12345}},
    {"dereg_mr": {"mr": 12345}},
    {"create_cq": {"entries": 0xFFFFFFFF, "channel": None, "timestamps": False}},
    {"create_cq": {"entries": 0, "channel": 99, "timestamps": False}},
    {"resize_cq": {"cq": 5, "entries": 5}},
    {"create_srq": {"pd": 1, "max_wr": 0xFFFFFFFF, "max_sge": 0xFFFFFFFF}},
    {"destroy_qp": {"qpn": 0}},
    {"query_qp": {"qpn": 1}},
    {"direct": {"qpn": 0xFFFFFF}},
    {"dealloc_pd": {"pd": 0xFFFFFFFF}},
]


@on_one_host
def test_strangers_do_no_harm(pair):
    """Garbage, requests for things that are not there and connections by the hundred disturb nobody who was there
    before."""
    server, client = pair
    with Meeting(server, client, perftest("write_bw", "-D", "8", *PATIENT)) as meeting:
        under_way(meeting, server, client)
        for garbage in GARBAGE:
            with stranger(server) as connection:
                connection.send(garbage)
                reply = answer(connection)
                assert reply is None or "Err" in reply, garbage[:40]
            with stranger(server) as connection:
                assert "Ok" in greet(connection)
                connection.send(garbage)
        with stranger(server) as connection:
            assert "Ok" in greet(connection)
            for request in REQUESTS:
                reply = ask(connection, request)
                assert reply and "Err" in reply, (request, reply)
            assert "Ok" in ask(connection, "query_port")
        crowd(server)
        meeting.expect_success()
    good_again(server, client)


def crowd(device, count=300):
    """Makes so many connections at once that say nothing; some are let in and wait, the rest is turned away."""
    connections = []
    try:
        for _ in range(count):
            connections.append(stranger(device))
        assert device.shown()["name"] == device.device
    finally:
        for connection in connections:
            connection.close()


def test_they_come_when_all_places_are_taken(lab):
    """A program that is turned away hears of it at once, and there are places again once others leave."""
    device, other = same_host(lab)
    places = []
    while True:
        connection = stranger(device)
        reply = greet_or_none(connection)
        if reply is None:
            connection.close()
            break
        assert "Ok" in reply
        places.append(connection)
        assert len(places) <= 300, "no limit"
    assert len(places) >= 64
    for connection in places:
        connection.close()
    good_again(device, other)


def greet_or_none(connection):
    try:
        return greet(connection)
    except (BrokenPipeError, ConnectionResetError):
        return None


def test_a_half_closed_connection_is_let_go(lab):
    device, other = same_host(lab)
    with stranger(device) as connection:
        assert "Ok" in greet(connection)
        assert "Ok" in ask(connection, "alloc_pd")
        connection.shutdown(socket.SHUT_WR)
        eventually(device.is_free, "an end of what it had")
    good_again(device, other)


# Becomes another user, as which it is not dumpable (prctl(2)), and then is.
NOT_DUMPABLE = """
import ctypes, errno, os
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.device import Context

os.setgroups([])
os.setgid(1000)
os.setuid(1000)
for dumpable in 0, 1:
    assert ctypes.CDLL(None).prctl(4, dumpable) == 0
    try:
        Context(name="viaduct0").close()
        print("opened")
    except PyverbsRDMAError as refused:
        print("refused", errno.errorcode[refused.error_code])
print("done")
"""


def test_a_program_that_can_not_have_its_own_memory_is_told_so(lab):
    device, other = same_host(lab, rdma_owner="1000:1000")
    lab.directory.chmod(0o755)
    program = device.python(NOT_DUMPABLE)
    program.wait_for("done")
    text = program.text()
    assert "refused EACCES" in text and "opened" in text, text
    assert "/proc/self/mem can't be opened" in text and "not dumpable" in text, text
    good_again(device, other)


# Makes one object after the other until there are no more; says how many there were and why it ended.
GREEDY = """
import errno
from pyverbs.pyverbs_error import PyverbsRDMAError
import pyverbs.enums as e
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.cq import CQ
from pyverbs.mr import MR
from pyverbs.qp import QP, QPCap, QPInitAttr

context = Context(name="viaduct0")
pd, cq = PD(context), CQ(context, 16)
make = {
    "qps": lambda: QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(1, 1, 1, 1))),
    "mrs": lambda: MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE),
    "registered_mb": lambda: MR(pd, 1 << 20, e.IBV_ACCESS_LOCAL_WRITE),
}[sys.argv[1]]
made, error = [], None
while error is None and len(made) < 100:
    try:
        made.append(make())
    except PyverbsRDMAError as refused:
        error = refused.error_code
print("made", len(made), errno.errorcode.get(error, error))
sys.stdin.read()
"""


@pytest.mark.parametrize("what", ["qps", "mrs", "registered_mb"])
def test_limits(lab, what):
    """All programs of a device get ENOMEM once its limit is reached, and no other device does."""
    limits = {"qps": 1024, "mrs": 4096, "registered_mb": 4096, what: 10}
    config = host_config("a", {"a1": verbs(rdma_limits=limits), "a2": verbs()}, wire=False)
    host = lab.host(config)
    limited, other = lab.verbs(host, "a1"), lab.verbs(host, "a2")
    script = GREEDY.replace("sys.stdin.read()", "import signal; signal.pause()")
    first = limited.python(script, what)
    first.wait_for("made ")
    try:
        assert first.text().split()[-3:] == ["made", "10", "ENOMEM"], first.text()
        second = limited.python(script.replace("import signal; signal.pause()", ""), what)
        eventually(lambda: not second.running(), "its end")
        assert second.text().split()[-3:] == ["made", "0", "ENOMEM"], second.text()
        shown = limited.shown()
        assert shown["limits"][what] == 10
        assert (shown["qps"], shown["mrs"], shown["registered_bytes"] >> 20)[
            ["qps", "mrs", "registered_mb"].index(what)
        ] == 10
        meet(other, other, "ibv_rc_pingpong", "-g", "1", "-n", "10")
    finally:
        first.stop(signal.SIGKILL)
    limited.expect_free()
    good_again(limited, other)
