"""Frames as tenants' stacks send them: priority tags, several MACs of a guest; mirrors."""

import re

from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import ICMPv6EchoReply, ICMPv6EchoRequest, ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6NDOptSrcLLAddr, IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether

from lab import RawPort, eventually
from lab.topology import GATEWAY_MAC, SEATS, host_config, one_host, tap

A1, A2 = SEATS["a1"], SEATS["a2"]
BROADCAST = "ff:ff:ff:ff:ff:ff"


def answer(port, question, layer):
    """Sends a question, and returns the answer that comes back on the port, with that layer."""
    port.send(question)
    return Ether(port.expect(lambda frame: layer in Ether(frame), f"answer with {layer.__name__}"))


def test_priority_tagged_frames_are_untagged_ones(lab):
    """The kernel here may lack VLAN devices, so the frames are made by hand."""
    _, (a1, a2) = one_host(lab, "a1", "a2")
    tagged = lambda dst: Ether(src=A1.mac, dst=dst) / Dot1Q(vlan=0, prio=3)
    with RawPort(a1.namespace, a1.device) as one, RawPort(a2.namespace, a2.device) as two:
        arp = answer(one, tagged(BROADCAST) / ARP(hwsrc=A1.mac, psrc=A1.address, pdst="10.1.1.254"), ARP)
        assert (arp[ARP].hwsrc, Dot1Q in arp) == (GATEWAY_MAC, False)
        solicitation = IPv6(src=A1.address6, dst="ff02::1:ff00:ffff") / ICMPv6ND_NS(tgt="fd00:1::ffff")
        question = tagged("33:33:ff:00:ff:ff") / solicitation / ICMPv6NDOptSrcLLAddr(lladdr=A1.mac)
        one.send(question)
        # Kernels announce their addresses, too.
        is_answer = lambda frame: ICMPv6ND_NA in frame and frame[ICMPv6ND_NA].tgt == "fd00:1::ffff"
        one.expect(lambda frame: is_answer(Ether(frame)), "the gateway's advertisement")
        ping = tagged(GATEWAY_MAC) / IP(src=A1.address, dst="10.1.1.254") / ICMP() / b"gateway"
        assert answer(one, ping, ICMP)[IP].src == "10.1.1.254"
        ping = tagged(GATEWAY_MAC) / IPv6(src=A1.address6, dst="fd00:1::ffff") / ICMPv6EchoRequest(data=b"gateway")
        assert answer(one, ping, ICMPv6EchoReply)[IPv6].src == "fd00:1::ffff"
        # The other guest's kernel answers: it got no tag that it would have to know of.
        ping = tagged(A2.mac) / IP(src=A1.address, dst=A2.address) / ICMP() / b"guest"
        assert answer(one, ping, ICMP)[IP].src == A2.address
        one.send(tagged(A2.mac) / IP(src=A1.address, dst=A2.address) / UDP(dport=9999) / b"bare")
        assert Dot1Q not in Ether(two.expect(lambda frame: b"bare" in frame, "frame"))


KEEPALIVED = """
global_defs {{
    router_id {name}
    vrrp_garp_master_delay 1
}}
vrrp_instance v4 {{
    interface {device}
    use_vmac
    virtual_router_id 51
    priority {priority}
    advert_int 1
    virtual_ipaddress {{ 10.1.1.50/24 }}
}}
vrrp_instance v6 {{
    interface {device}
    use_vmac
    native_ipv6
    virtual_router_id 51
    priority {priority}
    advert_int 1
    virtual_ipaddress {{
        fe80::50/64
        fd00:1::50/64
    }}
}}
"""


def keepalived(lab, guest, priority):
    """Starts keepalived in a container, as a router of the virtual address."""
    directory = guest.namespace.directory
    config = directory / f"{guest.name}-keepalived.conf"
    config.write_text(KEEPALIVED.format(name=guest.name, device=guest.device, priority=priority))
    pids = [f"--{kind}={directory / guest.name}-{name}.pid" for kind, name in (("pid", "main"), ("vrrp_pid", "vrrp"))]
    return guest.background(["keepalived", "--dont-fork", "--log-console", "--vrrp", f"--use-file={config}", *pids])


