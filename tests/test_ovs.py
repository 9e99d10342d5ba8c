"""An unmodified Open vSwitch programs Viaduct: its flows are carried out by the daemon, by the driver of `ovs-pmd`.
See lab/switched.py."""

import re
import signal

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from lab import Failed, Stream, eventually
from lab.marks import switches
from lab.rawport import RawPort
from lab.switched import (
    PAST,
    WENT_PAST,
    address,
    guest_config,
    mac,
    offloaded,
    only_echoes_by_ovs,
    pass_by,
    send,
    send_past,
    switched,
    udp_flow,
)
from lab.traffic import EchoServer, answers, connect, connect_in_vain

pytestmark = switches


def test_packets_go_by_open_vswitch_and_then_past_it(lab):
    """Under a learning switch (NORMAL), the first packets go by OVS, then by flows that the daemon carries out."""
    host, ovs, (one, two) = switched(lab)
    one.expect_ping(address(2))
    offloaded(ovs, rf"src={mac(1)},dst={mac(2)}", r"eth_type\(0x0800\)")
    pass_by(ovs, one, address(2))
    one.expect_ping("fd09::2")
    offloaded(ovs, rf"src={mac(1)},dst={mac(2)}", r"eth_type\(0x86dd\)")
    pass_by(ovs, one, "fd09::2")
    # OVS shows the daemon's counters as its own.
    flow = lambda: int(re.search(r"packets:(\d+)", offloaded(ovs, rf"src={mac(1)},dst={mac(2)}", "0x0800"))[1])
    eventually(lambda: flow() >= 50, "the flow's packets in OVS")
    counted = lambda: int(ovs.vsctl("get", "Interface", "o1", "statistics:rx_packets").stdout)
    eventually(lambda: counted() >= 100, "the port's packets in OVS")
    link = lambda name: ovs.vsctl("get", "Interface", name, "link_state").stdout.strip()
    assert link("o1") == "up"
    # Nothing goes to a port that OVS has down, nor comes from it, also past OVS.
    reasons = lambda: host.viaduct("dropstats")["reasons"]
    dropped = lambda: sum(entry["packets"] for entry in reasons() if entry["reason"] == "ovs_drop")
    for name in ("o2", "o1"):
        ovs.ofctl("mod-port", name, "down")
        before = dropped()
        received, output = one.ping(address(2), 10, timeout=1)
        assert received == 0, output
        assert dropped() >= before + 10
        ovs.ofctl("mod-port", name, "up")
        one.expect_ping(address(2))
        offloaded(ovs, rf"src={mac(1)},dst={mac(2)}", r"eth_type\(0x0800\)")
        pass_by(ovs, one, address(2))
    # A container that sets its device down.
    for state in ("down", "up"):
        two.namespace.ip(f"link set tapo2 {state}")
        eventually(lambda: link("o2") == state, f"the link that is {state} in OVS")


def test_tables_drops_and_several_outputs(lab):
    """Tables, registers and resubmits become one flow; drops, and several outputs."""
    host, ovs, (one, *_) = switched(lab, 3)
    one.expect_ping(address(2))
    udp_flow(ovs, 1001, "set_field:0x5->reg0,resubmit(,6)")
    ovs.ofctl("add-flow", "table=6,reg0=0x5,actions=output:o2")
    udp_flow(ovs, 1002, "drop")
    udp_flow(ovs, 1003, "output:o3,output:o2")
    udp_flow(ovs, 1004, "output:in_port,output:o2")
    ends = [lab.capture(f"o{n}", f"tapo{n}", "udp portrange 1001-1004 and inbound") for n in (1, 2, 3)]
    sent = {}
    with ends[0] as back, ends[1] as at_two, ends[2] as at_three:
        for port, actions in {1001: "o2", 1002: "drop", 1003: "o3,o2", 1004: "o1,o2"}.items():
            send(one, port)
            offloaded(ovs, f"dst={port}", f"actions:{actions},")
            sent[port] = send_past(ovs, one, port)
        at_two.wait_for(f"udp.dstport == 1004 && {WENT_PAST}", sent[1004])
    count = lambda end, port: len(end.fields(f"udp.dstport == {port} && {WENT_PAST}", "frame.number"))
    assert [count(at_two, port) for port in sent] == [sent[1001], 0, sent[1003], sent[1004]]
    assert [count(at_three, port) for port in sent] == [0, 0, sent[1003], 0]
    assert count(back, 1004) == sent[1004]
    reasons = {entry["reason"]: entry["packets"] for entry in host.viaduct("dropstats")["reasons"]}
    assert reasons["ovs_drop"] >= 20


