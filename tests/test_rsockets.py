"""Sockets by RDMA: rstream, and unmodified programs of sockets by rdma-core's librspreload."""

import signal
from pathlib import Path

import pytest

from lab import PATIENCE, Failed, eventually
from lab.topology import SEATS, host_config, tunnel_routes, two_verbs_hosts, verbs

PRELOAD = next(iter(Path("/usr/lib").glob("*/rsocket/librspreload.so")), None)
# Options of rstream: calls that wait, do not wait; bytes that are checked.
RSTREAM = {
    "blocking": "-T b -T v -I 20 -C 50",
    "nonblocking": "-T n -T v -I 20 -C 50",
    "asynchronous": "-T a -T v -I 20 -C 50",
    "long messages": "-T v -S 1000000 -I 3 -C 2",
    "small buffers": "-T v -S 65536 -B 4096 -I 3 -C 2",
}


# A listener of rsockets.
LISTENER = """
import ctypes, socket, struct
lib = ctypes.CDLL("librdmacm.so.1", use_errno=True)
listening, data = lib.rsocket(socket.AF_INET, socket.SOCK_STREAM, 0), ctypes.create_string_buffer(1 << 16)
any_address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", 7471) + bytes(12)
assert lib.rbind(listening, any_address, 16) == 0 and lib.rlisten(listening, 5) == 0
"""
# It says of each connection what it got, and the error.
SERVER = f"""{LISTENER}
while True:
    fd, got, all = lib.raccept(listening, None, None), 1, 0
    while got > 0:
        got = lib.rrecv(fd, data, len(data), 0)
        all += max(got, 0)
    print("ended", ctypes.get_errno() if got else 0, all)
    assert lib.rclose(fd) == 0
"""
# A program that connects there, sends as many bytes, and exits.
CLIENT = """
import ctypes, socket, struct
lib = ctypes.CDLL("librdmacm.so.1", use_errno=True)
fd, count = lib.rsocket(socket.AF_INET, socket.SOCK_STREAM, 0), int(sys.argv[2])
server = struct.pack("=H", socket.AF_INET) + struct.pack("!H", 7471) + socket.inet_aton(sys.argv[1]) + bytes(8)
assert lib.rconnect(fd, server, 16) == 0
assert lib.rsend(fd, bytes(count), count, 0) == count
"""
# It sends without an end to whoever has sent its end.
ANSWERING = f"""{LISTENER}
fd = lib.raccept(listening, None, None)
while lib.rrecv(fd, data, len(data), 0) > 0:
    pass
print("answers")
while lib.rsend(fd, data, len(data), 0) > 0:
    pass
print("ended", ctypes.get_errno())
"""
# It sends its end, and does not read.
SILENT = f"""{CLIENT}
import signal
assert lib.rshutdown(fd, socket.SHUT_WR) == 0
signal.pause()
"""
# A peer that says this as private data, with the place of its table, and then that as immediate data.
HOSTILE = """
import struct
from pyverbs.cmid import CMID, AddrInfo, ConnParam
from pyverbs.cq import CQ
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR
import pyverbs.cm_enums as cm, pyverbs.enums as e

def change(state):
    qp.modify(*id.init_qp_attr(state))

server, private, *numbers = sys.argv[1:]
private = bytearray.fromhex(private)
id = CMID(creator=AddrInfo(dst=server, dst_service="7471", port_space=cm.RDMA_PS_TCP))
pd, cq = PD(id.context), CQ(id.context, 32, None, None, 0)
table = MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
private[8:20] = struct.pack("!QI", table.buf, table.rkey)
cap = QPCap(max_recv_wr=8, max_send_wr=8)
qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, rcq=cq, scq=cq, cap=cap), QPAttr())
change(e.IBV_QPS_INIT)
for _ in range(8):
    qp.post_recv(RecvWR(num_sge=1, sg=[SGE(0, 0, 0)]))
param = ConnParam(resources=0, depth=0, qp_num=qp.qp_num, data_len=len(private))
param.set_private_data(private)
try:
    id.connect(param)
except Exception as why:
    sys.exit(f"refused: {why}")
for state in (e.IBV_QPS_INIT, e.IBV_QPS_RTR, e.IBV_QPS_RTS):
    change(state)
id.establish()
for number in numbers:
    wr = SendWR(num_sge=1, sg=[SGE(0, 0, 0)], opcode=e.IBV_WR_RDMA_WRITE_WITH_IMM)
    wr.set_wr_rdma(0, 0)
    wr.imm_data = int(number, 16)
    qp.post_send(wr)
"""
# The greeting of rdma-core: version 1, 16 credits, a table of two entries.
HELLO = "01020010 00000000" + "00" * 15 + "02" + "00" * 16


