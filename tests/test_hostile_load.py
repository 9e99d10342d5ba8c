"""Attacks by how much comes of what a guest sends: floods to many members, large sends in small segments, headers of
tunnels. They hurt nobody else."""

import struct
import time

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from test_hostile_rings import vif

from lab import Driver, eventually, unharmed
from lab.driver import CSUM, GSO_TCPV4, HOST_TSO4, MRG_RXBUF, NEEDS_CSUM, VERSION_1
from lab.topology import GATEWAY_MAC, SEATS, UNDERLAY, host_config, tap, vhost


A1, A2, B1, B2 = (SEATS[name] for name in ("a1", "a2", "b1", "b2"))

# Copies of floods that are made for a guest in a second (crates/engine/src/engine.rs).
COPIES = 20_000
MEMBERS = 60
# Floods of the guests' kernels meanwhile.
BESIDE = 100
# Frames that a driver sends at once.
RING = 4096


@pytest.fixture
def crowd(lab):
    """Starts a network of many: two guests that exchange traffic, a driver's seat, and devices that take what comes."""
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2"), "b1": vhost("b1")}, wire=False)
    members = [f"m{number}" for number in range(MEMBERS)]
    for member in members:
        config.add("guest", name=member, network="blue", kind="tap", device=member)
    host = lab.host(config)
    for member in members:
        host.namespace.ip("link set", member, "up")
    host.a1, host.a2 = lab.container(host, "a1"), lab.container(host, "a2")
    host.members = members
    return host


def flood(destination, address):
    return Ether(src=B1.mac, dst=destination) / IP(src=B1.address, dst=address) / UDP(sport=1, dport=9) / b"to all"


FLOODS = {
    "broadcast": flood("ff:ff:ff:ff:ff:ff", "10.1.1.255"),
    "multicast": flood("01:00:5e:00:00:fb", "224.0.0.251"),
    "frame to nobody known": flood("02:00:00:00:01:77", "10.1.1.77"),
}


def copies(host):
    """Counts the copies made so far for the many, and those dropped where they had no room."""
    rows = [row for row in host.viaduct("vif") if row["name"] in host.members]
    return sum(row["tx_packets"] + row["tx_drops"] for row in rows)


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_to_many_stays_within_its_budget(crowd, kind):
    """Of floods beyond those that a guest may have copies of in a second, no copy is made, and they are dropped. How
    many make a second's budget is tested in crates/engine/src/storms.rs."""
    with unharmed(crowd, crowd.a1, crowd.a2), Driver(crowd.socket("b1"), size=RING) as driver:
        before, sent = copies(crowd), 0
        while crowd.drops().get("flood_limited", 0) < RING / 4:
            driver.send_often(RING, FLOODS[kind])
            sent += RING
        made, limited = copies(crowd) - before, crowd.drops()["flood_limited"]
        told = f"{made} copies, {limited} of {sent} floods dropped"
        assert COPIES / 2 < made <= (sent - limited + BESIDE) * MEMBERS, told


# The rate of a guest, and the same in bytes.
MBPS, BURST_KB = 1, 200
RATE, BURST = MBPS * 1_000_000 // 8, BURST_KB * 1024
# Bytes of ARP and the like that leave meanwhile.
CHATTER = 4000
REMOTE = "10.60.0.1"


@pytest.fixture
def limited(lab):
    """Starts a host with a driver's seat that has a rate, another one's for what it sends, and a route by a tunnel."""
    lab.plug("a")
    rate = {"mbps": MBPS, "burst_kb": BURST_KB}
    guests = {"a1": tap("a1"), "a2": tap("a2"), "b1": vhost("b1", rate=rate), "b2": vhost("b2")}
    remote = {"tunnel": "mpls-over-udp", "remote": UNDERLAY["b"], "label": 999}
    config = host_config("a", guests).add("route", network="blue", prefix=f"{REMOTE}/32", to=[remote])
    host = lab.host(config)
    lab.namespace("fabric").ip("addr add", f"{UNDERLAY['b']}/24 dev br0")
    host.a1, host.a2 = lab.container(host, "a1"), lab.container(host, "a2")
    return host


def datagram(mac, address):
    """Makes a small frame, its virtio-net header, and the number of them to send at once."""
    frame = Ether(src=B1.mac, dst=mac) / IP(src=B1.address, dst=address) / UDP(sport=1, dport=9) / bytes(12)
    return bytes(frame), bytes(12), RING


def large_send(mac, address, segment=64, length=20_000):
    """Makes the same for a large send: no more at once than one turn may cut into segments."""
    ip = IP(src=B1.address, dst=address, len=length + 40)
    headers = Ether(src=B1.mac, dst=mac) / ip / TCP(sport=1, dport=2, flags="A")
    vnet = struct.pack("<BBHHHHH", NEEDS_CSUM, GSO_TCPV4, 54, segment, 34, 16, 0)
    return bytes(headers)[:54] + bytes(length), vnet, 12


WAYS = {
    "large sends to a guest": (large_send, "b2"),
    "large sends by a tunnel": (large_send, "up0"),
    "small packets by a tunnel": (datagram, "up0"),
}


def send_all(host, driver, frame, vnet, count):
    """Has the daemon take that many frames."""
    before = vif(host, "b1")["rx_packets"]
    driver.send_often(count, frame, vnet)
    eventually(lambda: vif(host, "b1")["rx_packets"] - before >= count, f"{count} frames of b1")


@pytest.mark.parametrize("way", WAYS)
def test_no_more_leaves_than_the_rate(limited, way):
    """The rate counts what leaves: each segment with its own headers, and the tunnel's headers."""
    make, port = WAYS[way]
    frame, vnet, count = make(B2.mac, B2.address) if port == "b2" else make(GATEWAY_MAC, REMOTE)
    features = VERSION_1 | MRG_RXBUF | CSUM | HOST_TSO4
    receiver = Driver(limited.socket("b2"), size=32768, buffers=32768 * 256)
    driver = Driver(limited.socket("b1"), features=features, size=RING)
    with unharmed(limited, limited.a1, limited.a2), receiver, driver:
        receiver.post_buffers(length=256)
        before, began = vif(limited, port)["tx_bytes"], time.monotonic()
        for _ in range(5):
            send_all(limited, driver, frame, vnet, count)
        # The time ends after the last frame was sent, so that this is never too strict.
        out, may = vif(limited, port)["tx_bytes"] - before, BURST + RATE * (time.monotonic() - began) + CHATTER
        assert BURST / 2 < out <= may, f"{out} bytes instead of {may:.0f}"
        assert limited.drops().get("rate_limited", 0) > 0, "too little was sent to tell"


def test_segments_too_small_to_be_made(limited):
    """A large send in many segments of less than 64 bytes is dropped whole."""
    features = VERSION_1 | MRG_RXBUF | CSUM | HOST_TSO4
    frame, vnet, count = large_send(B2.mac, B2.address, segment=63)
    with unharmed(limited, limited.a1, limited.a2), Driver(limited.socket("b1"), features=features) as driver:
        before = vif(limited, "b2")["tx_packets"] + vif(limited, "b2")["tx_drops"]
        send_all(limited, driver, frame, vnet, count)
        assert limited.drops()["segment_too_small"] == count
        assert vif(limited, "b2")["tx_packets"] + vif(limited, "b2")["tx_drops"] - before < count