def test_fields_are_set(lab):
    """Flows set MACs, addresses, TTL and ports, with right checksums."""
    _, ovs, (one, _) = switched(lab)
    one.expect_ping(address(2))
    udp_flow(ovs, 1001, "set_field:02:aa:00:00:00:02->eth_dst,set_field:02:aa:00:00:00:01->eth_src,output:o2")
    udp_flow(ovs, 1002, "set_field:10.9.0.77->ip_dst,set_field:10.9.0.78->ip_src,dec_ttl,output:o2")
    udp_flow(ovs, 1003, "set_field:2003->udp_dst,set_field:3003->udp_src,output:o2")
    with lab.capture("o2", "tapo2", "udp") as seen:
        for port in (1001, 1002, 1003):
            send(one, port)
            offloaded(ovs, f"dst={port}")
            sent = send_past(ovs, one, port)
        seen.wait_for(f"udp.dstport == 2003 && {WENT_PAST}", sent)
    past = lambda port, *names: seen.fields(f"udp.dstport == {port} && {WENT_PAST}", *names)
    for found, expected in [
        (past(1001, "eth.src", "eth.dst"), ["02:aa:00:00:00:01", "02:aa:00:00:00:02"]),
        (past(1002, "ip.src", "ip.dst", "ip.ttl"), ["10.9.0.78", "10.9.0.77", "63"]),
        (past(2003, "udp.srcport"), ["3003"]),
    ]:
        assert len(found) >= 20 and all(packet == expected for packet in found), found
    assert seen.expert() == []


def test_tcp_flags_above_the_lower_eight_stay_with_open_vswitch(lab):
    """Rules that look at NS stay with OVS: it hands NS over in the byte of the data offset, and its flows are
    refused."""
    host, ovs, guests = switched(lab, 3)
    ovs.ofctl("add-flow", "priority=20,in_port=o1,tcp,tcp_flags=0x100/0x100,actions=output:o3")
    ovs.ofctl("add-flow", "priority=10,in_port=o1,tcp,actions=output:o2")
    segment = lambda flags: bytes(
        Ether(src=mac(1), dst=mac(2)) / IP(src=address(1), dst=address(2)) / TCP(sport=1, dport=2, flags=flags)
    )
    plain, marked = segment("A"), segment("AN")
    datagram = UDP(dport=9) / Raw(b"last")
    frame_to = lambda n: Ether(src=mac(1), dst=mac(n)) / IP(src=address(1), dst=address(n)) / datagram
    one, two, three = (RawPort(guest.namespace, guest.device) for guest in guests)
    refused = lambda: sum(entry["count"] for entry in host.viaduct("ovs", "refused") if entry["reason"] == "field")
    for _ in range(2):
        for frame, port in [(plain, two), (marked, three)]:
            one.send(*[frame] * 20)
            for _ in range(20):
                port.expect(lambda seen, frame=frame: seen == frame, "segment")
        # Both flows, to be carried out and to be marked, were refused.
        eventually(lambda: refused() >= 4, "refused flows")
    # None came twice, nor to the other port: it would be there before what is sent now.
    for port, last in ((two, bytes(frame_to(2))), (three, bytes(frame_to(3)))):
        one.send(last)
        assert not port.before(lambda seen, last=last: seen == last, lambda seen: seen in (plain, marked), "datagram")
    looks_at_it = r"tcp_flags\([-+]ns\)"
    assert len(ovs.flows(looks_at_it)) == 2 and not ovs.flows(looks_at_it, "offloaded")


