"""What an Open vSwitch, and Viaduct, say that they would do with a packet: as the frames that would leave."""

import json
import re
import socket

from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether

from .shell import PATIENCE, Failed

DSCP = 0xFC


class Tracer:
    """`ofproto/trace` of one bridge, without a program for each packet."""

    def __init__(self, ovs, bridge="br0"):
        self.bridge = bridge
        self.number = 0
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(str(ovs.directory / "vs.ctl"))
        ports = re.findall(r"port (\d+): (\S+)", self.call("dpctl/show"))
        self.ports = {int(number): name for number, name in ports}

    def call(self, method, *params):
        """Has a command of ovs-appctl executed (ovs-vswitchd's JSON-RPC, RFC 7047, 4.1)."""
        self.number += 1
        self.socket.sendall(json.dumps({"method": method, "params": params, "id": self.number}).encode())
        answer = ""
        while True:
            if not (more := self.socket.recv(65536).decode()):
                raise Failed(f"{method}: the switch hung up")
            answer += more
            try:
                reply = json.loads(answer)
            except json.JSONDecodeError:
                continue
            if reply["error"]:
                raise Failed(f"{method} {params}: {reply['error']}")
            return reply["result"]

    def actions(self, port, frame):
        """Returns the datapath's actions for a frame that comes in by this port of the bridge, a list."""
        text = self.call("ofproto/trace", self.bridge, f"in_port={port}", bytes(frame).hex())
        return split(re.findall(r"^Datapath actions: (.*)", text, re.M)[-1])

    def frames(self, port, frame):
        """Returns the frames that leave: pairs of port and bytes. None if OVS's own programs are to see the packet."""
        found, packet = [], frame.copy()
        for action in self.actions(port, frame):
            if action.isdigit():
                found.append((self.ports[int(action)], bytes(packet)))
            elif action.startswith("userspace"):
                return None
            elif action != "drop":
                packet = self._changed(packet, action)
        return found

    @staticmethod
    def _changed(packet, action):
        if action == "pop_vlan":
            return popped(packet)
        name, inside = re.fullmatch(r"(\w+)\((.*)\)", action).groups()
        if name == "push_vlan":
            keys = dict(pair.split("=") for pair in inside.split(","))
            return pushed(packet, int(keys["vid"]), int(keys["pcp"]), keys.get("tpid") == "0x88a8")
        if name != "set":
            raise Failed(f"an action that this does not know: {action}")
        layer, inside = re.fullmatch(r"(\w+)\((.*)\)", inside).groups()
        for pair in inside.split(","):
            key, value = pair.split("=")
            value, _, mask = value.partition("/")
            assert not mask or (key in ("tos", "tclass") and int(mask, 0) == DSCP), action
            change(packet, TRACED[layer, key], value)
        return packet


def split(text):
    """Splits a list into its members, which commas separate where no bracket is open."""
    members, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            members.append("")
        else:
            members[-1] += letter
    return members


# Names of fields in actions of the datapath, and what `viaduct explain` calls them.
TRACED = {
    ("eth", "src"): "eth_src",
    ("eth", "dst"): "eth_dst",
    ("ipv4", "src"): "ip_src",
    ("ipv4", "dst"): "ip_dst",
    ("ipv4", "tos"): "tos",
    ("ipv4", "ttl"): "ip_ttl",
    ("ipv6", "src"): "ip_src",
    ("ipv6", "dst"): "ip_dst",
    ("ipv6", "tclass"): "tos",
    ("ipv6", "hlimit"): "ip_ttl",
    **{(layer, "src"): "port_src" for layer in ("tcp", "udp")},
    **{(layer, "dst"): "port_dst" for layer in ("tcp", "udp")},
}


def change(packet, field, value):
    """Sets a field of a packet of scapy's, whose checksums and lengths are left out."""
    ip = next((packet[kind] for kind in (IP, IPv6) if kind in packet), None)
    l4 = next((packet[kind] for kind in (TCP, UDP) if kind in packet), None)
    six = ip is not None and ip.version == 6
    match field:
        case "eth_src" | "eth_dst":
            setattr(packet, field.removeprefix("eth_"), value)
        case "ip_src" | "ip_dst":
            setattr(ip, field.removeprefix("ip_"), value)
        case "ip_ttl":
            setattr(ip, "hlim" if six else "ttl", int(value))
        case "tos" | "dscp":
            bits = int(value, 0) & DSCP if field == "tos" else int(value) << 2
            name = "tc" if six else "tos"
            setattr(ip, name, getattr(ip, name) & ~DSCP | bits)
        case "port_src" | "port_dst":
            setattr(l4, {"port_src": "sport", "port_dst": "dport"}[field], int(value))
        case _:
            raise Failed(f"a field that this does not know: {field}")


def popped(packet):
    """Returns the frame without the outermost tag."""
    tag = packet.payload
    header = Ether(src=packet.src, dst=packet.dst, type=tag.type)
    return header / tag.payload


def pushed(packet, vlan, priority=0, service=False):
    """Returns the frame with one more tag."""
    tag = (Dot1AD if service else Dot1Q)(vlan=vlan, prio=priority, type=packet.type)
    return Ether(src=packet.src, dst=packet.dst, type=0x88A8 if service else 0x8100) / tag / packet.payload


def explained(explanation, frame):
    """Returns the frames that leave according to `viaduct explain`: pairs of interface and bytes."""
    found = []
    for line in explanation["decision"]:
        if not (match := re.fullmatch(r"forward to ([^,]+)(?:, (.*))?", line)):
            continue
        packet = frame.copy()
        for word in (match[2] or "").split(", ") if match[2] else []:
            if word == "pop vlan":
                packet = popped(packet)
            elif tag := re.fullmatch(r"push (service )?vlan (\d+)(?: priority (\d+))?", word):
                packet = pushed(packet, int(tag[2]), int(tag[3] or 0), bool(tag[1]))
            else:
                _, field, value = re.fullmatch(r"(set) (\w+) (\S+)", word).groups()
                change(packet, field, value)
        found.append((match[1], bytes(packet)))
    return found