@pytest.fixture(scope="module")
def places(shared_lab):
    """Returns a function that makes two guests of a host, by the daemon and by shared memory, and guests of two hosts;
    each when it is asked for."""
    places = {}

    def place(name):
        if name == "two hosts":
            _, devices = two_verbs_hosts(
                shared_lab, lambda config, *remotes: tunnel_routes(config, "mpls-over-udp", *remotes)
            )
            return devices["b1"], devices["a1"], SEATS["b1"].address
        keys = {"rdma_trust": "job"} if name == "shared" else {}
        host = shared_lab.host(host_config(f"rs-{name}", {"a1": verbs(**keys), "a2": verbs(**keys)}, wire=False))
        return shared_lab.verbs(host, "a2"), shared_lab.verbs(host, "a1"), SEATS["a2"].address

    return lambda name: places[name] if name in places else places.setdefault(name, place(name))


@pytest.fixture(params=["copy", "shared", "two hosts"])
def ends(request, places):
    """Returns server and client, and the server's address."""
    server, client, address = places(request.param)
    yield server, client, str(address)
    server.expect_free()
    client.expect_free()


def meet(server, client, serving, asking, timeout=PATIENCE, **environment):
    """Runs a program by both to its end, which must be a good one; returns what the client printed."""
    eventually(lambda: not server.answers(), "the end of the listener before")
    programs = [server.start(serving, **environment)]
    try:
        eventually(lambda: server.answers() or not programs[0].running(), f"a listener: {serving}")
        programs.append(client.start(asking, **environment))
        for program in reversed(programs):
            eventually(lambda program=program: not program.running(), "the program's end", timeout)
        assert [program.status for program in programs] == [0, 0]
        return programs[1].text()
    except (Failed, AssertionError) as why:
        raise Failed("\n".join([f"{why}", *(program.describe() for program in programs)])) from None
    finally:
        for program in programs:
            program.stop(signal.SIGKILL)


@pytest.mark.parametrize("run", RSTREAM)
def test_rstream(ends, run):
    server, client, address = ends
    words = ["rstream", *RSTREAM[run].split()]
    meet(server, client, words, [*words, "-s", address])


# Programs that do not know of RDMA, in a namespace without another network.
SOCKETS = {
    "NetPIPE": ("NPtcp -l 1 -u 300000 -n 5", "NPtcp -h {server} -l 1 -u 300000 -n 5 -o {file}"),
    "iperf3": ("iperf3 -s -1", "iperf3 -c {server} -n 30M -P 2"),
}


@pytest.mark.parametrize("run", SOCKETS)
def test_programs_of_sockets(ends, run, tmp_path):
    server, client, address = ends
    serving, asking = (words.format(server=address, file=tmp_path / "netpipe").split() for words in SOCKETS[run])
    meet(server, client, serving, asking, LD_PRELOAD=str(PRELOAD))