def test_access_and_trunk_ports(lab):
    """Where o1 is an access port of VLAN 100 and o2 a trunk, flows push and pop tags."""
    _, ovs, (one, two) = switched(lab)
    ovs.vsctl("set", "Port", "o1", "tag=100", "--", "set", "Port", "o2", "trunks=100,200")
    one.namespace.ip("neigh replace", address(2), "lladdr", mac(2), "dev", one.device)
    ends = lab.capture("o2", "tapo2", "vlan 100 and udp"), lab.capture("o1", "tapo1", "udp and inbound")
    with ends[0] as at_two, ends[1] as at_one, RawPort(two.namespace, two.device) as raw:
        frame = Ether(src=mac(2), dst=mac(1)) / Dot1Q(vlan=100) / IP(src=address(2), dst=address(1)) / UDP(dport=1002)
        # Both MACs are learned.
        send(one, 1001, 3)
        raw.send(*[frame] * 3)
        send(one, 1001, 3)
        offloaded(ovs, "0x0800", "push_vlan")
        sent = send_past(ovs, one, 1001)
        raw.send(*[frame] * 3)
        offloaded(ovs, "0x0800", "pop_vlan")
        before = ovs.received()
        raw.send(*[frame / Raw(b"x" * PAST)] * 20)
        at_two.wait_for(f"udp.dstport == 1001 && {WENT_PAST}", sent)
        at_one.wait_for(f"udp.dstport == 1002 && {WENT_PAST}", 20)
        assert ovs.received() - before < 10
    assert at_two.fields(f"udp.dstport == 1001 && {WENT_PAST}", "vlan.id", "ip.ttl") == [["100", "64"]] * sent
    assert at_one.fields("vlan", "vlan.id") == []


def test_flows_do_not_bypass_the_rules_of_a_guest(lab):
    """o2 obeys the rules of a network, whoever sends to it or gets its packets: by flows, or by OVS in software."""
    config = guest_config().add("network", name="blue", vrf=1).add("default", network="blue", action="drop")
    config.entry("guest", "o2").update(network="blue", policy=True)
    config.rule("blue", 10, "allow", to={"cidr": f"{address(2)}/32"}, protocol="tcp", ports="5001")
    host, ovs, (one, two) = switched(lab, config=config)
    ovs.ofctl("add-flow", "priority=20,in_port=o1,udp,tp_dst=5004,actions=ct(commit),output:o2")
    with EchoServer(two, 5001), EchoServer(two, 5002), EchoServer(one, 5001):
        with connect(one, address(2), 5001) as connection:
            assert answers(connection)
            for way in ("o1", "o2"):
                offloaded(ovs, rf"in_port\({way}\)", "0x0800", "proto=6|actions:o")
            assert answers(connection), "past OVS"
        connect_in_vain(host, "default_drop", one, address(2), 5002)
        connect_in_vain(host, "default_drop", two, address(1), 5001)
        udp_flow(ovs, 5003, "output:o2")
        with lab.capture("o2", "tapo2", "udp portrange 5003-5004 and inbound") as seen:
            for port in (5003, 5004):
                before = host.drops().get("default_drop", 0)
                send(one, port, 20)
                eventually(lambda before=before: host.drops()["default_drop"] >= before + 20, "drops")
                if port == 5003:
                    offloaded(ovs, "dst=5003", "actions:o2")
                else:
                    assert ovs.flows("dst=5004") and not ovs.offloaded("dst=5004")
        assert seen.fields("udp", "udp.dstport") == []
    assert "default_drop" in host.call("explain", "--in", "o1", f"{address(1)} > {address(2)} / udp 1 > 5003").stdout


# Runs in a namespace; the sum of what it sends, or receives, is printed.
TRANSFER = """
import hashlib, random, socket, sys
data = random.Random(1).randbytes(3_000_000)
if sys.argv[1] == "send":
    socket.create_connection((sys.argv[2], 5001)).sendall(data)
else:
    server = socket.create_server(("", 5001))
    print("listens", flush=True)
    way, got = server.accept()[0], b""
    while part := way.recv(65536):
        got += part
    print("right" if got == data else f"wrong: {len(got)} bytes", flush=True)
"""


