"""Verbs between hosts: RoCEv2 through tunnels, under rules, and seen by those who look at packets."""

import zlib
from itertools import groupby

import pytest
from scapy.layers.inet import IP, UDP

from lab import Meeting, RawPort, eventually, expert, fields, meet
from lab.topology import SEATS, bridged_routes, host_config, tap, tunnel_routes, two_hosts, two_verbs_hosts, verbs
from lab.traffic import EchoServer, datagram, send, send_in_vain

A1, B1 = SEATS["a1"], SEATS["b1"]
PERFTEST = ["-d", "viaduct0", "-F"]
PINGPONGS = ["rc", "rc -e", "rc -N", "uc", "uc -e", "ud", "ud -e", "srq", "srq -e"]
RUNS = [
    *("send_lat -s 8", "send_lat -c UD -s 1024", "send_bw -s 65536", "send_bw -c UC -s 4096", "send_bw -c UD -s 1024"),
    *(
        "send_bw -e",
        "send_bw -b",
        "write_lat -s 8",
        "write_bw -s 1048576 -n 50",
        "write_bw -c UC -s 65536",
        "read_lat -s 8",
    ),
    *("read_bw -s 65536 -q 4", "read_bw -a -n 5", "atomic_lat", "atomic_bw -q 4"),
]
# Operations of RoCEv2 (InfiniBand Architecture Specification 1, table 38).
FIRST, MIDDLE, LAST, ONLY = range(4)
SEND, WRITE, READ_RESPONSE = (
    {FIRST: 0, MIDDLE: 1, LAST: 2, ONLY: 4},
    {FIRST: 6, MIDDLE: 7, LAST: 8},
    {FIRST: 13, MIDDLE: 14, LAST: 15},
)
READ, ACK, ATOMIC_ACK, FETCH_ADD, UC, UD_SEND = 12, 17, 18, 20, 0x20, 0x64


def perftest(run, gid="1"):
    """Returns the command line of one of the RUNS; 200 messages unless it says otherwise."""
    program, *options = run.split()
    return [f"ib_{program}", *PERFTEST, "-x", gid, *([] if "-n" in options else ["-n", "200"]), *options]


def over_mpls(config, *remotes):
    return tunnel_routes(config, "mpls-over-udp", *remotes)


@pytest.fixture(scope="module")
def pair(shared_lab):
    """Starts devices a1 and b1 of two hosts, MPLS over UDP between them."""
    _, devices = two_verbs_hosts(shared_lab, over_mpls)
    return devices["a1"], devices["b1"]


@pytest.fixture
def nothing_left(pair):
    yield
    for device in pair:
        device.expect_free()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("run", PINGPONGS)
def test_pingpong(pair, run):
    kind, *options = run.split()
    meet(*pair, f"ibv_{kind}_pingpong", "-g", "1", "-n", "200", "-c", *options)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("run", RUNS)
def test_perftest(pair, run):
    meet(*pair, *perftest(run))


@pytest.mark.usefixtures("nothing_left")
def test_ipv6(pair, shared_lab):
    with shared_lab.capture("fabric", "a-up0", "udp port 6635") as seen:
        meet(*pair, "ibv_rc_pingpong", "-g", "2", "-n", "100")
        meet(*pair, *perftest("write_bw -s 65536", gid="2"))
    assert seen.fields(f"infiniband && ipv6.src == {A1.address6} && ipv6.dst == {B1.address6}", "frame.number")
    # RoCEv2 has no UDP checksum, over IPv6 neither (annex A17.3.2).
    assert {message for *_, message in seen.expert()} <= {"Illegal checksum value (0)"}


def test_what_is_shown_of_a_connection(pair):
    server, client = pair
    with Meeting(server, client, [*perftest("write_bw -n 5000"), "-D", "900"]) as meeting:

        def established():
            assert all(one.running() for one in meeting.both), meeting.describe()
            return [row for row in client.queue_pairs() if row["state"] == "RTS"]

        (ours,) = eventually(established, "RTS")
        (theirs,) = server.queue_pairs()
        assert (ours["transport"], theirs["transport"]) == ("roce", "roce")
        assert (ours["peer"], ours["peer_qpn"]) == (A1.address, theirs["qpn"])
        for device, name in ((client, "sent_pkts"), (server, "rcvd_pkts")):
            before = device.counter(name)
            eventually(lambda: device.counter(name) > before, f"more {name}")