def test_keepalived_moves_a_virtual_mac_between_guests(lab):
    """Two routers with `use_vmac`: the virtual address answers by the virtual MAC, whoever has it, and nobody else
    may."""
    config = host_config("a", {name: tap(name) for name in ("a1", "a2", "b1")}, wire=False)
    for name in ("a1", "a2"):
        guest = config.entry("guest", name)
        guest["macs"] = ["00:00:5e:00:01:33", "00:00:5e:00:02:33"]
        guest["allowed"] = ["10.1.1.50/32", "fd00:1::50/128"]
    host = lab.host(config)
    a1, a2, b1 = (lab.container(host, name) for name in ("a1", "a2", "b1"))
    first, second = keepalived(lab, a1, 200), keepalived(lab, a2, 100)
    answers = lambda address: b1.ping(address, 1, timeout=2)[0] == 1
    reached = lambda address: eventually(lambda: answers(address), f"ping of {address}")
    location = lambda mac: [row for row in host.viaduct("bridge", "--network", "blue") if row["mac"] == mac]
    for address in ("10.1.1.50", "fd00:1::50"):
        reached(address)
    macs = b1.run(["ip", "neigh", "show"]).stdout
    assert re.search(r"10\.1\.1\.50 .*00:00:5e:00:01:33", macs) and re.search(
        r"fd00:1::50 .*00:00:5e:00:02:33", macs
    ), macs
    assert "a1" in str(location("00:00:5e:00:01:33")), host.viaduct("bridge", "--network", "blue")
    first.stop()
    for mac in ("00:00:5e:00:01:33", "00:00:5e:00:02:33"):
        eventually(lambda mac=mac: "a2" in str(location(mac)), f"{mac} to move")
    for address in ("10.1.1.50", "fd00:1::50"):
        reached(address)
    with RawPort(b1.namespace, b1.device) as port:
        port.send(
            Ether(src="00:00:5e:00:01:33", dst=BROADCAST)
            / ARP(hwsrc="00:00:5e:00:01:33", psrc="10.1.1.50", pdst="10.1.1.50")
        )
    eventually(lambda: host.drops().get("mac_spoofed"), "the drop of a MAC that is not the guest's")
    assert second.running()
    second.stop()


def test_a_mirror_shows_each_broadcast_once_and_answers_too(lab):
    config = host_config("a", {name: tap(name) for name in ("a1", "a2")}, wire=False)
    config.add("guest", name="mon", network="blue", kind="tap", device="tapmon")
    config.entry("guest", "a1")["mirror"] = "mon"
    host = lab.host(config)
    a1, mon = lab.container(host, "a1"), lab.container(host, "mon")
    lab.container(host, "a2")
    with RawPort(a1.namespace, a1.device) as one, RawPort(mon.namespace, mon.device) as seen:
        one.send(Ether(src=A1.mac, dst=BROADCAST) / IP(src=A1.address, dst="10.1.1.255") / UDP(dport=9999) / b"once")
        one.send(Ether(src=A1.mac, dst=GATEWAY_MAC) / IP(src=A1.address, dst="10.1.1.254") / ICMP() / b"answered")
        wanted = lambda frame: b"once" in frame or b"answered" in frame
        last = lambda frame: b"answered" in frame and Ether(frame)[ICMP].type == 0
        frames = seen.before(last, wanted, "copy of the answer")
        # One that came twice would be there before copies of what is sent now.
        one.send(Ether(src=A1.mac, dst=GATEWAY_MAC) / IP(src=A1.address, dst="10.1.1.254") / ICMP() / b"behind it")
        frames += seen.before(lambda frame: b"behind it" in frame, wanted, "copy")
    assert len([frame for frame in frames if b"once" in frame]) == 1
    kinds = [Ether(frame)[ICMP].type for frame in frames if b"answered" in frame]
    assert kinds == [8]


