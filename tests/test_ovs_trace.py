"""Open vSwitch's `ofproto/trace`, `viaduct explain` and the packets themselves agree. See lab/switched.py."""

import random

from scapy.layers.inet import IP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from lab import eventually
from lab.agree import frame, passes
from lab.marks import switches
from lab.rawport import RawPort
from lab.switched import guest_config, mac
from lab.trace import Tracer, explained

# Four tables, by VLAN, MACs, IP and L4, with registers, masks and changes on the way.
PIPELINE = r"""
table=0,priority=100,in_port=o1,dl_vlan=100,actions=pop_vlan,set_field:1->reg0,goto_table:1
table=0,priority=99,in_port=o1,dl_vlan=200,dl_vlan_pcp=5,\
  actions=set_field:4396->vlan_vid,set_field:2->reg0,goto_table:1
table=0,priority=90,in_port=o1,vlan_tci=0x1000/0x1000,actions=output:o3
table=0,priority=50,in_port=o1,actions=goto_table:1
table=1,priority=100,dl_dst=01:00:00:00:00:00/01:00:00:00:00:00,actions=output:o2,output:o3
table=1,priority=90,dl_src=02:00:00:00:0f:a0/ff:ff:ff:ff:ff:f0,actions=set_field:02:aa:00:00:00:01->eth_src,goto_table:2
table=1,priority=0,actions=goto_table:2
table=2,priority=100,arp,actions=output:o2
table=2,priority=100,ip,nw_frag=later,nw_dst=10.20.1.0/24,actions=drop
table=2,priority=90,ip,nw_dst=10.20.0.0/16,actions=dec_ttl,set_field:02:aa:00:00:00:02->eth_dst,goto_table:3
table=2,priority=80,ip,ip_dscp=10,nw_src=10.9.0.64/26,actions=set_field:46->ip_dscp,goto_table:3
table=2,priority=70,ip,nw_src=10.9.0.128/25,actions=set_field:10.77.0.1->ip_src,goto_table:3
table=2,priority=60,ip,nw_src=10.9.0.32/27,actions=set_field:224.0.0.9->ip_src,goto_table:3
table=2,priority=90,ipv6,ipv6_dst=fd20::/16,actions=dec_ttl,set_field:02:aa:00:00:00:02->eth_dst,goto_table:3
table=2,priority=80,ipv6,ipv6_src=fd09::80/121,actions=set_field:fd77::1->ipv6_src,set_field:12->ip_dscp,goto_table:3
table=2,priority=10,ip,actions=goto_table:3
table=2,priority=10,ipv6,actions=goto_table:3
table=2,priority=0,actions=drop
table=3,priority=100,tcp,tcp_flags=+syn-ack,actions=output:o3
table=3,priority=90,tcp,tp_dst=0x50/0xfff0,actions=set_field:8080->tcp_dst,output:o2
table=3,priority=90,tcp6,tp_dst=0x50/0xfff0,actions=set_field:8080->tcp_dst,output:o2
table=3,priority=90,udp,tp_dst=0x1000/0xf000,\
  actions=push_vlan:0x8100,set_field:4219->vlan_vid,set_field:3->vlan_pcp,output:o2
table=3,priority=80,udp,tp_src=53,actions=set_field:10.77.0.2->ip_dst,set_field:5353->udp_src,output:o2,output:o3
table=3,priority=80,udp6,tp_src=53,actions=output:o3,set_field:fd77::2->ipv6_dst,set_field:5353->udp_src,output:o2
table=3,priority=90,icmp,icmp_type=8,actions=output:in_port
table=3,priority=90,sctp,tp_dst=0x800/0xf800,actions=output:o2
table=3,priority=20,reg0=1,actions=output:o3
table=3,priority=20,reg0=2,actions=output:o2,output:in_port
table=3,priority=10,tcp,actions=output:o2
table=3,priority=0,actions=drop
"""
COUNT = 300


@switches
def test_open_vswitch_and_viaduct_agree_about_packets(lab):
    host = lab.host(guest_config(3))
    guests = [lab.namespace(f"o{n}") for n in (1, 2, 3)]
    for namespace in guests:
        namespace.sysctl("net.ipv6.conf.default.disable_ipv6", 1)  # nothing but what is sent here
    guests = [lab.ovs_container(host, f"o{n}", mac(n)) for n in (1, 2, 3)]
    ovs = lab.controller(host)
    for guest in guests:
        ovs.add_port(guest.name)
    rules = lab.directory / "pipeline"
    rules.write_text(PIPELINE.replace("\\\n  ", ""))
    ovs.ofctl("del-flows")
    ovs.ofctl("add-flows", rules)

    chance = random.Random(21)
    frames = [frame(chance) for _ in range(COUNT)]
    tracer = Tracer(ovs)
    traced = [tracer.frames(1, each) for each in frames]
    pcap = lab.directory / "frames.pcap"
    wrpcap(str(pcap), frames)

    def answers():
        """Returns what Viaduct says of each; None where it leaves the packet to OVS."""
        said = host.viaduct("explain", "--in", "o1", pcap)
        to_ovs = lambda answer: "o1:ovs" in [port["interface"] for port in answer["egress"]]
        return [None if to_ovs(answer) else answer for answer in said]

    # OVS offloads no flow that changes the DSCP.
    software = [any("tos=" in action or "tclass=" in action for action in tracer.actions(1, each)) for each in frames]
    assert sum(software) < COUNT / 10
    raw = {guest.name: RawPort(guest.namespace, guest.device) for guest in guests}
    # OVS itself forwards them at first, and makes the flows. (It changes bytes where a checksum would be in later
    # fragments, too.)
    wrong = passes(raw, "o1", frames, traced)
    assert all(IP in frame and frame[IP].frag for frame in (Ether(seen) for _, seen in wrong)), wrong
    settled = lambda: [answer is None for answer in answers()] == software
    eventually(settled, "all other flows are offloaded")
    for each, answer, frames_out in zip(frames, answers(), traced):
        if answer:
            assert explained(answer, each) == frames_out, f"{each.command()}\n{answer['decision']}"
    # Viaduct forwards them then, but for those that OVS keeps.
    before = ovs.received()
    assert passes(raw, "o1", frames, traced) == {}
    assert ovs.received() - before == sum(software)