# run, messages of 4096 bytes; what the client's packets carry, and what the server's
SEQUENCES = {
    "send_bw": ([SEND[FIRST], SEND[MIDDLE], SEND[MIDDLE], SEND[LAST]], {ACK}),
    "send_bw -c UC": ([UC | SEND[FIRST], UC | SEND[MIDDLE], UC | SEND[MIDDLE], UC | SEND[LAST]], set()),
    "write_bw": ([WRITE[FIRST], WRITE[MIDDLE], WRITE[MIDDLE], WRITE[LAST]], {ACK}),
    "read_bw": ([READ], {READ_RESPONSE[FIRST], READ_RESPONSE[MIDDLE], READ_RESPONSE[LAST]}),
    "atomic_bw": ([FETCH_ADD], {ATOMIC_ACK}),
    "send_bw -c UD -s 1024": ([UD_SEND], set()),
}


@pytest.mark.parametrize("run", SEQUENCES)
def test_packets_on_the_underlay(pair, shared_lab, run):
    """tshark reads RoCEv2 inside MPLS over UDP: operations in their order, and packet numbers without a gap."""
    requests, responses = SEQUENCES[run]
    messages = 20
    server, client = pair
    size = [] if "atomic" in run or "-s" in run else ["-s", "4096"]
    shared_lab.segment("a", "b")
    with shared_lab.capture("fabric", "a-up0", "udp port 6635") as seen:
        meet(server, client, *perftest(f"{run} -n {messages}"), *size, "-m", "1024")
    assert seen.expert() == []
    names = ("infiniband.bth.psn", "infiniband.bth.opcode", "udp.dstport", "mpls.label")
    rows = seen.fields(f"infiniband && ip.src == {B1.address}", *names)
    assert {(ports, label) for *_, ports, label in rows} == {("6635,4791", str(A1.label))}
    # A packet may have been sent again: a busy machine is late with acknowledgements.
    numbers = {int(psn): int(opcode) for psn, opcode, *_ in rows}
    step = 4 if run == "read_bw" else 1
    expected = requests * messages
    first = int(rows[0][0])
    assert [numbers.get((first + step * index) & 0xFFFFFF) for index in range(len(expected))] == expected
    answers = seen.fields(f"infiniband && ip.src == {A1.address}", "infiniband.bth.opcode", "mpls.label")
    assert {int(opcode) for opcode, _ in answers} == responses
    assert {label for _, label in answers} <= {str(B1.label)}


def icrc(packet):
    """Returns the invariant CRC that belongs to an IPv4 packet with RoCEv2, and the one that is in it (specification
    annex A17.3.3)."""
    bytes_ = bytearray(packet)
    for index in (1, 8, 10, 11, 26, 27, 32):
        bytes_[index] = 0xFF
    return zlib.crc32(b"\xff" * 8 + bytes_[:-4]).to_bytes(4, "little"), bytes(packet[-4:])


def test_invariant_crc(pair, shared_lab):
    shared_lab.segment("a", "b")
    with shared_lab.capture("fabric", "b-up0", "udp port 6635") as seen:
        meet(*pair, *perftest("send_bw -s 3001 -n 10"))
    frames = [bytes.fromhex(row[0].split(",")[0]) for row in seen.fields("infiniband", "udp.payload")]
    assert frames
    for frame in frames:
        label, packet = frame[:4], frame[4:]
        assert label[2] & 1, "bottom of stack"
        assert IP(packet)[UDP].dport == 4791
        belongs, found = icrc(packet[: int.from_bytes(packet[2:4], "big")])
        assert found == belongs


def test_over_vxlan(lab):
    _, devices = two_verbs_hosts(lab, bridged_routes)
    pair = devices["a1"], devices["b1"]
    with lab.capture("fabric", "a-up0", "udp port 4789") as seen:
        for kind in ("rc", "ud"):
            meet(*pair, f"ibv_{kind}_pingpong", "-g", "1", "-n", "100", "-c")
        meet(*pair, *perftest("write_bw -s 65536"))
        meet(*pair, *perftest("read_lat"))
    assert seen.expert() == []
    assert seen.fields("vxlan && infiniband.bth.opcode == 6", "frame.number")


@pytest.mark.parametrize("where", ["a", "b"])
def test_a_rule_stops_it(lab, where):
    """A rule at either host ends a running program with an error, and one that comes later does not connect."""
    hosts, devices = two_verbs_hosts(lab, over_mpls)
    pair = devices["a1"], devices["b1"]
    meet(*pair, *perftest("send_lat"))
    with Meeting(*pair, [*perftest("write_bw -n 5000"), "-D", "900"]) as meeting:
        eventually(lambda: devices["a1"].counter("rcvd_bytes") > 1 << 20, "a megabyte")
        hosts[where].apply(hosts[where].config.copy().rule("blue", 10, "drop", protocol="udp", ports="4791"))
        eventually(lambda: not meeting.client.running(), "the client's end")
        assert meeting.client.process.returncode != 0
        assert "Completion with error" in meeting.client.text(), meeting.describe()
        assert hosts[where].drops().get("rule_drop", 0) > 0
    with Meeting(*pair, ["ibv_rc_pingpong", "-g", "1", "-n", "10"]) as meeting:
        eventually(lambda: not all(one.running() for one in meeting.both), "an end")
        assert "(12)" in meeting.server.text() + meeting.client.text(), meeting.describe()
    hosts[where].apply(hosts[where].config.without("rule", priority=10))
    meet(*pair, *perftest("send_lat"))


