"""The host itself in a network, and the way out of a network through the host."""

import json

import pytest

from lab import Server, eventually
from lab.topology import SEATS, host_config, tap
from lab.traffic import EchoServer, answers, connect, connect_in_vain

A1 = SEATS["a1"]
NODE = {
    "kind": "host",
    "device": "vd0",
    "network": "blue",
    "mac": "02:00:00:00:01:05",
    "addresses": ["10.1.1.5", "fd00:1::5"],
}


def started(lab, config):
    """Starts a host whose kernel has IPv6."""
    host = lab.host(config, start=False)
    for where in ("all", "default"):
        host.namespace.sysctl(f"net.ipv6.conf.{where}.disable_ipv6", 0)
    host.start()
    return host


def index(host, device):
    """Returns the number of an interface of the host: another one is another interface."""
    return json.loads(host.namespace.run(["ip", "-json", "link", "show", device]).stdout)[0]["ifindex"]


def is_there(host, device):
    return host.namespace.run(["ip", "link", "show", device], check=False).returncode == 0


def test_the_host_is_a_member_that_restarts_do_not_disturb(lab):
    config = host_config("a", {"a1": tap("a1")}, wire=False)
    network = config.entry("network", "blue")
    network["gateways"] = [*network["gateways"], "10.9.0.254/24"]
    config.add("guest", name="node", **NODE)
    config.rule("blue", 10, "drop", to={"guest": "a1"}, protocol="tcp", ports="81")
    host = started(lab, config)
    a1, node = lab.container(host, "a1"), Server(host.namespace)
    routes = host.namespace.run(["ip", "route"]).stdout
    assert "10.9.0.0/24 via 10.1.1.254 dev vd0" in routes, routes
    number = index(host, "vd0")

    def talk():
        assert index(host, "vd0") == number
        node.expect_ping(A1.address)
        node.expect_ping(A1.address6)
        a1.expect_ping("10.1.1.5")
        with EchoServer(a1, 80), EchoServer(a1, 81):
            assert answers(connect(node, A1.address, 80))
            connect_in_vain(host, "rule_drop", node, A1.address, 81)

    talk()
    host.kill()
    host.start()
    talk()
    host.stop()
    host.start()
    talk()
    host.replace()
    talk()
    # An address that changes comes at once.
    config.entry("guest", "node")["addresses"] = ["10.1.1.6", "fd00:1::5"]
    host.apply(config)
    node.expect_ping(A1.address)
    a1.expect_ping("10.1.1.6")
    host.apply(config.without("guest", name="node"))
    eventually(lambda: not is_there(host, "vd0"), "the end of the host's interface")


HERE, HERE6 = "203.0.113.2", "2001:db8:113::2"
THERE, THERE6 = "203.0.113.1", "2001:db8:113::1"


@pytest.fixture
def outside(lab):
    """Starts host a, whose kernel has the only NIC, with guest a1 that leaves by it; and a machine outside."""
    config = host_config("a", {"a1": tap("a1")}, wire=False)
    config.entry("network", "blue")["snat"] = "host"
    namespaces = [lab.plug(name, "ext0", mtu=1500, fabric="outside") for name in ("a", "c")]
    host = started(lab, config)
    for namespace, addresses in zip(namespaces, ((HERE, HERE6), (THERE, THERE6))):
        namespace.ip("addr add", f"{addresses[0]}/24", "dev ext0")
        namespace.ip("addr add", f"{addresses[1]}/64", "dev ext0 nodad")
    return host, lab.container(host, "a1"), Server(namespaces[1])


def tables(host):
    return host.namespace.run(["nft", "list", "tables"]).stdout


