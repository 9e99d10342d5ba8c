"""Services of a network, as their clients see them: a container whose interface has no address yet runs udhcpc and
dhclient."""

import hmac
import json
import shlex
import sys

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether

from lab import Config, eventually
from lab.host import REPOSITORY
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


USER_DATA = "#cloud-config\npassword: secret\n" + "x" * 40_000
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
        metadata=True,
        domain="green.internal",
        resolvers=["192.0.2.53"],
    )
    told = {"user_data": USER_DATA, "ssh_keys": ["ssh-ed25519 AAAA me"]}
    config.add("guest", name="c1", network="green", kind="tap", device="tapc1", **told)
    return config.add("guest", name="c2", network="green", kind="tap", device="tapc2")


def leases(host):
    return {lease["guest"]: lease for lease in host.viaduct("lease")}


# Answers each question for an IPv4 address, at all addresses of the host: by TCP with 200 records.
RESOLVER = """
import socket
import threading

def answer(asked, count):
    end = asked.index(b"\\0", 12) + 5
    count *= asked[end - 4 : end - 2] == b"\\0\\1"
    record = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\x3c\\0\\4" + bytes([198, 51, 100, 7])
    counts = bytes([0, 1, 0, count, 0, 0, 0, 0])
    return asked[:2] + b"\\x81\\x80" + counts + asked[12:end] + record * count

def by_tcp():
    while True:
        client = listener.accept()[0]
        said = answer(client.recv(2048)[2:], 200)
        client.sendall(len(said).to_bytes(2, "big") + said)

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("0.0.0.0", 53))
listener = socket.create_server(("0.0.0.0", 53))
threading.Thread(target=by_tcp, daemon=True).start()
print("ready", flush=True)
while True:
    asked, client = server.recvfrom(2048)
    server.sendto(answer(asked, 1), client)
"""

# Asks for a name by TCP; prints the length of the answer and its code.
BY_TCP = """
import socket
import struct
import sys
name = b"".join(bytes([len(label)]) + label.encode() for label in sys.argv[2].split("."))
query = b"\\0\\7\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0" + name + b"\\0\\0\\1\\0\\1"
with socket.create_connection((sys.argv[1], 53), timeout=10) as server:
    server.sendall(struct.pack(">H", len(query)) + query)
    answer = server.makefile("rb")
    said = answer.read(*struct.unpack(">H", answer.read(2)))
print(len(said), said[3] & 15)
"""

# Sends frames.
FRAMES = """
import socket
import sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind((sys.argv[1], 0))
for frame in sys.argv[2:]:
    link.send(bytes.fromhex(frame))
"""

# Holds connections to the metadata on which it says little.
SLOW = """
import socket
import sys
held = []
for _ in range(12):
    client = socket.socket()
    client.settimeout(1)
    try:
        client.connect(("169.254.169.254", 80))
        client.sendall(b"GET /")
        held.append(client)
    except OSError:
        pass
print("held", len(held), flush=True)
for client in held:
    client.settimeout(30)
    try:
        ended = client.recv(1) == b""
    except OSError:
        ended = True
print("ended", flush=True)
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


def find_router(container):
    """Has a container's kernel look for routers; returns what shows its addresses and routes."""
    keys = (("accept_ra", 2), ("router_solicitations", 3), ("autoconf", 1), ("disable_ipv6", 1), ("disable_ipv6", 0))
    for key, value in keys:
        container.namespace.sysctl(f"net.ipv6.conf.{container.device}.{key}", value)
    shown = lambda what: container.run(["ip", "-6", what, "show", "dev", container.device]).stdout
    default = "default via fe80::200:5eff:fe00:100 proto ra"
    eventually(lambda: default in shown("route"), default)
    return shown


def test_linux_finds_the_router_and_gets_an_ipv6_address(host, tmp_path):
    container = host.vm1
    shown = find_router(container)
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
    # By TCP, whatever its length.
    pool.viaduct("network", "set", "green", "--take-over", "resolvers=192.0.2.53")
    by_tcp = lambda name: pool.c1.run([sys.executable, "-c", BY_TCP, "10.2.1.254", name]).stdout.split()
    assert by_tcp("c2.green.internal")[1] == "0"
    assert by_tcp("many.example.org") == [str(12 + 22 + 200 * 16), "0"]
    counts = [line for line in questions(pool) if 'outcome="no_resolver"' in line]
    assert counts, questions(pool)
    packet = f"{address} > 10.2.1.254 / udp 40000 > 53"
    assert "serve by dns" in pool.viaduct("explain", "--in", "c1", packet)["decision"]


