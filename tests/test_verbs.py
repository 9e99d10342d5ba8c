"""Unmodified verbs programs on the devices of one host: the daemon copies, or trusting libraries share memory."""

import pytest

from lab import Meeting, eventually, meet
from lab.pairwise import pairwise
from lab.topology import host_config, verbs

# Acknowledgements may take four seconds, which a daemon without a CPU may need.
PERFTEST = ["-d", "viaduct0", "-x", "1", "-F", "-u", "20"]
# Where the daemon copies, and where devices of one user and trust do it themselves.
PAIRS = {"copy": ("a1", "a2"), "shared": ("t1", "t2")}
PINGPONGS = ["rc", "rc -e", "rc -N", "uc", "uc -e", "ud", "ud -e", "srq", "srq -e"]
RUNS = [
    *("send_lat -s 8", "send_lat -s 1048576 -n 50", "send_lat -e", "send_lat -c UC -s 4096", "send_lat -c UD -s 1024"),
    *("send_bw -s 8 --use_old_post_send", "send_bw -s 4096 -q 4", "send_bw -s 1048576 -n 100", "send_bw -e"),
    *("send_bw -b", "send_bw --use-srq", "send_bw -c UC -s 65536", "send_bw -c UD -s 1024 -q 4"),
    *("send_bw -c UD -s 8 -e", "send_bw -I 64 -s 64", "write_lat -s 8", "write_lat -s 4096 --use_old_post_send"),
    *("write_lat -s 1048576 -n 50", "write_lat -c UC -s 8", "write_bw -s 8", "write_bw -s 4096 -q 4"),
    *("write_bw -s 1048576 -n 100", "write_bw -c UC -s 65536", "write_bw -l 8 -n 320", "read_lat -s 8"),
    "read_lat -s 1048576 -n 50",
    *("read_bw -s 8 --use_old_post_send", "read_bw -s 4096 -q 4", "read_bw -e", "read_bw -a -n 5"),
    *("atomic_lat", "atomic_lat --use_old_post_send", "atomic_bw -q 4", "atomic_bw -e"),
]


def perftest(run):
    """Returns the command line of one of the RUNS; 300 messages unless it says otherwise."""
    program, *options = run.split()
    return [f"ib_{program}", *PERFTEST, *([] if "-n" in options else ["-n", "300"]), *options]


@pytest.fixture(scope="module")
def host(shared_lab):
    """Starts one host whose devices a1 and a2 trust nobody, and t1 and t2 each other."""
    config = host_config("a", {"a1": verbs(), "a2": verbs()}, wire=False)
    for number, name in ((3, "t1"), (4, "t2")):
        keys = {"mac": f"02:00:00:00:01:{number:02x}", "addresses": [f"10.1.1.{number}", f"fd00:1::{number}"]}
        config.add("guest", name=name, network="blue", **keys, **verbs(rdma_trust="tenant"))
    return shared_lab.host(config)


@pytest.fixture
def pair(request, host, shared_lab):
    """Returns two devices; nothing may be left of a test on them."""
    devices = [shared_lab.verbs(host, guest) for guest in PAIRS[request.param]]
    yield devices
    for device in devices:
        device.expect_free()


on_every_pair = pytest.mark.parametrize("pair", PAIRS, indirect=True)


@pytest.mark.parametrize("pair, run", pairwise(PAIRS, PINGPONGS), indirect=["pair"])
def test_pingpong(pair, run):
    """Every byte arrives."""
    kind, *options = run.split()
    meet(*pair, f"ibv_{kind}_pingpong", "-g", "1", "-n", "300", "-c", *options)


@pytest.mark.parametrize("pair, run", pairwise(PAIRS, RUNS), indirect=["pair"])
def test_perftest(pair, run):
    meet(*pair, *perftest(run))


@pytest.fixture
def regions_in_files(monkeypatch):
    """Has programs move the pages of their regions into files."""
    monkeypatch.setenv("VIADUCT_RDMA_SHARE", "1")


IN_FILES = [
    *("send_lat -s 4096", "send_bw -s 1048576 -n 100", "send_bw --use-srq -s 8192", "send_bw -e -s 65536"),
    *("send_bw -c UD -s 1024", "write_lat -s 8", "write_bw -s 4096 -q 4", "write_bw -a -n 5"),
    *("read_lat -s 1048576 -n 50", "read_bw -a -n 5"),
    *("atomic_lat", "atomic_lat -A CMP_AND_SWAP", "atomic_bw -q 4", "atomic_bw -e"),
]


@pytest.mark.parametrize("pair, run", pairwise(PAIRS, IN_FILES), indirect=["pair"])
def test_regions_in_files(regions_in_files, pair, run):
    meet(*pair, *perftest(run))


