"""DHCP by a server outside: dnsmasq, beyond an interface of the host."""

import signal

import pytest
from lab import Config, eventually
from lab.netns import cable
from test_services import bare, find_router, questions, udhcpc

SERVER, SERVER6 = "192.0.2.67", "2001:db8::67"
MAC = "02:00:00:00:01:01"
DNSMASQ = [
    *("dnsmasq", "--conf-file=/dev/null", "--no-daemon", "--port=0", "--log-dhcp", "--log-facility=-", "--user=root"),
    *("--dhcp-range=10.1.1.50,10.1.1.59,255.255.255.0,600", "--dhcp-option=option:router,10.1.1.254"),
    *("--dhcp-range=fd00:1::50,fd00:1::59,64,600", "--dhcp-option=option:domain-name,outside.example"),
    "--dhcp-option=option:mtu,1450",
]


def config_of():
    config = Config("a", metrics="127.0.0.1:9101")
    config.add(
        "network",
        name="blue",
        vrf=1,
        gateways=["10.1.1.254/24", "fd00:1::ffff/64"],
        mtu=1450,
        dhcp_relay=[SERVER, SERVER6],
        ra=True,
    )
    config.add("guest", name="c1", network="blue", kind="tap", device="tapc1", mac=MAC)
    return config.add("guest", name="c2", network="blue", kind="tap", device="tapc2")


@pytest.fixture
def relay(lab, tmp_path):
    """A host whose guests c1 and c2 get their addresses from dnsmasq, which has no way to them."""
    host = lab.host(config_of(), start=False)
    server = lab.namespace("server")
    for namespace in (host.namespace, server):
        for where in ("all", "default"):
            namespace.sysctl(f"net.ipv6.conf.{where}.disable_ipv6", 0)
    cable(host.namespace, "up1", server, "up1", mtu=1500)
    for namespace, number in ((host.namespace, 1), (server, 67)):
        namespace.ip(f"addr add 192.0.2.{number}/24 dev up1")
        namespace.ip(f"addr add 2001:db8::{number}/64 dev up1 nodad")
    host.start()
    host.dnsmasq = server.background([*DNSMASQ, f"--dhcp-leasefile={tmp_path}/leases"])
    host.dnsmasq.wait_for("DHCPv6, IP range")
    host.c1, host.c2 = bare(lab, host, "c1"), bare(lab, host, "c2")
    return host


def asked(host, outcome):
    return any(f'outcome="{outcome}"' in line for line in questions(host))


def test_guests_get_addresses_of_a_server_outside_and_renew_them(relay, tmp_path):
    for container in (relay.c1, relay.c2):
        told = udhcpc(container, tmp_path)
        assert told["ip"].startswith("10.1.1.5") and told["mtu"] == "1450", told
        # Clients renew by the gateway, because they need not reach the server.
        assert told["serverid"] == "10.1.1.254" and told["domain"] == "outside.example", told
        container.address = told["ip"]
    assert relay.c1.address != relay.c2.address
    relay.c1.expect_ping(relay.c2.address)
    assert asked(relay, "relayed") and asked(relay, "answered")
    relay.dnsmasq.wait_for("agent-id")
    # A renewal, also after the daemon was killed and replaced.
    words = ["busybox", "udhcpc", "-f", "-i", relay.c1.device, "-s", tmp_path / "c1.script", "-r", relay.c1.address]
    client = relay.c1.background(words)
    client.wait_for("lease of")
    for change in (lambda: None, lambda: (relay.kill(), relay.start()), relay.replace):
        change()
        (tmp_path / "c1.renew").unlink(missing_ok=True)
        client.process.send_signal(signal.SIGUSR1)
        eventually((tmp_path / "c1.renew").exists, "the lease is renewed")


def test_dhcpv6_is_relayed_and_advertised(relay, tmp_path):
    container = relay.c1
    leases = tmp_path / "leases6"
    files = ["-lf", leases, "-pf", tmp_path / "pid6"]
    shown = find_router(container)
    assert "fd00:1::" not in shown("addr"), "an address that the server did not give"
    container.run(["dhclient", "-6", "-1", "-v", "-sf", "/bin/true", *files, container.device])
    try:
        assert "iaaddr fd00:1::5" in leases.read_text()
    finally:
        container.run(["dhclient", "-6", "-x", "-sf", "/bin/true", *files], check=False)


def test_a_server_that_is_not_there_is_named(relay, tmp_path):
    config = relay.config.copy()
    config.entry("network", "blue")["dhcp_relay"] = ["203.0.113.67"]
    relay.apply(config)
    question = ["busybox", "udhcpc", "-f", "-q", "-n", "-t", 2, "-T", 1, "-i", relay.c1.device, "-s", "/bin/true"]
    assert relay.c1.run(question, check=False).returncode != 0
    eventually(lambda: asked(relay, "no_server"), "no way to the server")
    assert "the DHCP server 203.0.113.67 gets nothing of guests" in relay.daemon.text()