def test_what_is_not_offloaded_goes_by_open_vswitch(lab):
    """OVS forwards packets of connection tracking, and those to a port of another driver, whole, or as short as it cut
    them. It knows them by marks, of which a new OVS gets none of the old one's."""
    host, ovs, (one, two) = switched(lab)
    other = "options:dpdk-devargs=net_null0,no-rx=1"
    ovs.vsctl("add-port", "br0", "n0", "--", "set", "Interface", "n0", "type=dpdk", other)
    one.expect_ping(address(2))
    ovs.ofctl("add-flow", "priority=10,in_port=o1,tcp,actions=ct(commit),output:o2")
    ovs.ofctl("add-flow", "priority=10,in_port=o2,tcp,actions=ct(table=5)")
    ovs.ofctl("add-flow", "table=5,ct_state=+trk-inv,actions=output:o1")
    udp_flow(ovs, 1001, "output:n0,output:o2")
    udp_flow(ovs, 1002, "output(port=o2,max_len=60)")
    with lab.capture("o2", "tapo2", "udp") as seen:
        for port in (1001, 1002):
            send(one, port, 20)
        seen.wait_for("udp.dstport == 1001", 20)
        seen.wait_for("udp.dstport == 1002 && frame.len == 60", 20)
    assert ovs.flows("dst=1001") and not ovs.offloaded("dst=1001")
    ovs.switch.wait_for("an output goes to a port that is not one of Viaduct's")
    known = lambda: int(re.search(r"phwol hits: (\d+)", ovs.appctl("dpif-netdev/pmd-stats-show"))[1])
    marks = lambda: [flow for flow in host.viaduct("ovs", "flows", "--port", "o1") if flow["actions"] == "mark for OVS"]

    def transfer(name):
        receiver = two.background(["python3", "-c", TRANSFER, "receive"], name)
        receiver.wait_for("listens")
        one.run(["python3", "-c", TRANSFER, "send", address(2)])
        receiver.wait_for("right")

    transfer("first")
    eventually(lambda: ovs.flows("offloaded:partial", "proto=6"), "a flow with a mark")
    before = known()
    transfer("second")
    assert known() - before > 100
    assert not ovs.offloaded("proto=6") and any("ip_proto 6" in flow["match"] for flow in marks())
    # Until they are swept, Viaduct says of packets that they are of flows of the OVS that ended.
    ovs.kill()
    ovs.restart()
    ovs.vsctl("set", "bridge", "br0", "other_config:mac-aging-time=300")  # once the new one has its bridge
    assert marks()
    for actions in ("in_port=o1,tcp,actions=ct(commit),output:o2", "in_port=o2,tcp,actions=output:o1"):
        ovs.ofctl("add-flow", f"priority=10,{actions}")
    transfer("third")


def far_end(lab, kind):
    """Makes the other end of a tunnel, with address 9: the kernel, or an Open vSwitch without Viaduct. Returns its
    namespace."""
    lab.plug("a", mtu=1600)
    lab.segment("a")
    far = f"{address(9)}/24"
    if kind == "vxlan":
        peer = lab.server("peer", "10.8.0.2/24")
        peer.namespace.ip("link set up0 mtu 1600")
        peer.namespace.ip("link add vx0 type vxlan id 77 dstport 4789 local 10.8.0.2 remote 10.8.0.1 dev up0")
        peer.namespace.ip(f"addr add {far} dev vx0")
        peer.namespace.ip("link set vx0 up")
    else:
        tunnel = [f"type={kind}", "options:remote_ip=10.8.0.1", "options:key=77"]
        peer = lab.ovs_peer("peer", "10.8.0.2/24", far, mac(9), *tunnel)
    return peer.namespace