def test_a_mirror_on_another_host_gets_both_directions_in_vxlan(lab):
    lab.plug("a")
    config = host_config("a", {name: tap(name) for name in ("a1", "a2")})
    config.entry("guest", "a1")["mirror"] = "vxlan:192.0.2.2:77"
    host = lab.host(config)
    a1, a2 = lab.container(host, "a1"), lab.container(host, "a2")
    collector = lab.namespace("fabric")
    collector.ip("addr add 192.0.2.2/24 dev br0")
    wanted = {("8", ""), ("0", ""), ("", "128"), ("", "129")}
    with lab.capture("fabric", "a-up0") as seen:

        def all_shown():
            """Says whether all are shown; none is, until the mirror's MAC is known."""
            a1.expect_ping(A2.address)
            a2.expect_ping(A1.address6)
            return wanted <= {tuple(row) for row in seen.fields("vxlan.vni == 77", "icmp.type", "icmpv6.type")}

        eventually(all_shown, "copies of pings and their answers")


def test_a_kernel_that_forwards_is_warned_of(lab):
    lab.plug("a")
    host = lab.host(host_config("a", {"a1": tap("a1")}))
    warnings = lambda: [row for row in host.viaduct("status")["warnings"] if "forward" in str(row)]
    assert warnings() == []
    host.namespace.sysctl("net.ipv4.conf.up0.forwarding", 1)
    assert "up0" in str(warnings())


def test_a_trunk_puts_each_vlan_of_a_guest_into_a_network(lab):
    config = host_config("a", {name: tap(name) for name in ("a1", "a2", "a3")}, wire=False)
    config.entry("guest", "a1")["vlans"] = [{"tag": 10, "network": "red", "addresses": ["10.2.2.50", "fd00:2::50"]}]
    host = lab.host(config)
    a1, a2, a3 = (lab.container(host, name) for name in ("a1", "a2", "a3"))
    red = SEATS["a3"]
    tagged = lambda dst, vlan=10: Ether(src=A1.mac, dst=dst) / Dot1Q(vlan=vlan)
    echoed = lambda frame: (frame[Dot1Q].vlan, frame[Ether].src)
    with RawPort(a1.namespace, a1.device) as trunk, RawPort(a2.namespace, a2.device) as blue:
        arp = answer(trunk, tagged(BROADCAST) / ARP(hwsrc=A1.mac, psrc="10.2.2.50", pdst="10.2.2.254"), ARP)
        assert (echoed(arp), arp[ARP].hwsrc) == ((10, GATEWAY_MAC), GATEWAY_MAC)
        # The other guest's kernel asks for the address, which Viaduct knows, and answers by the VLAN.
        ping = tagged(red.mac) / IP(src="10.2.2.50", dst=red.address) / ICMP() / b"bridged"
        assert echoed(answer(trunk, ping, ICMP)) == (10, red.mac)
        ping = tagged(red.mac) / IPv6(src="fd00:2::50", dst=red.address6) / ICMPv6EchoRequest(data=b"bridged")
        assert echoed(answer(trunk, ping, ICMPv6EchoReply)) == (10, red.mac)
        trunk.send(tagged(BROADCAST) / IP(src="10.2.2.50", dst="10.2.2.255") / UDP(dport=9999) / b"of red")
        trunk.send(Ether(src=A1.mac, dst=A2.mac) / IP(src=A1.address, dst=A2.address) / UDP(dport=9999) / b"of blue")
        assert not blue.before(lambda frame: b"of blue" in frame, lambda frame: b"of red" in frame, "datagram of blue")
        for wrong in (
            tagged(red.mac) / IP(src=A1.address, dst=red.address) / UDP(dport=9999),
            tagged(red.mac, 11) / IP(src="10.2.2.50", dst=red.address) / UDP(dport=9999),
        ):
            trunk.send(wrong)
        eventually(lambda: {"address_spoofed", "vlan_unexpected"} <= host.drops().keys(), "drops")
        plain, datagram = Ether(src=A2.mac, dst=A1.mac), IP(src=A2.address, dst=A1.address) / UDP()
        blue.send(plain / Dot1Q(vlan=10) / datagram / b"hop", plain / datagram / b"behind it")
        assert not trunk.before(lambda frame: b"behind it" in frame, lambda frame: b"hop" in frame, "datagram")
    a1.expect_ping(A2.address)
    names = {row["name"]: row["network"] for row in host.viaduct("vif")}
    assert (names["a1"], names["a1:10"]) == ("blue", "red")