def test_metadata_is_its_guests(pool, tmp_path):
    lease = leases(pool)
    for container in (pool.c1, pool.c2):
        assert udhcpc(container, tmp_path)["ip"] == lease[container.name]["addresses"][0]
        address6 = lease[container.name]["addresses"][1]
        container.run(["ip", "addr", "add", f"{address6}/64", "dev", container.device, "nodad"])
        container.run(["ip", "route", "replace", "default", "via", "fd00:2::ffff"])
    curl = lambda of, path, *more: of.run(["curl", "-s", "-m", 10, *more, f"http://169.254.169.254{path}"]).stdout
    token = curl(pool.c1, "/latest/api/token", "-X", "PUT", "-H", "X-aws-ec2-metadata-token-ttl-seconds: 60")
    with_token = ["-H", f"X-aws-ec2-metadata-token: {token}"]
    assert curl(pool.c1, "/latest/user-data", *with_token) == USER_DATA
    assert curl(pool.c1, "/latest/meta-data/public-keys/0/openssh-key") == "ssh-ed25519 AAAA me"
    status = ["-o", "/dev/null", "-w", "%{http_code}"]
    # Nobody else has it, whatever it knows or says.
    assert curl(pool.c2, "/latest/user-data", *with_token, *status) == "401"
    assert curl(pool.c2, "/latest/user-data", *status, "-H", f"X-Forwarded-For: {lease['c1']['addresses'][0]}") == "404"
    v6 = pool.c2.run(["curl", "-s", "-m", 10, "-g", "http://[fd00:ec2::254]/openstack/latest/meta_data.json"]).stdout
    assert json.loads(v6)["hostname"] == "c2.green.internal"
    packet = f"{lease['c1']['addresses'][0]} > 169.254.169.254 / tcp 40000 > 80 syn"
    assert "serve by metadata" in pool.viaduct("explain", "--in", "c1", packet)["decision"]
    # One that holds connections, or leaves them half open, keeps nobody else from asking, and itself for a while.
    slow = pool.c1.namespace.background([sys.executable, "-c", SLOW], "slow")
    slow.wait_for("held 8")
    assert json.loads(curl(pool.c2, "/meta-data"))["instance-id"] == "c2"
    slow.wait_for("ended")
    mac = pool.c1.run(["cat", f"/sys/class/net/{pool.c1.device}/address"]).stdout.strip()
    link = Ether(src=mac, dst="00:00:5e:00:01:00")
    syns = link / IP(src=lease["c1"]["addresses"][0], dst="169.254.169.254") / TCP(sport=(2000, 2099), dport=80)
    frames = [bytes(frame).hex() for frame in syns]
    pool.c1.run([sys.executable, "-c", FRAMES, pool.c1.device, *frames])
    assert json.loads(curl(pool.c2, "/meta-data"))["instance-id"] == "c2"
    assert curl(pool.c1, "/latest/meta-data/instance-id") == "c1"


CLOUD_INIT_FILES = REPOSITORY / ".cache/cloud-init/usr/lib/python3/dist-packages"
# Reads metadata as cloud-init's own data sources do; prints what they found.
CLOUD_INIT = """
import json
import sys
from cloudinit import helpers, settings, util
from cloudinit.sources import DataSourceEc2
from cloudinit.sources.helpers import openstack

ADDRESS = "http://169.254.169.254"
metadata, data, _ = util.read_seeded(ADDRESS + "/", timeout=10, retries=0)
found = {"nocloud": [metadata, len(data)]}
source = DataSourceEc2.DataSourceEc2(settings.CFG_BUILTIN, None, helpers.Paths({}))
assert source.wait_for_metadata_service()
ec2 = source.crawl_metadata()
found["ec2"] = [ec2["meta-data"], len(ec2["user-data"])]
stack = openstack.MetadataReader(ADDRESS).read_v2()
network = openstack.convert_net_json(stack["networkdata"], known_macs={sys.argv[1]: "eth0"})
found["openstack"] = [stack["metadata"], len(stack["userdata"]), network]
print(json.dumps(found))
"""


# A metadata service as OpenStack's: it answers with the headers that it gets.
SERVICE = """
import http.server
import json

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"path": self.path, **dict(self.headers)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

server = http.server.ThreadingHTTPServer(("0.0.0.0", 8775), Handler)
print("ready", flush=True)
server.serve_forever()
"""


def test_metadata_of_a_service_outside_are_signed_for_the_guest(pool, tmp_path):
    config = pool.config.copy()
    proxy = {"metadata_proxy": "192.0.2.9:8775", "metadata_secret": "shared", "metadata_tenant": "project-1"}
    config.entry("network", "green").update(proxy)
    pool.apply(config)
    address = udhcpc(pool.c1, tmp_path)["ip"]
    ask = ["curl", "-s", "-m", 10, "-H", "X-Instance-ID: c2", "http://169.254.169.254/latest/meta-data/instance-id"]
    assert pool.c1.run([*ask, "-o", "/dev/null", "-w", "%{http_code}"]).stdout == "502"
    pool.namespace.ip("addr add 192.0.2.9/32 dev lo")
    service = pool.namespace.background([sys.executable, "-c", SERVICE], "service")
    service.wait_for("ready")
    told = json.loads(pool.c1.run(ask).stdout)
    wanted = {
        "path": "/latest/meta-data/instance-id",
        "X-Forwarded-For": address,
        "X-Instance-ID": "c1",
        "X-Tenant-ID": "project-1",
        "X-Instance-ID-Signature": hmac.new(b"shared", b"c1", "sha256").hexdigest(),
    }
    assert {key: told.get(key) for key in wanted} == wanted


@pytest.mark.nightly
def test_cloud_init_reads_metadata(pool, tmp_path):
    # It needs no more than its files (`scripts/setup test`).
    python = ["env", f"PYTHONPATH={CLOUD_INIT_FILES}", "/usr/bin/python3", "-c"]
    pool.c1.run([*python, "import cloudinit.util"])
    udhcpc(pool.c1, tmp_path)
    mac = pool.c1.run(["cat", f"/sys/class/net/{pool.c1.device}/address"]).stdout.strip()
    found = json.loads(pool.c1.run([*python, CLOUD_INIT, mac]).stdout.splitlines()[-1])
    (nocloud, *_), (ec2, *_), (stack, _, network) = found["nocloud"], found["ec2"], found["openstack"]
    assert all(of[1] == len(USER_DATA) for of in found.values()), found
    keys = ["ssh-ed25519 AAAA me"]
    assert nocloud["instance-id"] == ec2["instance-id"] == stack["uuid"] == "c1", found
    assert nocloud["public-keys"] == list(stack["public_keys"].values()) == keys, found
    assert ec2["public-keys"] == {"key0": keys[0]}, found
    assert stack["hostname"] == "c1.green.internal", found
    (link,) = network["config"][:1]
    assert link["mac_address"] == mac and {"type": "dhcp4"} in link["subnets"], found


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