def test_no_nat(lab):
    """A device's packets to and from a floating address, which would break the invariant CRC, are refused by name."""
    lab.plug("a")
    config = host_config("a", {"a1": verbs(), "a3": verbs()})
    config.add("nat", network="blue", inside=A1.address, outside="10.2.2.100", outside_network="red")
    config.add("route", network="blue", prefix="10.2.2.0/24", to={"network": "red"})
    host = lab.host(config)
    text = (
        f"eth {A1.mac} > 00:00:5e:00:01:00 / ip4 {A1.address} > {SEATS['a3'].address} df / udp 50000 > 4791 nosum / "
        "payload 32"
    )
    told = host.call("explain", "--in", "a1", text, check=False)
    assert "roce_nat" in told.stdout, told.stdout + told.stderr


def test_a_port_beside_a_device_has_no_roce(lab):
    """UDP 4791 belongs to the device; everything else of the guest goes by its port."""
    config = host_config("a", {"a1": {**tap("a1"), "rdma": "a1"}, "a2": tap("a2")}, wire=False)
    host = lab.host(config)
    a1, a2 = lab.container(host, "a1"), lab.container(host, "a2")
    a1.expect_ping(SEATS["a2"].address)
    with EchoServer(a2, 4791), EchoServer(a2, 4792):
        assert datagram(a1, SEATS["a2"].address, 4792)
        assert host.drops().get("rdma_owned") is None
        send_in_vain(host, "rdma_owned", a1, SEATS["a2"].address, 4791)
    with EchoServer(a1, 4791), EchoServer(a1, 4792), RawPort(a1.namespace, a1.device) as port:
        send(a2, A1.address, 4791, b"the device's")
        assert datagram(a2, A1.address, 4792, b"the port's")
        came = port.before(lambda frame: b"the port's" in frame, lambda frame: b"the device's" in frame, "datagram")
        assert not came, "the port gets what belongs to the device"


def test_a_port_without_a_device_may_run_roce_itself(lab):
    _, guests = two_hosts(lab, over_mpls)
    with EchoServer(guests["b1"], 4791):
        assert datagram(guests["a1"], B1.address, 4791)


def test_capture_explain_and_stats(lab):
    hosts, devices = two_verbs_hosts(lab, over_mpls)
    pair = devices["a1"], devices["b1"]
    files = {name: lab.directory / f"{name}.pcapng" for name in hosts}
    captures = {name: host.background("capture", "-w", files[name], label="capture") for name, host in hosts.items()}
    for file in files.values():
        eventually(lambda: file.exists() and file.stat().st_size > 0, "the capture's file")
    meet(*pair, *perftest("write_bw -s 4096 -n 20"))
    for name, file in files.items():
        eventually(
            lambda: fields(file, "infiniband.bth.opcode == 17 && mpls", "frame.number"),
            "an acknowledgement in a tunnel",
        )
        assert captures[name].stop(2) == 0, captures[name].describe()
        guest = "a1" if name == "a" else "b1"
        seen = fields(file, "infiniband", "frame.interface_name", "frame.protocols")
        by_interface = {key: list(rows) for key, rows in groupby(sorted(seen), lambda row: row[0])}
        assert set(by_interface) == {guest, "up0"}, set(by_interface)
        assert all(":mpls:" not in protocols for _, protocols in by_interface[guest])
        assert all(":mpls:" in protocols for _, protocols in by_interface["up0"])
        assert expert(file) == []
    text = (
        f"eth {A1.mac} > 00:00:5e:00:01:00 / ip4 {A1.address} > {B1.address} df / udp 50000 > 4791 nosum / roce rc "
        "send-only > 18 psn 100 / payload 32"
    )
    told = hosts["a"].call("explain", "--in", "a1", text).stdout
    assert str(B1.label) in told and "up0" in told, told
    rows = {row["name"]: row for row in hosts["a"].viaduct("vif")}
    assert rows["a1"]["kind"] == "rdma"
    shown = devices["a1"].shown()["counters"]
    assert shown["sent_pkts"] > 0 and shown["rcvd_pkts"] >= 20
    assert "received" in hosts["a"].call("stats").stdout
