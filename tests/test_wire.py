"""Ways out of the host other than a packet socket: AF_XDP, a vhost-user socket, a TAP device."""

import pytest

from lab import Background, Server, Stream
from lab.marks import polls
from lab.topology import SEATS, bridge_entries, host_config, tap, tunnel_routes

A1, B1 = SEATS["a1"], SEATS["b1"]
MTU = 1500


def config_of(name, connect, **wire):
    """Configures host `name` with one container, its wire changed by the keys given, and the way to the other host's
    guest."""
    local, remote = ("a1", "b1") if name == "a" else ("b1", "a1")
    config = host_config(name, {local: tap(local)}, mtu=MTU)
    config.entry("wire", "up0").update(wire)
    return connect(config, remote)


def exchange(lab, hosts):
    """Pings and a stream between the guests of the two hosts."""
    a1, b1 = lab.container(hosts["a"], "a1"), lab.container(hosts["b"], "b1")
    a1.expect_ping(B1.address)
    b1.expect_ping(A1.address6)
    # Rings of 256 packets have room for most of a second in which a busy machine has no CPU for a driver.
    with Stream(a1.namespace, b1.namespace, B1.address, rate=300, size=1000) as stream:
        stream.wait(500)
    assert stream.result().lost == 0


CONNECTIONS = {
    "mpls": lambda config, *remotes: tunnel_routes(config, "mpls-over-udp", *remotes),
    "vxlan": lambda config, *remotes: bridge_entries(config, *remotes),
}


@pytest.mark.parametrize("connect", CONNECTIONS.values(), ids=CONNECTIONS)
def test_af_xdp(lab, connect):
    hosts = {}
    for name in ("a", "b"):
        lab.plug(name, mtu=MTU)
        # AF_XDP on a veth sees packets as the other end left them: it must finish their checksums.
        lab.namespace("fabric").run(["ethtool", "-K", f"{name}-up0", "tx", "off", "txvlan", "off"])
        hosts[name] = lab.host(config_of(name, connect, driver="af-xdp"))
    exchange(lab, hosts)
    wire = next(vif for vif in hosts["a"].viaduct("status")["vifs"] if vif["name"] == "up0")
    assert "af-xdp" in wire["features"]


@polls
@pytest.mark.parametrize("connect", CONNECTIONS.values(), ids=CONNECTIONS)
def test_vhost_socket(lab, connect):
    """Two hosts whose wires are vhost-user sockets exchange packets, with testpmd as the cable between them."""
    hosts = {}
    for name in ("a", "b"):
        hosts[name] = lab.host(config_of(name, connect, driver="vhost", device="wire.sock"))
    devices = [f"net_virtio_user{i},path={hosts[name].run_dir}/wire.sock" for i, name in enumerate(("a", "b"))]
    words = [
        "dpdk-testpmd",
        "--lcores",
        "0@0,1@0",
        "--no-huge",
        "-m",
        "256",
        "--no-pci",
        "--no-telemetry",
        "--no-shconf",
    ]
    words += ["--file-prefix", lab.prefix, *(word for device in devices for word in ("--vdev", device)), "--"]
    words += ["--forward-mode", "io", "--total-num-mbufs", "8192", "--stats-period", "1"]
    cable = Background(words, lab.directory / "cable.log")
    lab.cleanup.callback(cable.stop)
    cable.wait_for("NIC statistics")
    exchange(lab, hosts)


def test_tap(lab):
    """The wire may be a TAP device, its other end a plain Linux machine's."""
    config = host_config("a", {"a1": tap("a1")}, mtu=MTU)
    config.entry("wire", "up0").update(driver="tap", device="up0")
    host = lab.host(config)
    outside = lab.namespace("outside")
    host.namespace.ip("link set up0 netns", outside.name)
    outside.ip("addr add 192.0.2.9/24 dev up0")
    outside.ip("link set up0 up")
    Server(outside).expect_ping("192.0.2.1", 5)