def test_guests_leave_by_the_hosts_own_stack(outside):
    host, a1, server = outside
    needs = "the kernel forwards nothing (net.ipv4.ip_forward, net.ipv6.conf.all.forwarding is 0)"
    assert needs in host.call("status").stdout
    assert needs in host.call("check", host.file).stdout
    assert needs in host.call("doctor", host.file, check=False).stdout
    host.namespace.sysctl("net.ipv4.ip_forward", 1)
    host.namespace.sysctl("net.ipv6.conf.all.forwarding", 1)
    assert needs not in host.call("status").stdout
    a1.expect_ping(THERE)
    a1.expect_ping(THERE6)
    web = server.background(["python3", "-m", "http.server", "8000", "--bind", "::"])
    try:
        for url in (f"http://{THERE}:8000/", f"http://[{THERE6}]:8000/"):
            words = ["curl", "-sf", "--retry", 30, "--retry-connrefused", "--retry-delay", 1, "-o", "/dev/null", url]
            a1.run(words)
        for seen in (f"::ffff:{HERE} ", f"{HERE6} "):
            assert seen in web.text(), web.text()
    finally:
        web.stop()
    # Only what comes from the network's own subnets.
    rules = host.namespace.run(["nft", "list", "ruleset"]).stdout
    for accepted in ("ip saddr 10.1.1.0/24 accept", "ip6 saddr fd00:1::/64 accept"):
        assert accepted in rules, rules
    # Nobody opens connections to guests so, nor guests to the host itself.
    server.namespace.ip("route add 10.1.1.0/24 via", HERE)
    server.expect_no_ping(A1.address)
    a1.expect_no_ping(HERE)
    explained = host.call("explain", "--in", "a1", f"{A1.address} > {THERE} / tcp 40000 > 80 syn").stdout
    assert "blue:out" in explained, explained
    # A network does not take a subnet from the host's other devices, whatever the metric of their route.
    host.namespace.ip("route add 10.5.0.0/24 dev ext0 metric 100")
    network = dict(host.config.entry("network", "blue"))
    network["gateways"] = [*network["gateways"], "10.5.0.254/24"]
    host.apply(host.config.copy().without("network", name="blue").add("network", **network))
    taken = lambda: "a route to 10.5.0.0/24 already" in host.call("status").stdout
    eventually(taken, "the fault of the way out")


def test_guests_do_not_pass_through_the_host_to_other_networks(lab):
    config = host_config("a", {"a1": tap("a1"), "a3": tap("a3")}, wire=False)
    config.entry("network", "blue")["snat"] = "host"
    node = {**NODE, "network": "red", "mac": "02:00:00:00:02:05", "addresses": ["10.2.2.5", "fd00:2::5"]}
    host = started(lab, config.add("guest", name="node", **node))
    host.namespace.sysctl("net.ipv4.ip_forward", 1)
    host.namespace.sysctl("net.ipv6.conf.all.forwarding", 1)
    a1, a3 = lab.container(host, "a1"), lab.container(host, "a3")
    for address in (SEATS["a3"].address, SEATS["a3"].address6):
        Server(host.namespace).expect_ping(address)
        a1.expect_no_ping(address)
    # Nor does the host pass on what its members send it for others.
    a3.namespace.ip("route add 10.1.1.0/24 via 10.2.2.5")
    a3.expect_no_ping(A1.address)


def test_connections_outlive_the_daemon_and_nothing_else_does(outside):
    host, a1, server = outside
    host.namespace.sysctl("net.ipv4.ip_forward", 1)
    with EchoServer(server, 80), connect(a1, THERE, 80) as connection:
        assert answers(connection)
        host.kill()
        host.start()
        assert answers(connection)
        host.stop()
        host.start()
        assert answers(connection)
        host.replace()
        assert answers(connection)
    assert len(tables(host).splitlines()) == 1, tables(host)
    # A port of the host leads to the guest.
    to = {"guest": "a1", "port": 80}
    plain = host.config.copy()
    host.apply(plain.copy().add("forward", network="blue", outside=HERE, protocol="tcp", port=8080, to=to))
    with EchoServer(a1, 80):
        assert answers(connect(server, HERE, 8080))
        [row] = host.viaduct("forward")
        assert (row["key"], row["to"]) == (f"tcp {HERE} 8080", "a1 80"), row
        host.call("forward", "--network", "blue", "add", "tcp", HERE, "8081", "--guest", "a1", "--to-port", "80")
        assert answers(connect(server, HERE, 8081))
        host.apply(plain)
        host.call("forward", "--network", "blue", "del", f"tcp {HERE} 8081")
        for port in (8080, 8081):
            with pytest.raises(ConnectionRefusedError):
                connect(server, HERE, port)
    device = tables(host).split("viaduct-")[1].rsplit("-", 1)[0]
    host.stop()
    host.namespace.ip("link del", device)
    eventually(lambda: tables(host) == "", "the end of the rules")
    host.start()
    network = dict(host.config.entry("network", "blue"))
    del network["snat"]
    host.apply(host.config.without("network", name="blue").add("network", **network))
    eventually(lambda: tables(host) == "" and not is_there(host, device), "the end of the way out")
