"""Services of a network, as their clients see them: a container whose interface has no address yet runs udhcpc and
dhclient."""

import shlex
import sys

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from lab import Config, eventually
from lab.shell import Failed

SCRIPT = """#!/bin/sh
env > "{answers}.$1"
[ "$1" = deconfig ] && ip addr flush dev "$interface"
case $1 in
  bound | renew)
    ip addr replace "$ip/$mask" dev "$interface"
    ip route replace default via "$router" dev "$interface"
    ip link set "$interface" mtu "$mtu" ;;
esac
exit 0
"""
MACS = {"vm1": "02:00:00:00:01:01", "vm2": "02:00:00:00:01:02"}


def config_of():
    """Configures a host with a network whose guests get everything by DHCP."""
    config = Config("a", metrics="127.0.0.1:9101")
    config.add(
        "network",
        name="blue",
        vrf=1,
        gateways=["10.1.1.254/24", "fd00:1::ffff/64"],
        mtu=1450,
        dhcp=True,
        ra=True,
        domain="blue.internal",
        resolvers=["192.0.2.53", "2001:db8::53"],
        dhcp_options={"lease_time": 600, "ntp": ["192.0.2.123"], "search": ["blue.internal", "example.org"]},
    )
    for number, name in enumerate(MACS, 1):
        config.add(
            "guest",
            name=name,
            network="blue",
            kind="tap",
            device=f"tap{name}",
            mac=MACS[name],
            addresses=[f"10.1.1.{number}", f"fd00:1::{number}"],
            hostname=f"host-{number}",
        )
    return config


def bare(lab, host, name):
    """Returns a container whose interface is up and has no address."""
    container = lab.container(host, name)
    container.run(["ip", "addr", "flush", "dev", container.device])
    return container


def udhcpc(container, directory, *options):
    """Runs busybox's client, which takes an address once; returns what it was told."""
    script, answers = directory / f"{container.name}.script", directory / container.name
    script.write_text(SCRIPT.format(answers=answers))
    script.chmod(0o755)
    words = ["busybox", "udhcpc", "-f", "-q", "-n", "-t", 20, "-T", 1, "-i", container.device, "-s", script]
    options = [*options, "-O", "mtu", "-O", "search", "-O", "ntpsrv"]
    done = container.run([*words, *options], check=False)
    if done.returncode != 0:
        raise Failed(done.stdout + done.stderr)
    lines = (directory / f"{container.name}.bound").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


POOL = ["10.2.1.100-10.2.1.103", "fd00:2::1000/116"]


def pool_of(config, mac=None):
    """Adds a network whose guests, c1 and c2, have no addresses of their own."""
    config.add(
        "network",
        name="green",
        vrf=2,
        gateways=["10.2.1.254/24", "fd00:2::ffff/64"],
        dhcp=True,
        ra=True,
        pool=POOL,
        dns=True,
        domain="green.internal",
        resolvers=["192.0.2.53"],
    )
    for name in ("c1", "c2"):
        config.add("guest", name=name, network="green", kind="tap", device=f"tap{name}")
    return config


def leases(host):
    return {lease["guest"]: lease for lease in host.viaduct("lease")}


# Answers each question for an IPv4 address, at all addresses of the host.
RESOLVER = """
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("0.0.0.0", 53))
print("ready", flush=True)
while True:
    asked, client = server.recvfrom(2048)
    end = asked.index(b"\\0", 12) + 5
    found = asked[end - 4 : end - 2] == b"\\0\\1"
    record = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\x3c\\0\\4" + bytes([198, 51, 100, 7])
    counts = bytes([0, 1, 0, found, 0, 0, 0, 0])
    server.sendto(asked[:2] + b"\\x81\\x80" + counts + asked[12:end] + record * found, client)
"""


@pytest.fixture
def pool(lab):
    host = lab.host(pool_of(Config("a", metrics="127.0.0.1:9101")))
    host.c1, host.c2 = bare(lab, host, "c1"), bare(lab, host, "c2")
    return host


@pytest.fixture
def host(lab):
    host = lab.host(config_of())
    host.vm1, host.vm2 = bare(lab, host, "vm1"), bare(lab, host, "vm2")
    return host


def questions(host):
    """Returns the metrics of questions that the service got."""
    text = host.namespace.run(["curl", "-s", "http://127.0.0.1:9101/metrics"]).stdout
    return [line for line in text.splitlines() if line.startswith("viaduct_service_questions_total")]


