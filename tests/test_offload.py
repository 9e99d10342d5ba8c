"""Checksum and segmentation offload: large packets stay whole between guests, and what leaves is right."""

import pytest

from lab import tshark
from lab.topology import SEATS, bridge_entries, one_host, tunnel_routes, two_hosts
from lab.traffic import tcp_rate


def test_large_packets_stay_whole_between_guests(lab):
    _, (a1, a2) = one_host(lab, "a1", "a2")
    a1.expect_ping(SEATS["a2"].address)
    features = a1.run(["ethtool", "-k", a1.device]).stdout
    assert "tcp-segmentation-offload: on" in features, features
    count = lambda: [a2.namespace.counter(a2.device, name) for name in ("rx_packets", "rx_bytes")]
    before = count()
    tcp_rate(a1, a2, SEATS["a2"].address, options=("-n", "50M"))
    packets, size = (after - start for start, after in zip(before, count()))
    assert size / packets > 4000, "segmented on the way"


CONNECT = {
    "mpls-over-udp": lambda config, *remotes: tunnel_routes(config, "mpls-over-udp", *remotes),
    "mpls-over-gre": lambda config, *remotes: tunnel_routes(config, "mpls-over-gre", *remotes),
    "vxlan": bridge_entries,
}


@pytest.mark.parametrize("kind", CONNECT)
@pytest.mark.parametrize("version", [4, 6])
def test_checksums_on_the_wire_are_complete(lab, kind, version):
    """Guests leave checksums to be filled in; inside a tunnel nobody after us would do it."""
    _, guests = two_hosts(lab, CONNECT[kind], mtu=1500)
    address = SEATS["b1"].address if version == 4 else SEATS["b1"].address6
    guests["a1"].expect_ping(address)
    lab.segment("a", "b")
    with lab.capture("fabric", "a-up0", "ip") as seen:
        tcp_rate(guests["a1"], guests["b1"], address, options=("-n", "2M"))
    verify = ("-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE")
    wrong = "ip.checksum.status == 0 || tcp.checksum.status == 0 || udp.checksum.status == 0"
    assert tshark(seen.file, *verify, "-Y", wrong) == ""
    assert seen.fields("tcp.len > 1000", "frame.number"), "no full segments seen"
    assert seen.fields("frame.len > 1514", "frame.len") == []


@pytest.mark.parametrize("kind", CONNECT)
def test_tcp_across_hosts(lab, kind):
    _, guests = two_hosts(lab, CONNECT[kind])
    guests["a1"].expect_ping(SEATS["b1"].address)
    tcp_rate(guests["a1"], guests["b1"], SEATS["b1"].address, options=("-n", "20M"))
    tcp_rate(guests["b1"], guests["a1"], SEATS["a1"].address, options=("-n", "20M", "-P", 4))
    tcp_rate(guests["a1"], guests["b1"], SEATS["b1"].address6, options=("-n", "20M"))