@pytest.mark.parametrize("how", ["kill", "replace"])
def test_a_server_outlives_the_daemon(lab, how):
    """An idle one, and one with a connection, which is lost: the next client connects."""
    host = lab.host(host_config("a", {"a1": verbs(), "a2": verbs()}, wire=False))
    server, client, address = lab.verbs(host, "a2"), lab.verbs(host, "a1"), str(SEATS["a2"].address)
    serving = server.start(["iperf3", "-s", "--forceflush"], LD_PRELOAD=str(PRELOAD))
    listeners = lambda: serving.text().count("Server listening")

    def asks(*words):
        return client.start(["iperf3", "-c", address, *words], LD_PRELOAD=str(PRELOAD))

    def is_served():
        eventually(server.answers, f"a listener: {serving.describe()}")
        before = listeners()
        asking = asks("-n", "3M")
        eventually(lambda: not asking.running(), "the client's end")
        assert asking.status == 0, asking.describe() + serving.describe()
        # One that begins while the daemon is away may be TCP's.
        eventually(lambda: listeners() > before, "the next listener")

    is_served()
    for lasting in (None, asks):
        lasting = lasting and lasting("-t", "1000")
        if lasting:
            eventually(lambda: any(pair["state"] == "RTS" for pair in client.queue_pairs()), "a connection")
        getattr(host, how)()
        if lasting:
            eventually(lambda: not lasting.running(), "the end of a client whose connection is gone")
        if how == "kill":
            host.start()
        is_served()
    assert serving.running(), serving.describe()
    serving.stop(signal.SIGKILL)


@pytest.mark.parametrize("who", ["server", "client"])
def test_a_killed_peer(ends, who):
    """The other program reads an error, and ends."""
    server, client, address = ends
    words = ["rstream", "-I", "1000000", "-S", "20000"]
    serving = server.start(words)
    eventually(lambda: server.answers() or not serving.running(), "a listener")
    asking = client.start([*words, "-s", address])
    try:
        eventually(lambda: any(pair["state"] == "RTS" for pair in client.queue_pairs()), "a connection")
        killed, other = (serving, asking) if who == "server" else (asking, serving)
        killed.stop(signal.SIGKILL)
        eventually(lambda: not other.running(), "the end of the other")
        assert "reset" in other.text() or "refused" in other.text(), other.describe()
    finally:
        for program in (serving, asking):
            program.stop(signal.SIGKILL)


def test_a_killed_peer_that_had_sent_its_end(ends):
    """A program that writes to it gets an error, though no message of theirs is under way."""
    server, client, address = ends
    serving = server.python(ANSWERING)
    asking = None
    try:
        eventually(lambda: server.answers() or not serving.running(), "a listener")
        asking = client.python(SILENT, address, "1")
        eventually(lambda: "answers" in serving.text(), "the end of what was asked")
        asking.stop(signal.SIGKILL)
        eventually(lambda: not serving.running(), "the end of the answer")
        assert "ended 104" in serving.text() or "ended 110" in serving.text(), serving.describe()
    finally:
        for program in filter(None, (serving, asking)):
            program.stop(signal.SIGKILL)


def test_a_program_that_exits(ends):
    """The peer of a program that exits gets all that was sent, and an end."""
    server, client, address = ends
    serving = server.python(SERVER)
    try:
        eventually(lambda: server.answers() or not serving.running(), "a listener")
        sending = client.python(CLIENT, address, "1000000")
        eventually(lambda: "ended" in serving.text(), "the end of what was sent")
        assert "ended 0 1000000" in serving.text(), serving.describe()
        eventually(lambda: not sending.running(), "its end")
        assert sending.status == 0, sending.describe()
    finally:
        serving.stop(signal.SIGKILL)


def test_hostile_peers(ends):
    """Hostile peers lose their connections; the server goes on."""
    server, client, address = ends
    serving = server.python(SERVER)
    eventually(lambda: server.answers() or not serving.running(), "a listener")

    def says(private, *numbers):
        peer = client.python(HOSTILE, address, private.replace(" ", ""), *numbers)
        eventually(lambda: not peer.running(), "the peer's end")
        return peer

    try:
        for private in ("00" * 20, "ff" * 56, HELLO.replace("0102", "0202", 1), HELLO.replace("0010", "0000", 1)):
            assert "refused" in says(private).text()
        # Reserved; mapped memory; more data than there is room for; nothing; credits beyond those that there are.
        for number in ("20000001", "c0000001", "1fffffff", "00000000", "8000ffff"):
            peer = says(HELLO, number)
            assert peer.status == 0, peer.describe()
        eventually(lambda: serving.text().count("ended") == 5, "the ends of five connections")
        assert serving.running() and serving.text().count("ended 104") == 5, serving.describe()
    finally:
        serving.stop(signal.SIGKILL)