def test_a_container_gets_its_address_and_goes_on_after_a_kill(host, lab, tmp_path):
    told = udhcpc(host.vm1, tmp_path)
    wanted = {
        "ip": "10.1.1.1",
        "mask": "24",
        "router": "10.1.1.254",
        "mtu": "1450",
        "dns": "192.0.2.53",
        "domain": "blue.internal",
        "search": "blue.internal example.org",
        "ntpsrv": "192.0.2.123",
        "hostname": "host-1",
        "lease": "600",
        "serverid": "10.1.1.254",
    }
    assert {key: told.get(key) for key in wanted} == wanted
    udhcpc(host.vm2, tmp_path)
    host.vm1.expect_ping("10.1.1.2", 1)
    told = 'viaduct_service_questions_total{network="blue",outcome="answered"} 4'
    eventually(lambda: told in questions(host), "four answers in the metrics")
    # The daemon remembers nothing that it would have to keep.
    host.kill()
    host.start()
    assert udhcpc(host.vm1, tmp_path, "-r", "10.1.1.1")["ip"] == "10.1.1.1"
    host.vm1.expect_ping("10.1.1.2", 1)


def test_clients_of_a_distribution_take_what_they_are_told(host, lab, tmp_path):
    leases = tmp_path / "leases"
    words = ["dhclient", "-1", "-v", "-sf", "/bin/true", "-lf", leases, "-pf", tmp_path / "pid", host.vm1.device]
    host.vm1.run(words)
    try:
        text = leases.read_text()
        for line in ("fixed-address 10.1.1.1;", "option interface-mtu 1450;", 'option domain-name "blue.internal";'):
            assert line in text, text
    finally:
        host.vm1.run(["dhclient", "-x", "-sf", "/bin/true", "-lf", leases, "-pf", tmp_path / "pid"], check=False)


def test_linux_finds_the_router_and_gets_an_ipv6_address(host, tmp_path):
    container = host.vm1
    keys = (("accept_ra", 2), ("router_solicitations", 3), ("autoconf", 1), ("disable_ipv6", 1), ("disable_ipv6", 0))
    for key, value in keys:
        container.namespace.sysctl(f"net.ipv6.conf.{container.device}.{key}", value)
    shown = lambda what: container.run(["ip", "-6", what, "show", "dev", container.device]).stdout
    default = "default via fe80::200:5eff:fe00:100 proto ra"
    eventually(lambda: default in shown("route"), default)
    assert f"fd00:1::/64 dev {container.device}" in container.run(["ip", "-6", "route"]).stdout
    assert container.namespace.run(["cat", f"/proc/sys/net/ipv6/conf/{container.device}/mtu"]).stdout.strip() == "1450"
    assert "fd00:1::" not in shown("addr"), "an address that it may not use"
    leases = tmp_path / "leases6"
    files = ["-lf", leases, "-pf", tmp_path / "pid6"]
    container.run(["dhclient", "-6", "-1", "-v", "-sf", "/bin/true", *files, container.device])
    try:
        text = leases.read_text()
        for line in ("iaaddr fd00:1::1 {", "option dhcp6.name-servers 2001:db8::53;"):
            assert line in text, text
    finally:
        container.run(["dhclient", "-6", "-x", "-sf", "/bin/true", *files], check=False)
    container.namespace.ip("addr add fd00:1::1/128 dev", container.device, "nodad")
    host.vm2.namespace.ip("addr add fd00:1::2/64 dev", host.vm2.device, "nodad")
    container.expect_ping("fd00:1::2", 1)


def test_a_question_is_explained_and_one_under_anothers_mac_is_none(host):
    question = Ether(src=MACS["vm1"], dst="ff:ff:ff:ff:ff:ff") / IP(src="0.0.0.0", dst="255.255.255.255")
    frame = bytes(question / UDP(sport=68, dport=67)).hex()
    said = host.viaduct("explain", "--in", "vm1", frame)
    assert said["verdict"] == "serve" and "serve by dhcp" in said["decision"], said
    assert host.viaduct("explain", "--in", "vm2", frame)["reason"] == "mac_spoofed"


