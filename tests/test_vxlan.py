"""VXLAN: between two Viaducts, and with a plain Linux VXLAN device."""

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.layers.vxlan import VXLAN

from lab import RawPort, eventually
from lab.silence import unwanted
from lab.topology import SEATS, UNDERLAY, UNDERLAY6, bridge_entries, host_config, tap, two_hosts

A1, B1 = SEATS["a1"], SEATS["b1"]


@pytest.mark.parametrize("family", [4, 6])
def test_between_two_hosts(lab, family):
    connect = lambda config, *remotes: bridge_entries(config, *remotes, family=family)
    hosts, guests = two_hosts(lab, connect, ("a1", "b1", "b2"), family=family)
    with lab.capture("b", expression="udp port 4789") as seen:
        assert "ttl=64" in guests["a1"].expect_ping(B1.address)
        guests["a1"].expect_ping(B1.address6)
        guests["b2"].expect_ping(A1.address)
        guests["a1"].expect_ping(B1.address, size=3000)
    assert seen.expert() == []
    outer = "ip" if family == 4 else "ipv6"
    underlay = UNDERLAY if family == 4 else UNDERLAY6
    requests = seen.fields(
        f"icmp.type == 8 && {outer}.dst == {underlay['b']}", "vxlan.vni", "udp.checksum", "udp.srcport"
    )
    assert requests
    for vni, checksum, port in requests:
        assert vni == "5001"
        # RFC 7348: zero on IPv4; IPv6 wants a checksum.
        assert (checksum == "0x0000") == (family == 4)
        assert 49152 <= int(port) <= 65535


def linux_vxlan(lab, *, family=4):
    """Starts a plain Linux host c with an address of network blue behind a VXLAN device that floods to host a."""
    underlay = UNDERLAY if family == 4 else UNDERLAY6
    length = 24 if family == 4 else 64
    server = lab.server("c", f"{underlay['c']}/{length}")
    words = "udp6zerocsumrx" if family == 6 else ""
    server.namespace.ip("link add vx0 address 02:00:00:00:01:63 type vxlan id 5001 dstport 4789 dev up0",
                        "local", underlay["c"], "remote", underlay["a"], words)
    server.namespace.ip("link set vx0 mtu 1450 up")
    server.namespace.ip("addr add 10.1.1.99/24 dev vx0")
    server.namespace.ip("addr add fd00:1::63/64 dev vx0 nodad")
    return server


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("static", [True, False], ids=["static-mac", "flooded"])
def test_with_plain_linux(lab, family, static):
    lab.plug("a")
    config = host_config("a", {"a1": tap("a1")}, family=family)
    remote = {"tunnel": "vxlan", "remote": (UNDERLAY if family == 4 else UNDERLAY6)["c"], "vni": 5001}
    config.add("flood", network="blue", to=[remote])
    if static:
        config.add("mac", network="blue", mac="02:00:00:00:01:63", to=remote)
    host = lab.host(config)
    a1 = lab.container(host, "a1")
    linux = linux_vxlan(lab, family=family)
    with lab.capture("c", expression="udp port 4789") as seen:
        a1.expect_ping("10.1.1.99")
        a1.expect_ping("fd00:1::63")
        linux.expect_ping(A1.address)
        linux.expect_ping(A1.address6)
        linux.expect_ping("10.1.1.254")
    assert seen.expert() == []
    assert seen.fields("icmp.type == 0", "vxlan.vni")


def test_frames_from_a_tunnel_are_not_flooded_into_tunnels(lab):
    """The horizon is split: else two hosts that flood to each other would send a broadcast round for ever."""
    hosts, guests = two_hosts(lab, bridge_entries, ("a1", "b1"))
    broadcasts = "icmp.type == 8 && eth.dst == ff:ff:ff:ff:ff:ff"
    with lab.capture("fabric", "a-up0", "udp port 4789") as seen:
        guests["a1"].run(["ping", "-b", "-c", 3, "-i", 0.2, "-W", 1, "10.1.1.255"], check=False)
        seen.wait_for(broadcasts, 3)
    requests = seen.fields(broadcasts, "ip.src")
    assert len(requests) == 3, requests
    assert all(row[0].startswith(UNDERLAY["a"]) for row in requests)


