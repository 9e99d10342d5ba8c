"""What viaductd remembers of traffic outlives it, however it ends."""

import pytest

from lab import Failed, Server, eventually
from lab.topology import SEATS, host_config, tap

A1, A2 = SEATS["a1"], SEATS["a2"]
PORT = 7000

_ANSWER = f"""
import socket
with socket.create_server(("", {PORT})) as server:
    there, _ = server.accept()
    while data := there.recv(1000):
        there.sendall(data)
"""
_ASK = """
import itertools, socket, time
with socket.create_connection(("{address}", {port}), timeout=600) as there:
    stream = there.makefile("rw")
    for number in itertools.count():
        print(number, file=stream, flush=True)
        answer = stream.readline()
        assert answer == f"{{number}}\\n", answer
        print("answer", number, flush=True)
        time.sleep(0.02)
"""


class Session:
    """A TCP connection, whose answers are counted."""

    def __init__(self, client, server, address):
        self.server = server.background(["/usr/bin/python3", "-c", _ANSWER], "answers")
        eventually(lambda: f":{PORT} " in server.run(["ss", "-ltn"]).stdout, "the server listens")
        ask = _ASK.format(address=address, port=PORT)
        self.client = client.background(["/usr/bin/python3", "-c", ask], "asks")
        self.more()

    def more(self, answers=20):
        """Waits until more answers have come."""
        count = lambda: len(self.client.text().splitlines())
        before = count()
        eventually(lambda: not self.client.running() or count() >= before + answers, "answers come")
        if not self.client.running():
            raise Failed(self.client.describe())


def guarded(guests=("a1", "a2")):
    """Configures a host where only connections to port 7000 of a2 may begin, and none is picked up in mid-stream."""
    config = host_config("a", {guest: tap(guest) for guest in guests}, wire=False)
    config.entry("network", "blue")["tcp_midstream"] = False
    config.rule("blue", 100, "allow", to={"guest": "a2"}, protocol="tcp", ports=str(PORT))
    config.add("default", network="blue", action="drop")
    return config


def connection(host):
    [flow] = host.viaduct("flow", "--match", f"tcp & port {PORT}")
    return flow


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_connections_live_on(lab, how):
    host = lab.host(guarded())
    a1, a2 = lab.container(host, "a1"), lab.container(host, "a2")
    session = Session(a1, a2, A2.address)
    before = connection(host)
    for _ in range(3):
        getattr(host, how)()
        host.start()
        session.more()
    after = connection(host)
    same = ["network", "source", "source_port", "destination", "destination_port", "protocol", "state"]
    assert [after[key] for key in same] == [before[key] for key in same]
    assert after["packets"] > before["packets"] and after["age"] >= before["age"]
    assert "tcp_midstream" not in host.drops()
    # It is the connection that lets them through.
    host.call("flow", "flush")
    eventually(lambda: host.drops().get("tcp_midstream"), "packets of a connection that nobody knows are dropped")


def test_rules_of_a_changed_file_cut_connections(lab):
    host = lab.host(guarded())
    a1, a2 = lab.container(host, "a1"), lab.container(host, "a2")
    session = Session(a1, a2, A2.address)
    host.kill()
    host.config = guarded().rule("blue", 10, "drop", protocol="tcp")
    host.start()
    assert connection(host)["state"] == "established"
    eventually(lambda: host.drops().get("rule_drop"), "the rule cuts it")
    host.apply(guarded())
    session.more()


def test_a_guest_of_the_same_name_has_no_connections_of_another(lab):
    host = lab.host(guarded())
    a1, a2 = lab.container(host, "a1"), lab.container(host, "a2")
    Session(a1, a2, A2.address)
    host.kill()
    host.config = guarded()
    host.config.entry("guest", "a2")["mac"] = "02:00:00:00:01:77"
    host.start()
    assert host.viaduct("flow", "--match", f"tcp & port {PORT}") == []
    assert "not the same any more" in host.daemon.text()