def test_guests_without_addresses_have_leases(pool, tmp_path):
    before = leases(pool)
    addresses = {name: lease["addresses"] for name, lease in before.items()}
    assert set(addresses) == {"c1", "c2"} and all(len(of) == 2 for of in addresses.values()), before
    assert addresses["c1"] != addresses["c2"] and all(lease["mac"] is None for lease in before.values())
    # It may use its own address alone, also before it asks.
    pool.c1.namespace.ip("addr add 10.2.1.77/24 dev", pool.c1.device)
    pool.c1.run(["ping", "-c1", "-W1", "10.2.1.254"], check=False)
    eventually(lambda: {"address_spoofed", "neighbour_spoofed"} & set(pool.drops()), "what it sends is dropped")
    pool.c1.run(["ip", "addr", "flush", "dev", pool.c1.device])
    for container in (pool.c1, pool.c2):
        assert udhcpc(container, tmp_path)["ip"] == addresses[container.name][0]
    learnt = lambda: all(lease["mac"] for lease in leases(pool).values())
    eventually(learnt, "the MACs are in the leases")
    pool.c1.expect_ping(addresses["c2"][0], 1)
    assert 'viaduct_leases{network="green"} 2' in pool.namespace.run(["curl", "-s", "http://127.0.0.1:9101/metrics"]).stdout
    # A different MAC is none of the guest's, and takes nothing.
    mac = leases(pool)["c1"]["mac"]
    become = lambda address: pool.c1.namespace.ip("link set", pool.c1.device, "address", address)
    become("02:00:00:00:99:99")
    with pytest.raises(Failed):
        udhcpc(pool.c1, tmp_path, "-t", 2)
    # What is leased stays, over a crash and a replacement.
    pool.kill()
    pool.start()
    assert leases(pool)["c1"]["mac"] == mac
    pool.replace()
    assert {name: lease["addresses"] for name, lease in leases(pool).items()} == addresses
    # Forgotten, it is learnt anew.
    pool.viaduct("lease", "del", "c1")
    become("02:00:00:00:99:99")
    assert udhcpc(pool.c1, tmp_path)["ip"] == addresses["c1"][0]
    eventually(lambda: leases(pool)["c1"]["mac"] == "02:00:00:00:99:99", "the new MAC")
    pool.c2.expect_ping(addresses["c1"][0], 1)
    pool.viaduct("network", "set", "green", "--take-over", f"pool=10.2.1.200-10.2.1.209,{POOL[1]}")
    moved = leases(pool)["c2"]["addresses"]
    assert moved[0].startswith("10.2.1.20") and moved[1] == addresses["c2"][1]


def test_names_of_guests_and_of_others(pool, tmp_path):
    for address in ("192.0.2.53", "192.0.2.54"):
        pool.namespace.ip("addr add", address, "dev lo")
    resolver = pool.namespace.background([sys.executable, "-c", RESOLVER], "resolver")
    resolver.wait_for("ready")
    assert udhcpc(pool.c1, tmp_path)["dns"] == "10.2.1.254"
    address = leases(pool)["c1"]["addresses"][0]
    pool.c1.namespace.ip("addr replace", f"{address}/24", "dev", pool.c1.device)
    lookup = lambda name, server="10.2.1.254": pool.c1.run(["busybox", "nslookup", name, server], check=False).stdout
    other = leases(pool)["c2"]["addresses"]
    said = lookup("c2.green.internal")
    assert all(address in said for address in other), said
    assert "c2.green.internal" in lookup(other[0])
    assert "NXDOMAIN" in lookup("c3.green.internal")
    assert "198.51.100.7" in lookup("www.example.org")
    # The file does not name it, so the helper reaches it for nobody.
    pool.viaduct("network", "set", "green", "--take-over", "resolvers=192.0.2.54")
    assert "SERVFAIL" in lookup("other.example.org")
    counts = [line for line in questions(pool) if 'outcome="no_resolver"' in line]
    assert counts, questions(pool)
    packet = f"{address} > 10.2.1.254 / udp 40000 > 53"
    assert "serve by dns" in pool.viaduct("explain", "--in", "c1", packet)["decision"]


VM_SCRIPT = """#!/bin/sh
[ "$1" = bound ] || exit 0
ip addr add "$ip/$mask" dev "$interface"
ip route add default via "$router"
echo "search $domain" > /etc/resolv.conf
for server in $dns; do echo "nameserver $server" >> /etc/resolv.conf; done
"""


def test_a_virtual_machine_gets_address_and_names(lab, tmp_path):
    config = pool_of(Config("a"))
    config.add("guest", name="vm1", network="green", kind="vhost")
    host = lab.host(config)
    vm = lab.vm(host, "vm1", seat={"mac": "02:00:00:00:00:31"})
    c1 = bare(lab, host, "c1")
    told = udhcpc(c1, tmp_path)
    vm.boot()
    vm.shell(f"mkdir -p /etc /tmp; echo {shlex.quote(VM_SCRIPT)} > /tmp/script; chmod +x /tmp/script")
    vm.shell("udhcpc -f -q -n -t 20 -T 1 -i eth0 -s /tmp/script")
    eventually(lambda: leases(host)["vm1"]["mac"] == "02:00:00:00:00:31", "the VM's MAC")
    assert leases(host)["vm1"]["addresses"][0] in vm.shell("ip addr show dev eth0").stdout
    assert told["ip"] in vm.shell("nslookup c1.green.internal").stdout
    vm.shell(f"ping -c 1 -W 5 {told['ip']}")
    c1.expect_ping(leases(host)["vm1"]["addresses"][0], 1)
