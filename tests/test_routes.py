"""Routing on one host: between networks, to a guest, to nowhere."""

import re

from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.l2 import ARP, GRE, Dot1Q, Ether

from lab import PATIENCE, RawPort, eventually
from lab.topology import SEATS, host_config, tap

A1, A3 = SEATS["a1"], SEATS["a3"]


def leaking_host(lab):
    """Networks blue and red with routes to each other."""
    config = host_config("a", {"a1": tap("a1"), "a3": tap("a3")}, wire=False)
    for network, prefixes, other in (
        ("blue", ("10.2.2.0/24", "fd00:2::/64"), "red"),
        ("red", ("10.1.1.0/24", "fd00:1::/64"), "blue"),
    ):
        for prefix in prefixes:
            config.add("route", network=network, prefix=prefix, to={"network": other})
    host = lab.host(config)
    return host, lab.container(host, "a1"), lab.container(host, "a3")


def test_route_between_networks(lab):
    host, a1, a3 = leaking_host(lab)
    assert "ttl=63" in a1.expect_ping(A3.address, 1)
    a1.expect_ping(A3.address6)
    a3.expect_ping(A1.address)
    output = a1.run(["traceroute", "-n", "-w", PATIENCE, "-q", 1, "-m", 4, A3.address]).stdout
    assert re.findall(r"^ *\d+ +(\S+)", output, re.M) == ["10.1.1.254", A3.address], output
    host.apply(host.config.without("route", network="blue"))
    a1.expect_no_ping(A3.address, 2)


def test_dropped_prefix_inside_a_wider_route(lab):
    host, a1, a3 = leaking_host(lab)
    a1.expect_ping(A3.address)
    host.apply(host.config.copy().add("route", network="blue", prefix=f"{A3.address}/32", to="drop"))
    a1.expect_no_ping(A3.address, 2)
    assert host.drops().get("discard_route")


def test_no_route_is_told_to_the_sender(lab):
    host, a1, _ = leaking_host(lab)
    received, output = a1.ping("172.16.1.1", 2, timeout=PATIENCE)
    assert received == 0 and "Unreachable" in output, output
    assert host.drops().get("no_route")


def test_circle_of_networks_is_dropped_by_name(lab):
    config = host_config("a", {"a1": tap("a1"), "a3": tap("a3")}, wire=False)
    config.add("route", network="blue", prefix="172.16.0.0/12", to={"network": "red"})
    config.add("route", network="red", prefix="172.16.0.0/12", to={"network": "blue"})
    host = lab.host(config)
    a1 = lab.container(host, "a1")
    a1.ping("172.16.1.1", 2, timeout=1)
    eventually(lambda: host.drops().get("route_loop"), "drop route_loop")


def test_vlan_network_on_a_wire(lab):
    """Frames of a provider network leave by the wire with a VLAN tag."""
    lab.plug("a")
    config = host_config("a", {})
    config.add("network", name="provider", vrf=7, gateways=["10.7.7.254/24"], wire="up0", vlan=7)
    config.add("guest", name="p1", network="provider", mac="02:00:00:00:07:01", addresses=["10.7.7.1"], **tap("p1"))
    host = lab.host(config)
    p1 = lab.container(host, "p1")
    mac = "02:00:00:00:07:63"
    with RawPort(lab.namespace("fabric"), "a-up0") as outside:
        request = (
            Ether(src=mac, dst="ff:ff:ff:ff:ff:ff") / Dot1Q(vlan=7) / ARP(hwsrc=mac, psrc="10.7.7.99", pdst="10.7.7.1")
        )
        outside.send(request)
        # The kernel keeps a received tag apart from the frame: the packet socket shows the frame without it.
        answered = outside.expect(
            lambda frame: ARP in Ether(frame) and Ether(frame)[ARP].psrc == "10.7.7.1", "ARP reply"
        )
        assert Ether(answered)[ARP].hwsrc == "02:00:00:00:07:01"
        echo = IP(src="10.7.7.99", dst="10.7.7.1") / ICMP(id=7, seq=1) / b"tagged"
        with lab.capture("fabric", "a-up0", "vlan 7") as seen:
            p1.namespace.ip("neigh replace 10.7.7.99 lladdr", mac, "dev", p1.device)
            outside.send(Ether(src=mac, dst="02:00:00:00:07:01") / Dot1Q(vlan=7) / echo)
            outside.expect(lambda frame: b"tagged" in frame and Ether(frame)[IP].src == "10.7.7.1", "echo reply")
            seen.wait_for("icmp.type == 0")
        assert seen.fields("icmp.type == 0", "vlan.id") == [["7"]]
        # Untagged, the same frame is nobody's.
        outside.send(Ether(src=mac, dst="02:00:00:00:07:01") / echo)
        eventually(lambda: host.drops().get("not_for_us"), "drop not_for_us")


def test_tags_and_tunnels_of_guests_stay_off_the_wire(lab):
    """Guests of a network on the underlay's wire, untagged, can't be in the wire's VLANs, nor speak for other hosts."""
    lab.plug("a")
    config = host_config("a", {})
    config.add("network", name="provider", vrf=7, gateways=["10.7.7.254/24"], wire="up0")
    config.add("guest", name="p1", network="provider", **tap("p1"))
    host = lab.host(config)
    p1 = lab.container(host, "p1")
    ethernet = Ether(src="02:00:00:00:07:01", dst="02:00:00:00:07:63")
    ip = IP(src="10.7.7.1", dst="192.0.2.2")
    forged, plain = b"of the guest", b"plain"
    frames = {
        "vlan_unexpected": [
            ethernet / Dot1Q(vlan=9) / ip / UDP() / forged,
            ethernet / Dot1Q(vlan=0) / Dot1Q(vlan=9) / ip / UDP() / forged,
        ],
        # A priority tag hides nothing.
        "underlay_tunnel": [
            link / ip / tunnel / forged
            for link in (ethernet, ethernet / Dot1Q(vlan=0))
            for tunnel in (UDP(sport=50000, dport=4789), UDP(sport=50000, dport=6635), GRE(proto=0x8847))
        ],
    }
    ordinary = ethernet / ip / UDP() / plain
    with RawPort(p1.namespace, p1.device) as guest, lab.capture("fabric", "a-up0") as seen:
        for reason, all_frames in frames.items():
            guest.send(*all_frames)
            eventually(lambda: host.drops().get(reason) == len(all_frames), f"drop {reason}")
        guest.send(ordinary)
        seen.wait_for(f"frame contains {plain.hex(':')}")
    assert seen.fields(f"frame contains {forged.hex(':')}", "frame.number") == []
