"""Every loss has a name: what goes in comes out or is counted among the drops, at each kind of port, under overload."""

import signal
import socket

from lab import eventually
from lab.topology import SEATS, one_host, tunnel_routes, two_hosts

A2, B1 = SEATS["a2"], SEATS["b1"]
# ARP, neighbour discovery and what else a kernel sends by itself meanwhile.
NOISE = 30


def connected(lab):
    hosts, guests = two_hosts(lab, lambda config, *remotes: tunnel_routes(config, "mpls-over-udp", *remotes))
    guests["a1"].expect_ping(B1.address)
    return hosts, guests


def vif(host, name):
    return next(row for row in host.viaduct("vif") if row["name"] == name)


def drops(host, interface):
    rows = host.viaduct("dropstats", "-i", interface)["reasons"]
    return {row["reason"]: row["packets"] for row in rows if row["packets"]}


def flood(guest, address, count, size):
    """Sends datagrams as fast as the guest's kernel takes them; returns how many it took."""
    taken = 0
    with guest.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(count):
            try:
                taken += sender.sendto(bytes(size), (address, 9)) == size
            except OSError:
                pass
    return taken


def test_a_wire_whose_device_takes_less_than_its_mtu(lab):
    hosts, guests = connected(lab)
    a, a1 = hosts["a"], guests["a1"]
    assert not any("takes packets of" in warning["message"] for warning in a.viaduct("status").get("warnings", []))
    a.namespace.ip("link set up0 mtu 1500")
    before = vif(a, "up0")
    received, _ = a1.ping(B1.address, 20, size=3000, options=("-M", "do", "-i", "0.05"), timeout=1)
    assert received == 0
    assert drops(a, "up0").get("tx_too_long") == 20
    after = vif(a, "up0")
    assert after["tx_drops"] - before.get("tx_drops", 0) == after["refused"] == 20
    assert after["tx_packets"] - before["tx_packets"] < 20, "what was refused was not sent"
    log = [row["text"] for row in a.viaduct("dropstats", "--log", "10")["log"] if row["reason"] == "tx_too_long"]
    assert "icmp echo" in log[0] and "hex" not in log[0].split("payload")[0], log
    told = [warning["message"] for warning in a.viaduct("status")["warnings"]]
    assert any("takes packets of 1500 bytes, and `mtu` is 9000" in message for message in told), told
    assert "takes packets of 1500 bytes" in a.call("check", a.file).stdout


def test_a_device_whose_queue_is_full(lab):
    hosts, guests = connected(lab)
    a = hosts["a"]
    a.namespace.run(["tc", "qdisc", "add", "dev", "up0", "root", "tbf", "rate", "1mbit", "burst", "3kb", "limit", "6kb"])
    before = vif(a, "up0"), vif(a, "a1"), a.drops()
    sent = flood(guests["a1"], B1.address, 2000, 1000)
    came = lambda: vif(a, "a1")["rx_packets"] - before[1]["rx_packets"] >= sent
    eventually(came, "all that the guest sent")
    out = vif(a, "up0")["tx_packets"] - before[0]["tx_packets"]
    lost = {reason: n - before[2].get(reason, 0) for reason, n in a.drops().items()}
    assert lost["tx_full"] > 1000, lost
    assert abs(vif(a, "a1")["rx_packets"] - before[1]["rx_packets"] - out - sum(lost.values())) <= NOISE, (out, lost)
    assert drops(a, "up0")["tx_full"] == lost["tx_full"] == vif(a, "up0")["refused"]


def test_a_wire_that_nobody_reads(lab):
    """The kernel counts frames as they come, of which each may be many datagrams of one large send."""
    hosts, guests = connected(lab)
    a, b = hosts["a"], hosts["b"]
    b.daemon.process.send_signal(signal.SIGSTOP)
    try:
        # More than the kernel's buffer holds, however slowly the guest's packets are taken.
        while vif(a, "up0")["tx_packets"] < 60000:
            flood(guests["a1"], B1.address, 1000, 100)
    finally:
        b.daemon.process.send_signal(signal.SIGCONT)
    eventually(lambda: drops(b, "up0").get("rx_full"), "the kernel's losses")
    eventually(lambda: vif(b, "up0")["rx_drops"] >= drops(b, "up0")["rx_full"] == b.drops()["rx_full"], "the same sum")


def test_a_tap_that_nobody_reads(lab):
    host, (a1, _) = one_host(lab, "a1", "a2")
    a1.expect_ping(A2.address)
    before = vif(host, "a1")
    host.daemon.process.send_signal(signal.SIGSTOP)
    try:
        sent = flood(a1, A2.address, 5000, 100)
    finally:
        host.daemon.process.send_signal(signal.SIGCONT)
    got = lambda: vif(host, "a1")["rx_packets"] - before["rx_packets"] + drops(host, "a1").get("rx_full", 0)
    eventually(lambda: sent <= got(), "what came and what was lost")
    assert got() <= sent + NOISE
    assert drops(host, "a1").get("rx_full", 0) == vif(host, "a1").get("lost", 0)
