"""Frames of many kinds, and whether what leaves a switch is what was expected."""

from collections import Counter

from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.layers.sctp import SCTP
from scapy.packet import Raw

from .switched import mac

BATCH = 40


def frame(chance):
    """Makes some frame, by scapy."""
    pick = chance.choice
    destination = pick(["02:00:00:00:0f:99", "01:00:5e:00:00:fb", "33:33:00:00:00:01", "ff:ff:ff:ff:ff:ff"])
    source = f"02:00:00:00:0f:{pick([0x01, 0xA0, 0xA7, 0xAF, 0xB0]):02x}"
    packet = Ether(src=source, dst=destination if chance.random() < 0.3 else mac(pick([2, 3])))
    if chance.random() < 0.3:
        packet /= Dot1Q(vlan=pick([100, 200, 300]), prio=pick([0, 5]))
        if chance.random() < 0.1:
            packet /= Dot1Q(vlan=7)
    kind = chance.random()
    if kind < 0.05:
        return packet / ARP(psrc="10.9.0.1", pdst="10.9.0.2")
    if kind < 0.08:
        last = packet.lastlayer()
        last.type = pick([0x88B5, 46])  # an EtherType for experiments; the length of what follows, which is LLC
        return packet / Raw(b"\x42\x42\x03" + bytes(43))
    ip = (ipv4 if kind < 0.65 else ipv6)(chance) / Raw(chance.randbytes(chance.randrange(20, 200)))
    more = ip.flags.MF if ip.version == 4 else IPv6ExtHdrFragment in ip
    # A part before another fragment is a multiple of eight bytes long.
    return packet / (ip / Raw(bytes(-len(ip) % 8 if ip.version == 6 else (20 - len(ip)) % 8)) if more else ip)


def ipv4(chance):
    pick = chance.choice
    source = f"10.9.0.{chance.randrange(1, 255)}"
    destination = f"10.{pick([9, 20, 21])}.{pick([0, 1])}.{pick([2, 3, 200])}"
    ip = IP(src=source, dst=destination, ttl=pick([2, 64, 255]), tos=pick([0, 40, 41, 184]))
    ip.id = chance.randrange(1 << 16)
    ip.flags, ip.frag = pick([("", 0)] * 6 + [("DF", 0), ("MF", 0), ("MF", 10), ("", 30)])
    if ip.frag:
        ip.proto = pick([6, 17, 1])
        return ip
    return ip / pick([ports, ports, ports, ports, lambda _: ICMP(type=pick([0, 8]))])(chance)


def ipv6(chance):
    pick = chance.choice
    source, destination = f"fd09::{chance.randrange(1, 255):x}", f"fd{pick(['09', '20', '21'])}::{pick([2, 3])}"
    ip = IPv6(src=source, dst=destination, hlim=pick([2, 64, 255]), tc=pick([0, 40, 41, 184]))
    if chance.random() < 0.1:
        ip /= IPv6ExtHdrHopByHop()
    if chance.random() < 0.15:
        ip /= IPv6ExtHdrFragment(offset=0, m=1, id=chance.randrange(1 << 32))
    return ip / pick([ports, ports, ports, ports, lambda _: ICMPv6EchoRequest()])(chance)


def ports(chance):
    pick = chance.choice
    source = pick([53, 1000, chance.randrange(1 << 16)])
    destination = pick([80, 85, 0x1001, 2050, 9, chance.randrange(1 << 16)])
    kind = pick([TCP, TCP, UDP, UDP, SCTP])
    if kind is TCP:
        return TCP(sport=source, dport=destination, flags=pick(["S", "SA", "A", "PA", "F", "R"]))
    return kind(sport=source, dport=destination)


def passes(raw, sender, frames, expected):
    """Sends the frames by a port; returns what leaves by each port that should not, or does not and should."""
    wrong = Counter()
    for first in range(0, len(frames), BATCH):
        wanted = Counter(pair for pairs in expected[first : first + BATCH] for pair in pairs)
        raw[sender].send(*frames[first : first + BATCH])
        for name, port in raw.items():
            count = sum(number for (to, _), number in wanted.items() if to == name)
            wanted.subtract((name, seen) for seen in port.take(count))
        wrong += Counter({pair: number for pair, number in wanted.items() if number})
        wrong.subtract({pair: -number for pair, number in wanted.items() if number < 0})
    return {pair: number for pair, number in wrong.items() if number}