@on_every_pair
@pytest.mark.parametrize("run", ["rc", "srq -e", "ud"])
def test_pingpong_with_regions_in_files(regions_in_files, pair, run):
    kind, *options = run.split()
    meet(*pair, f"ibv_{kind}_pingpong", "-g", "1", "-n", "300", "-c", *options)


@on_every_pair
def test_regions_in_files_are_shown(regions_in_files, pair):
    server, client = pair
    with Meeting(server, client, ["ib_write_bw", *PERFTEST, "-D", "900"]):
        regions = lambda: server.host.viaduct("rdma", "mr", "--device", server.device)
        eventually(lambda: [region["memory"] for region in regions()] == ["shared"], "a region in a file")


@on_every_pair
def test_ipv6(pair):
    meet(*pair, "ibv_rc_pingpong", "-g", "2", "-n", "300")


@pytest.mark.parametrize(
    "pair, run, transport",
    [
        ("copy", "send_bw", "copy"),
        ("copy", "write_bw -c UC", "copy"),
        ("copy", "send_bw -c UD -s 1024", "each"),
        ("shared", "write_bw", "shared"),
        ("shared", "send_bw", "shared"),
        ("shared", "read_bw", "shared"),
        ("shared", "atomic_bw", "shared"),
        ("shared", "send_lat", "shared"),
        ("shared", "send_bw --use-srq", "shared"),
        ("shared", "write_bw -c UC", "copy"),
    ],
    indirect=["pair"],
)
def test_what_is_shown_of_a_connection(pair, run, transport):
    server, client = pair
    program, *options = run.split()
    with Meeting(server, client, [f"ib_{program}", *PERFTEST, "-D", "900", *options]) as meeting:

        def established():
            assert all(one.running() for one in meeting.both), meeting.describe()
            rows = client.queue_pairs()
            return rows and rows[0]["state"] == "RTS" and rows[0]["transport"] == transport and rows

        (ours,) = eventually(established, f"{transport}: {client.host.call('rdma', 'qp').stdout}")
        (theirs,) = server.queue_pairs()
        # A server that only receives stays where it can: perftest does not take it any further. Who shares memory is
        # the one that sends.
        assert theirs["state"] in ("RTR", "RTS") and theirs["transport"] in (transport, "copy")
        if transport != "each":
            assert (ours["peer"], ours["peer_qpn"]) == (server.shown()["addresses"][0], theirs["qpn"])
        assert ours["reason"]
        assert (ours["pid"], theirs["pid"]) == (meeting.client.process.pid, meeting.server.process.pid)
        assert ours["type"] == (options[1] if "-c" in options else "RC")
        for device in pair:
            shown = device.shown()
            assert (
                shown["clients"] == 1 and shown["mrs"] == 1 and shown["cqs"] and shown["registered_bytes"] >= 4096
            ), shown


@on_every_pair
def test_counters_only_grow(pair):
    server, client = pair
    names = {server: "rcvd_bytes", client: "sent_bytes"}
    before = {device: device.counter(name) for device, name in names.items()}
    meet(*pair, *perftest("write_bw -s 65536 -n 100"))
    for device, name in names.items():
        assert device.counter(name) >= before[device] + 100 * 65536, name


def test_only_those_of_one_trust_share_memory(host, shared_lab):
    server, client = shared_lab.verbs(host, "a1"), shared_lab.verbs(host, "t1")
    with Meeting(server, client, ["ib_write_bw", *PERFTEST, "-D", "900"]):
        rows = eventually(lambda: [row for row in client.queue_pairs() if row["state"] == "RTS"], "RTS")
        eventually(lambda: server.counter("rcvd_bytes") > 0, "a message")
        assert [row["transport"] for row in rows] == ["copy"]


def test_devinfo_tells_of_the_device(host, shared_lab):
    device = shared_lab.verbs(host, "a1")
    told = device.start(["ibv_devinfo", "-v"])
    eventually(lambda: not told.running(), "its end")
    text = told.text()
    assert told.process.returncode == 0, text
    for word in ("viaduct0", "PORT_ACTIVE", "Ethernet", "::ffff:10.1.1.1", "RoCE v2"):
        assert word in text, text


def test_a_rate_is_waited_for(shared_lab):
    """Packets that the guest's policer would drop are not sent yet: it drops next to nothing."""
    slow = verbs(rdma_trust="tenant", rate={"mbps": 100, "burst_kb": 256})
    host = shared_lab.host(host_config("rate", {"a1": slow, "a2": verbs(rdma_trust="tenant")}, wire=False))
    server, client = (shared_lab.verbs(host, guest) for guest in ("a2", "a1"))
    meet(server, client, "ib_write_bw", *PERFTEST, "-s", "65536", "-n", "50")
    packets = 50 * 65536 // 1024
    assert client.counter("sent_pkts") >= packets and host.drops().get("rate_limited", 0) < packets, host.drops()
