"""Random rules of Open vSwitch: its `ofproto/trace`, `viaduct explain` and the packets themselves agree. The rules of
test_ovs_trace.py are always the same; these differ with VIADUCT_SEED."""

import os
import random
import re

from scapy.layers.inet import IP
from scapy.utils import wrpcap

from lab import eventually
from lab.agree import frame, passes
from lab.marks import switches
from lab.rawport import RawPort
from lab.switched import guest_config, mac
from lab.trace import Tracer, explained

PIPELINES = int(os.environ.get("VIADUCT_OVS_PIPELINES", 5))
FRAMES = 90
TABLES = 3
PORTS = ["o1", "o2", "o3"]
MACS = ["02:00:00:00:0f:01", "02:00:00:00:0f:a0", "02:00:00:00:0f:02", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:fb"]
MASKS = ["", "", "/01:00:00:00:00:00", "/ff:ff:ff:00:00:00", "/00:00:00:00:00:a0"]
# Kinds of packets, with the fields that a rule about them may look at, and the changes that it may make.
KINDS = {
    "": ([], []),
    "arp": (["arp_op=1", "arp_tpa=10.9.0.2"], []),
    "ip": (["ip_dscp=10", "nw_ttl=64", "nw_frag=no", "nw_proto=17"], ["v4"]),
    "ipv6": (["ip_dscp=10", "nw_ttl=2", "nw_frag=first", "ipv6_dst=fd20::/16"], ["v6"]),
    "tcp": (["tcp_flags=+syn-ack", "tcp_flags=+ack", "tp_dst=0x50/0xfff0", "nw_dst=10.20.0.0/16"], ["v4", "tcp"]),
    "udp": (["tp_src=53", "tp_dst=0x1000/0xf000", "nw_src=10.9.0.128/25"], ["v4", "udp"]),
    "tcp6": (["tcp_flags=-syn", "tp_dst=80", "ipv6_src=fd09::80/121"], ["v6", "tcp"]),
    "udp6": (["tp_src=1000", "tp_dst=0x1/0x1"], ["v6", "udp"]),
    "sctp": (["tp_dst=0x800/0xf800"], []),
    "icmp": (["icmp_type=8"], ["v4"]),
}
CHANGES = {
    "v4": ["set_field:10.77.0.1->ip_src", "set_field:10.9.0.3->ip_dst", "mod_nw_ttl:9", "set_field:46->ip_dscp"],
    "v6": ["set_field:fd77::1->ipv6_src", "set_field:fd09::3->ipv6_dst", "mod_nw_ttl:9"],
    "tcp": ["set_field:8080->tcp_dst", "set_field:99->tcp_src"],
    "udp": ["set_field:5353->udp_src", "set_field:7->udp_dst"],
}


def rule(chance, table):
    """Makes a rule of a table, in words."""
    pick, has = chance.choice, lambda share: chance.random() < share
    match, changes = [], [f"set_field:{pick(MACS)}->eth_dst", f"set_field:{mac(9)}->eth_src", "set_field:1->reg0"]
    if has(0.4):
        match.append(f"in_port={pick(PORTS)}")
    for field in ("dl_src", "dl_dst"):
        if has(0.25):
            match.append(f"{field}={pick(MACS)}{pick(MASKS)}")
    # A frame that would get a third tag is for test_frames.py.
    if has(0.3):
        vlan, change = pick(
            [
                ("vlan_tci=0", "push_vlan:0x8100,set_field:4219->vlan_vid,set_field:3->vlan_pcp"),
                ("vlan_tci=0x1000/0x1000", "pop_vlan"),
                (f"dl_vlan={pick([100, 200])}", "set_field:4396->vlan_vid"),
            ]
        )
        match.append(vlan)
        changes.append(change)
    if table and has(0.2):
        match.append(f"reg0={pick([0, 1])}")
    kind = pick(list(KINDS))
    looks, changed = KINDS[kind]
    match += [kind] if kind else []
    match += [pick(looks)] if looks and has(0.6) else []
    changes += [change for part in changed for change in CHANGES[part]]
    actions = chance.sample(changes, chance.randrange(3))
    if has(0.3):
        actions.append(f"output:{pick(PORTS)}")
        # OVS refuses a second `pop_vlan`.
        actions += chance.sample([change for change in changes if change not in actions], chance.randrange(2))
    last = [f"output:{pick(PORTS)}", "output:in_port", f"output:{pick(PORTS)},output:{pick(PORTS)}"]
    goes_on = [f"goto_table:{table + 1}"] * 3 if table + 1 < TABLES else last
    actions.append(pick([*last, *goes_on]))
    return ",".join([f"table={table}", f"priority={chance.randrange(1, 100)}", *match, f"actions={','.join(actions)}"])


def pipeline(chance):
    """Rules of all tables; the last one of each takes what no other does."""
    rules = [rule(chance, table) for table in range(TABLES) for _ in range(8)]
    ends = [f"goto_table:{table + 1}" for table in range(TABLES - 1)] + [chance.choice(["drop", "output:o2"])]
    return rules + [f"table={table},priority=0,actions={end}" for table, end in enumerate(ends)]


def settle(ovs):
    idle = lambda: re.search(r"Total +Enqueued offloads: +0$", ovs.appctl("dpctl/offload-stats-show"), re.M)
    eventually(idle, "nothing to be offloaded")


@switches
def test_open_vswitch_and_viaduct_agree_about_random_rules(lab):
    host = lab.host(guest_config(len(PORTS)))
    for name in PORTS:
        lab.namespace(name).sysctl("net.ipv6.conf.default.disable_ipv6", 1)  # nothing but what is sent here
    guests = [lab.ovs_container(host, name, mac(number)) for number, name in enumerate(PORTS, 1)]
    ovs = lab.controller(host)
    for guest in guests:
        ovs.add_port(guest.name)
    tracer, raw = Tracer(ovs), {guest.name: RawPort(guest.namespace, guest.device) for guest in guests}
    first, pcap, rules = int(os.environ.get("VIADUCT_SEED", 1)), lab.directory / "frames.pcap", lab.directory / "rules"
    sent = past = 0
    for seed in range(first, first + PIPELINES):
        chance = random.Random(seed)
        rules.write_text("\n".join(pipeline(chance)) + "\n")
        ovs.ofctl("del-flows")
        ovs.ofctl("add-flows", rules)
        ovs.appctl("revalidator/purge")
        frames = {name: [] for name in PORTS}
        while sum(map(len, frames.values())) < FRAMES:
            packet = frame(chance)
            # OVS changes bytes of later fragments where a checksum would be.
            if IP not in packet or not packet[IP].frag:
                frames[chance.choice(PORTS)].append(packet)
        traced = {name: [tracer.frames(PORTS.index(name) + 1, each) for each in frames[name]] for name in PORTS}
        case = f"VIADUCT_SEED={seed}\n{rules.read_text()}"
        for name in PORTS:
            assert passes(raw, name, frames[name], traced[name]) == {}, f"by OVS, from {name}: {case}"
        settle(ovs)
        for name in PORTS:
            wrpcap(str(pcap), frames[name])
            for each, answer, out in zip(frames[name], host.viaduct("explain", "--in", name, pcap), traced[name]):
                if f"{name}:ovs" not in [port["interface"] for port in answer["egress"]]:
                    assert explained(answer, each) == out, f"{each.command()}\n{answer['decision']}\n{case}"
        before = ovs.received()
        for name in PORTS:
            assert passes(raw, name, frames[name], traced[name]) == {}, f"by Viaduct, from {name}: {case}"
        sent += FRAMES
        past += FRAMES - (ovs.received() - before)
    assert past > sent / 2, f"{past} packets of {sent} went past OVS"