@pytest.mark.parametrize("kind", ["vxlan", "gre", "geneve"])
def test_tunnels(lab, kind):
    """Packets go into tunnels of OVS's by flows, with lengths, checksums and source ports of their own. OVS takes them
    out."""
    far_end(lab, kind)
    host = guest_config(1).add("wire", name="up0", mode="ovs", driver="af-packet", device="up0", mtu=1600)
    host = lab.host(host)
    one = lab.ovs_container(host, "o1", mac(1), f"{address(1)}/24")
    ovs = lab.controller(host)
    ovs.add_port("o1")
    ovs.add_bridge("br-phy")
    ovs.add_port("up0", "br-phy")
    host.namespace.ip("addr add 10.8.0.1/24 dev br-phy")
    host.namespace.ip("link set br-phy up")
    options = [f"type={kind}", "options:remote_ip=10.8.0.2", "options:key=77"]
    ovs.vsctl("add-port", "br0", "tunnel", "--", "set", "Interface", "tunnel", *options)
    one.expect_ping(address(9))
    offloaded(ovs, "in_port.o1", "0x0800", "tnl_push")
    with lab.capture("peer", "up0", "src host 10.8.0.1") as seen:
        for port in (1001, 1002, 1003):
            send_past(ovs, one, port, to=address(9))
        only_echoes_by_ovs(ovs, one, address(9))
        seen.wait_for("udp.dstport == 1003", 20)
    assert seen.expert() == []
    outer = {"vxlan": "vxlan.vni == 77", "gre": "gre.key == 77", "geneve": "geneve.vni == 77"}[kind]
    flows = seen.fields(f"{outer} && udp.dstport in {{1001..1003}}", "ip.len", "udp.srcport", "ip.checksum.status")
    assert len(flows) >= 60
    if kind != "gre":
        assert len({ports.split(",")[0] for _, ports, _ in flows}) == 3, "a source port for each flow"
        replace_tunnel(host, ovs, kind)
        one.expect_ping(address(9))
        for way in ("in_port.o1.*actions:vx77", "in_port.vx77.*actions:o1"):
            offloaded(ovs, way, "0x0800")
        pass_by(ovs, one, address(9))


def replace_tunnel(host, ovs, kind):
    """Replaces a tunnel port of OVS's own by Viaduct's, as docs/ovs.md says. It keeps its OpenFlow number."""
    number = ovs.vsctl("get", "Interface", "tunnel", "ofport").stdout.strip()
    ovs.vsctl("del-br", "br-phy")
    config = host.config.without("wire", name="up0")
    config.add("wire", name="up0", driver="af-packet", device="up0", addresses=["10.8.0.1/24"], mtu=1600)
    config.add("wire", name="vx77", mode="ovs", driver=kind, remote="10.8.0.2", vni=77, mtu=1500)
    host.apply(config)
    devargs = f"options:dpdk-devargs=net_viaduct9,port=vx77,socket={host.run_dir}/ovs.sock"
    ovs.vsctl("del-port", "br0", "tunnel")
    ovs.vsctl("add-port", "br0", "vx77", "--", "set", "Interface", "vx77", "type=dpdk", devargs,
              f"ofport_request={number}")
    assert ovs.vsctl("get", "Interface", "vx77", "ofport").stdout.strip() == number


@pytest.mark.parametrize("kind", ["vxlan", "geneve"])
def test_tunnels_that_are_ports(lab, kind):
    """Viaduct's tables take packets into a tunnel and out of it: flows of OVS carry both directions."""
    peer = far_end(lab, kind)
    config = guest_config(1)
    config.add("wire", name="up0", driver="af-packet", device="up0", addresses=["10.8.0.1/24"], mtu=1600)
    config.add("wire", name="tun", mode="ovs", driver=kind, remote="10.8.0.2", vni=77, mtu=1500)
    host = lab.host(config)
    one = lab.ovs_container(host, "o1", mac(1), f"{address(1)}/24")
    ovs = lab.controller(host)
    ovs.add_port("o1")
    ovs.add_port("tun")
    one.expect_ping(address(9))
    for way in ("in_port.o1.*actions:tun", "in_port.tun.*actions:o1"):
        offloaded(ovs, way, "0x0800")
    pass_by(ovs, one, address(9))
    receiver = peer.background(["python3", "-c", TRANSFER, "receive"], "receiver")
    receiver.wait_for("listens")
    one.run(["python3", "-c", TRANSFER, "send", address(9)])
    receiver.wait_for("right")
    # OVS shows the daemon's counters as its own.
    counted = lambda key: int(ovs.vsctl("get", "Interface", "tun", f"statistics:{key}").stdout)
    eventually(lambda: counted("rx_packets") >= 50 and counted("tx_bytes") > 3_000_000, "the port's counters")
    assert ovs.vsctl("get", "Interface", "tun", "link_state").stdout.strip() == "up"
    vif = next(vif for vif in host.viaduct("vif") if vif["name"] == "tun")
    assert (vif["kind"], vif["up"]) == ("tunnel", True) and vif["rx_packets"] >= 50
    assert next(port for port in host.viaduct("ovs", "ports") if port["name"] == "tun")["flows"] >= 1
    outer = f"10.8.0.2 > 10.8.0.1 / udp 50000 > {4789 if kind == 'vxlan' else 6081} / {kind}"
    inner = f"eth {mac(9)} > {mac(1)} / ip4 {address(9)} > {address(1)} / udp 1 > 2"
    explained = lambda vni: host.call("explain", "--in", "up0", f"{outer} {vni} / {inner}").stdout
    assert f"{kind} to 10.8.0.2 vni 77" in explained(77) and "unknown_vni" in explained(78)