def test_files_that_nobody_understands_are_dropped_with_a_message(lab):
    host = lab.host(guarded())
    a1, a2 = lab.container(host, "a1"), lab.container(host, "a2")
    Session(a1, a2, A2.address)
    host.kill()
    for file in host.run_dir.glob("carryover.*"):
        with open(file, "r+b") as torn:
            torn.write(b"something")
    host.start()
    assert host.viaduct("flow", "--match", f"tcp & port {PORT}") == []
    assert "it is not what a viaductd writes" in host.daemon.text()
    a1.expect_no_ping(A2.address, 1)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_connections_to_a_floating_address_live_on(lab, how):
    lab.plug("a", "ext0", mtu=1500, fabric="outside")
    config = guarded()
    config.add("wire", name="ext0", driver="af-packet", device="ext0")
    config.add("network", name="public", vrf=3, gateways=["203.0.113.254/24"], wire="ext0", tcp_midstream=False)
    config.add("route", network="blue", prefix="0.0.0.0/0", to={"network": "public"})
    config.add("nat", network="blue", inside=A2.address, outside="203.0.113.7", outside_network="public")
    host = lab.host(config)
    outside = lab.plug("c", "ext0", mtu=1500, fabric="outside")
    outside.ip("addr add 203.0.113.1/24 dev ext0")
    session = Session(Server(outside), lab.container(host, "a2"), "203.0.113.7")
    for _ in range(2):
        getattr(host, how)()
        host.start()
        session.more()
    assert connection(host)["destination"] == A2.address
    assert "tcp_midstream" not in host.drops()


def test_a_learned_mac_is_known_after_a_crash(lab):
    """Frames to a guest without `mac` are not flooded to the third one after a crash."""
    config = host_config("a", {guest: tap(guest) for guest in ("a1", "a2")}, wire=False)
    for guest in ("a1", "a2"):
        for key in ("mac", "addresses", "label"):
            del config.entry("guest", guest)[key]
    host = lab.host(config)
    a1, a2 = lab.container(host, "a1"), lab.container(host, "a2")
    for container, seat in ((a1, A1), (a2, A2)):
        container.namespace.ip("link set", container.device, "address", seat.mac)
        container.namespace.ip("addr add", f"{seat.address}/24", "dev", container.device)
    a1.expect_ping(A2.address)
    learned = lambda: {
        row["mac"]: (row["nexthop"], row["idle"])
        for row in host.viaduct("bridge", "--network", "blue")
        if not row["static"]
    }
    eventually(lambda: learned().keys() >= {A1.mac, A2.mac}, "both are learned")
    a2.namespace.ip("link set", a2.device, "down")  # it says nothing any more
    eventually(lambda: learned()[A2.mac][1] >= 3, "it was silent for a while")
    before = learned()[A2.mac]
    host.kill()
    host.start()
    where, idle = learned()[A2.mac]
    assert where == before[0] == "a2" and idle >= before[1]


def metrics(host):
    """Reads counters, by their labels."""
    lines = host.namespace.run(["curl", "-s", "http://127.0.0.1:9101/metrics"]).stdout.splitlines()
    values = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    # Counters of the kernel, of the process and of its descriptors, begin with these.
    own = ("process_", "viaduct_vif_lost", "viaduct_vif_refused", "viaduct_vif_malformed", "viaduct_rdma")
    return {name: int(value) for name, value in values if "_total" in name and not name.startswith(own)}


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_counters_go_on(lab, how):
    config = host_config("a", {guest: tap(guest) for guest in ("a1", "a2")}, wire=False, metrics="127.0.0.1:9101")
    config.rule("blue", 10, "drop", protocol="udp").rule("blue", 20, "allow", protocol="icmp")
    host = lab.host(config)
    a1, _ = lab.container(host, "a1"), lab.container(host, "a2")
    a1.expect_ping(A2.address)
    a1.run(["bash", "-c", f"echo x > /dev/udp/{A2.address}/9"])
    eventually(lambda: host.drops().get("rule_drop"), "a drop")
    host.viaduct("rule")  # brings the counters of rules up to date
    wanted = ["viaduct_flows_created_total", 'viaduct_drops_total{reason="rule_drop"}']
    for _ in range(2):
        # Counters of the last second may be missing after a crash: these are older.
        reached, since = metrics(host), host.viaduct("status")["uptime"]
        assert all(reached[name] for name in wanted)
        eventually(lambda: host.viaduct("status")["uptime"] >= since + 3, "what was counted is written")
        getattr(host, how)()
        host.start()
        now = metrics(host)
        assert {name: (value, now.get(name)) for name, value in reached.items() if now.get(name, 0) < value} == {}
        a1.expect_ping(A2.address)
    # A new guest begins with zero.
    getattr(host, how)()
    host.config = config.copy()
    host.config.entry("guest", "a2")["mac"] = "02:00:00:00:01:77"
    host.start()
    now = metrics(host)
    labels = 'vif="{}",kind="tap",network="blue"'
    name = "viaduct_vif_receive_packets_total"
    counted = lambda guest: now[f"{name}{{{labels.format(guest)}}}"]
    assert counted("a1") >= reached[f"{name}{{{labels.format('a1')}}}"]
    assert counted("a2") < reached[f"{name}{{{labels.format('a2')}}}"]
