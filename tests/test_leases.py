"""Leases that a guest takes along to another host."""

import shlex

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from lab import Config, eventually
from lab.host import binary
from lab.marks import machines
from test_services import VM_SCRIPT, bare, leases, udhcpc

# It says what it was called for, too.
SCRIPT = VM_SCRIPT.replace("\n", '\necho "$1 $ip" >> /tmp/said\n', 1)
# See test_save.py.
MEMORY = f"{192 * 1024 + 8}K"
MAC = "02:00:00:00:02:01"
POOLS = {
    "a": ["10.2.1.100-10.2.1.103", "fd00:2::1000/116"],
    "b": ["10.2.1.200-10.2.1.203", "fd00:2::2000/116"],
}


def config_of(name, **keys):
    """Configures a host where guest c1 and another guest lease addresses."""
    config = Config(name)
    gateways = ["10.2.1.254/24", "fd00:2::ffff/64"]
    services = {"dhcp": True, "ra": True, "dns": True, "domain": "green", "pool": POOLS[name]}
    config.add("network", name="green", vrf=2, gateways=gateways, **services)
    # The guest is the same container, by another device.
    kind = {"kind": "tap", "device": f"tapc1{name}"} if "kind" not in keys else {}
    config.add("guest", name="c1", network="green", **kind, **keys)
    return config.add("guest", name=f"other{name}", network="green", kind="tap", device=f"tapo{name}")


def move(here, there, tmp_path):
    """Takes the state of guest c1 along to another host; returns what was done there."""
    state = tmp_path / "state"
    words = ["sh", "-c", 'exec "$0" --run-dir "$1" guest export c1 > "$2"', binary("viaduct"), here.run_dir, state]
    here.namespace.run(words)
    return there.viaduct("guest", "import", "c1", state)


def guest_at(lab, host):
    """Returns the guest's container at this host, with the guest's MAC."""
    container = bare(lab, host, "c1")
    container.namespace.ip("link set", container.device, "address", MAC)
    return container


@pytest.fixture
def hosts(lab):
    return {name: lab.host(config_of(name)) for name in POOLS}


def test_a_guest_keeps_its_addresses(hosts, lab, tmp_path):
    a, b = hosts["a"], hosts["b"]
    c1 = guest_at(lab, a)
    address = udhcpc(c1, tmp_path)["ip"]
    eventually(lambda: leases(a)["c1"]["mac"] == MAC, "the MAC is in the lease")
    leased = leases(a)["c1"]["addresses"]
    assert address == leased[0] != leases(b)["c1"]["addresses"][0]
    c1.namespace.ip("link set", c1.device, "down")

    done = move(a, b, tmp_path)
    assert done["addresses"] == leased, done
    assert not any("lease" in left["reason"] for left in done.get("left_out", [])), done
    lease = leases(b)["c1"]
    assert (lease["addresses"], lease["foreign"]) == (leased, True), lease
    assert leases(b)["otherb"]["addresses"][0].startswith("10.2.1.20")
    c1, other = guest_at(lab, b), bare(lab, b, "otherb")
    # It goes on with its address at once, renews it, and is found by its name.
    assert udhcpc(c1, tmp_path, "-r", address)["ip"] == address
    udhcpc(other, tmp_path)
    other.expect_ping(address)
    assert leases(b)["c1"]["mac"] == MAC
    asked = other.run(["busybox", "nslookup", "-type=a", "c1.green", "10.2.1.254"]).stdout
    assert address in asked, asked
    # No other address is its own, and its MAC is the one that it came with.
    frame = lambda mac, src: bytes(Ether(src=mac, dst="00:00:5e:00:01:00") / IP(src=src, dst="10.2.1.254") / UDP())
    said = lambda mac, src: b.viaduct("explain", "--in", "c1", frame(mac, src).hex()).get("reason")
    assert said(MAC, "10.2.1.77") == "address_spoofed" and said("02:00:00:00:99:99", address) == "mac_spoofed"
    # Over a crash as well, and a change of the configuration.
    b.kill()
    b.start()
    b.apply(config_of("b", hostname="c1"))
    assert leases(b)["c1"]["addresses"] == leased
    # Given back, it has an address of this pool.
    b.viaduct("lease", "del", "c1")
    assert leases(b)["c1"]["addresses"][0].startswith("10.2.1.20")
    assert udhcpc(c1, tmp_path, "-r", address)["ip"].startswith("10.2.1.20")


def test_an_address_that_somebody_has_stays_behind(hosts, lab, tmp_path):
    a, b = hosts["a"], hosts["b"]
    address = leases(a)["c1"]["addresses"][0]
    before = leases(b)["c1"]["addresses"]
    tap = ("--kind", "tap", "--device", "tapx", "--mac", "02:00:00:00:02:09")
    b.call("guest", "add", "taken", "--network", "green", *tap, "--address", address)
    done = move(a, b, tmp_path)
    assert not done.get("addresses") and leases(b)["c1"]["addresses"] == before, done
    reasons = [left["reason"] for left in done["left_out"]]
    assert f'its lease: {address} belongs to guest "taken" here' in reasons, done
    # A guest that asks for it is refused, and gets another.
    assert udhcpc(guest_at(lab, b), tmp_path, "-r", address)["ip"] == before[0]


@machines
def test_a_virtual_machine_migrates_with_its_lease(lab, tmp_path):
    """It notices nothing: its address stays, and is renewed where the VM is now."""
    keys = {"kind": "vhost", "standby": True}
    a, b = (lab.host(config_of(name, **keys)) for name in POOLS)
    vm = lab.vm(a, "c1", seat={"mac": MAC}, memory=MEMORY)
    others = {host: bare(lab, host, name) for host, name in ((a, "othera"), (b, "otherb"))}
    for other in others.values():
        udhcpc(other, tmp_path)
    vm.boot()
    vm.shell(f"mkdir -p /etc /tmp; echo {shlex.quote(SCRIPT)} > /tmp/script; chmod +x /tmp/script")
    vm.shell("udhcpc -b -t 20 -T 1 -i eth0 -s /tmp/script -p /tmp/pid")
    eventually(lambda: leases(a)["c1"]["mac"] == MAC, "the MAC is in the lease")
    leased = leases(a)["c1"]["addresses"]
    others[a].expect_ping(leased[0])
    done = {}
    vm, _ = lab.migrate(vm, b, lambda: done.update(move(a, b, tmp_path)))
    assert done["addresses"] == leased, done
    others[b].expect_ping(leased[0])
    assert (leases(b)["c1"]["addresses"], leases(b)["c1"]["foreign"]) == (leased, True)
    # The client, which still runs, has the lease renewed.
    vm.shell("kill -USR1 $(cat /tmp/pid)")
    eventually(lambda: f"renew {leased[0]}" in vm.shell("cat /tmp/said").stdout, "the lease is renewed")
    assert leased[0] in vm.shell("ip addr show dev eth0").stdout