def test_flows_that_are_idle_or_changed_go(lab):
    """OVS takes a flow away that had no packets, and one that a rule's change makes another."""
    _, ovs, (one, _) = switched(lab)
    ovs.vsctl("set", "Open_vSwitch", ".", "other_config:max-idle=1500")
    udp_flow(ovs, 1001, "output:o2")
    send(one, 1001)
    offloaded(ovs, "dst=1001", "actions:o2")
    udp_flow(ovs, 1001, "drop")
    eventually(lambda: not ovs.offloaded("dst=1001", "actions:o2"), "the changed flow")
    send(one, 1001)
    offloaded(ovs, "dst=1001", "actions:drop")
    eventually(lambda: not ovs.flows("dst=1001"), "the idle flow")


def test_open_vswitch_is_killed_and_comes_again(lab):
    """Flows outlive it, until a new one has had time to make its own."""
    _, ovs, (one, two) = switched(lab)
    with Stream(one.namespace, two.namespace, address(2), rate=200) as stream:
        offloaded(ovs, "proto=17|0x0800", rf"src={mac(1)}")
        stream.wait(100)
        ovs.kill()
        stream.wait(300)
        ovs.restart()
        # Packets of old flows do not reach it, so it makes none until those are swept.
        eventually(lambda: ovs.offloaded(rf"src={mac(1)}", "0x0800"), "flows of the new one")
        stream.wait(200)
    result = stream.result()
    assert (result.lost, result.duplicates) == (0, 0), result
    pass_by(ovs, one, address(2))


def test_open_vswitch_that_exits_in_order_takes_its_flows_along(lab):
    _, ovs, (one, _) = switched(lab)
    one.expect_ping(address(2))
    offloaded(ovs, "0x0800")
    pass_by(ovs, one, address(2))
    ovs.appctl("exit", "--cleanup")
    eventually(lambda: not ovs.switch.running(), "the end of Open vSwitch")
    ovs.programs.pop()
    one.expect_no_ping(address(2))
    ovs.restart()
    eventually(lambda: one.reaches(address(2)), "packets by the new one")


def test_a_port_that_is_deleted_and_added_again(lab):
    _, ovs, (one, _) = switched(lab)
    one.expect_ping(address(2))
    offloaded(ovs, "0x0800")
    ovs.vsctl("del-port", "o2")
    one.expect_no_ping(address(2))
    ovs.add_port("o2")
    one.expect_ping(address(2))
    offloaded(ovs, rf"src={mac(1)},dst={mac(2)}", "0x0800")
    # A port that viaductd does not have.
    with pytest.raises(Failed, match="Error attaching device"):
        ovs.add_port("o9")
    ovs.switch.wait_for('there is no guest or wire "o9" with mode = "ovs"')
    # Where no daemon can be. The newer DPDK itself refuses arguments of more than 127 characters.
    def attach(number, arguments):
        devargs = f"options:dpdk-devargs=net_viaduct{number},{arguments}"
        ovs.vsctl("add-port", "br0", f"w{number}", "--", "set", "Interface", f"w{number}", "type=dpdk", devargs)

    for number, where in enumerate(["run-dir=run", "run-dir", f"run-dir=/{'x' * 100}", "socket="], 20):
        attach(number, f"port=o9,{where}")
        reasons = [f"net_viaduct{number}: run-dir= or socket= is no absolute path"]
        reasons += ["devargs truncated"] * (len(where) > 100)
        said = lambda reasons=reasons: any(each in ovs.switch.text() for each in reasons)
        eventually(said, f"{where} is refused")
    # Arguments of which nobody could say which one counts, and names that no guest has.
    for number, arguments in enumerate(["port=o9,port=o1", "port=o9,run-dir=/run,socket=/run/s", "prot=o9"], 30):
        attach(number, arguments)
        wanted = "the arguments are port=NAME, and run-dir=DIR or socket=PATH, each once"
        ovs.switch.wait_for(f"net_viaduct{number}: {wanted}")
    for number, name in enumerate(["", "x" * 64], 40):
        attach(number, f"port={name}")
        ovs.switch.wait_for(f"net_viaduct{number}: say which port of viaductd's it is, by 1 to 63 characters")
    attach(50, "port=o1,run-dir=/nowhere")
    ovs.switch.wait_for("/nowhere/ovs.sock: viaductd does not answer (No such file or directory); trying again")