def test_unknown_network_identifier_is_dropped_by_name(lab):
    hosts, guests = two_hosts(lab, bridge_entries, ("a1", "b1"))
    guests["a1"].expect_ping(B1.address)
    mac = hosts["a"].namespace.run(["cat", "/sys/class/net/up0/address"]).stdout.strip()
    inner = Ether(dst=A1.mac) / IP(src=B1.address, dst=A1.address) / UDP()
    outer = Ether(dst=mac) / IP(src=UNDERLAY["b"], dst=UNDERLAY["a"]) / UDP(sport=50000, dport=4789, chksum=0)
    with RawPort(lab.namespace("fabric"), "a-up0") as port:
        port.send(outer / VXLAN(vni=77, flags="Instance") / inner)
    eventually(lambda: hosts["a"].drops().get("unknown_vni") == 1, "drop unknown_vni")


def test_tunnel_packets_of_hosts_that_nobody_named_are_dropped(lab):
    hosts, guests = two_hosts(lab, bridge_entries, ("a1", "b1"))
    host, a1 = hosts["a"], guests["a1"]
    a1.expect_ping(B1.address)
    mac = host.namespace.run(["cat", "/sys/class/net/up0/address"]).stdout.strip()
    inner = Ether(dst=A1.mac) / IP(src=B1.address, dst=A1.address) / UDP() / b"from elsewhere"
    outer = Ether(dst=mac) / IP(src="192.0.2.66", dst=UNDERLAY["a"]) / UDP(sport=50000, dport=4789, chksum=0)
    frame = outer / VXLAN(vni=5001, flags="Instance") / inner
    wanted = lambda seen: b"from elsewhere" in seen
    with RawPort(lab.namespace("fabric"), "a-up0") as port, RawPort(a1.namespace, a1.device) as guest:
        port.send(frame)
        eventually(lambda: host.drops().get("unknown_remote") == 1, "drop unknown_remote")
        assert not unwanted(guest, A1, wanted)
        host.config.host["tunnel_peers"] = ["192.0.2.64/30"]
        host.apply(host.config)
        port.send(frame)
        guest.expect(wanted, "packet of a peer")
    explained = host.call("explain", "--in", "up0", bytes(frame).hex()).stdout
    assert "remote" in explained, explained


@pytest.mark.parametrize("family, sum, reason", [
    (4, 0x1234, "outer_checksum_wrong"),
    (6, 0x1234, "outer_checksum_wrong"),
    (6, 0, "outer_checksum_missing"),
])
def test_outer_checksums(lab, family, sum, reason):
    """The same packet passes with a right checksum, and with a wrong one or none is dropped by name."""
    connect = lambda config, *remotes: bridge_entries(config, *remotes, family=family)
    hosts, guests = two_hosts(lab, connect, ("a1", "b1"), family=family)
    host, a1 = hosts["a"], guests["a1"]
    a1.expect_ping(B1.address)
    mac = host.namespace.run(["cat", "/sys/class/net/up0/address"]).stdout.strip()
    ip = IP(src=UNDERLAY["b"], dst=UNDERLAY["a"]) if family == 4 else IPv6(src=UNDERLAY6["b"], dst=UNDERLAY6["a"])
    inner = Ether(src=B1.mac, dst=A1.mac) / IP(src=B1.address, dst=A1.address) / UDP() / (b"summed" + bytes(1000))
    carried = VXLAN(vni=5001, flags="Instance") / inner
    right = Ether(dst=mac) / ip / UDP(sport=50000, dport=4789) / carried
    wrong = Ether(dst=mac) / ip / UDP(sport=50000, dport=4789, chksum=sum) / carried
    wanted = lambda seen: b"summed" in seen
    with RawPort(lab.namespace("fabric"), "a-up0") as port, RawPort(a1.namespace, a1.device) as guest:
        for _ in range(2):
            port.send(right)
            guest.expect(wanted, "a packet with a right checksum")
        port.send(wrong, wrong)
        eventually(lambda: host.drops().get(reason) == 2, f"drop {reason}")
        assert not unwanted(guest, A1, wanted)