def test_viaductd_is_killed_and_comes_again(lab):
    """The driver connects again, and has it make the flows again."""
    host, ovs, (one, _) = switched(lab)
    one.expect_ping(address(2))
    offloaded(ovs, "0x0800")
    mtu = lambda: host.viaduct("ovs", "ports", "--port", "o1")[0]["mtu"]
    ovs.vsctl("set", "Interface", "o1", "mtu_request=1400")
    eventually(lambda: mtu() == 1400, "the MTU of OVS in viaductd")
    host.kill()
    state = lambda: ovs.vsctl("get", "Interface", "o1", "link_state").stdout.strip()
    ovs.switch.wait_for("viaductd is gone; links are down until it is back")
    eventually(lambda: state() == "down", "the link that is down")
    host.start()
    ovs.switch.wait_for("connected again")
    eventually(lambda: state() == "up", "the link that is up")
    eventually(lambda: mtu() == 1400, "the MTU of OVS in the next viaductd")
    one.expect_ping(address(2))
    pass_by(ovs, one, address(2))


def test_viaductd_stands_still_for_a_while(lab):
    """One request waits for it in vain. From then on Open vSwitch has links that are down, until it goes on."""
    host, ovs, (one, _) = switched(lab)
    one.expect_ping(address(2))
    state = lambda: ovs.vsctl("get", "Interface", "o1", "link_state").stdout.strip()
    host.daemon.process.send_signal(signal.SIGSTOP)
    try:
        ovs.vsctl("set", "Interface", "o1", "mtu_request=1400")
        ovs.switch.wait_for("viaductd is gone; links are down until it is back")
        eventually(lambda: state() == "down", "the link that is down")
    finally:
        host.daemon.process.send_signal(signal.SIGCONT)
    ovs.switch.wait_for("connected again")
    eventually(lambda: state() == "up", "the link that is up")
    one.expect_ping(address(2), 20)
    pass_by(ovs, one, address(2))


def test_viaductd_is_replaced(lab):
    host, ovs, (one, two) = switched(lab)
    with Stream(one.namespace, two.namespace, address(2), rate=200) as stream:
        offloaded(ovs, "0x0800", rf"src={mac(1)}")
        stream.wait(100)
        waited = host.replace()
        stream.wait(400)
    result = stream.result()
    print(f"packets waited {waited} ms; {result.lost} of {result.sent} lost: {result.gaps}")
    assert result.duplicates == 0
    ovs.switch.wait_for("connected again")
    eventually(lambda: one.reaches(address(2)), "the other guest")
    pass_by(ovs, one, address(2))


def test_a_guest_is_taken_away_and_put_back(lab):
    """The daemon's configuration may change under the driver."""
    host, ovs, (one, _, _) = switched(lab, 3)
    one.expect_ping(address(2))
    one.expect_ping(address(3))
    offloaded(ovs, rf"src={mac(1)},dst={mac(3)}", "0x0800")
    host.apply(guest_config(2))
    host.daemon.wait_for("a driver of Open vSwitch is to connect again: a port of it is gone")
    one.expect_no_ping(address(3))
    one.expect_ping(address(2))
    host.apply(guest_config(3))
    lab.ovs_container(host, "o3", mac(3), f"{address(3)}/24")
    eventually(lambda: one.reaches(address(3)), "the guest that is back")
    pass_by(ovs, one, address(3))
