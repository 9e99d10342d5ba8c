"""A VM migrates from one host to another, and back, while packets arrive. Nobody changes a configuration meanwhile.

Both hosts have the guest, on standby: while its VMM is not connected to a host, this host behaves as if it had no such
guest, and follows the network, or its routes, to where the guest is.
"""

import re
import signal

import pytest

from lab import Lines, binary, eventually
from lab.marks import at_night, machines
from lab.topology import NETWORKS, SEATS, UNDERLAY, host_config, tap, vhost
from lab.vm import NEWEST_QEMU, QEMU

pytestmark = machines

VM, B1, PEER = SEATS["a1"], SEATS["b1"], SEATS["a2"]
# See test_save.py.
MEMORY = f"{192 * 1024 + 8}K"


def bridged(name, guests):
    """Configures a host that floods to the two others, and learns from them where guests are."""
    config = host_config(name, guests)
    others = [UNDERLAY[other] for other in "abc" if other != name]
    vni = NETWORKS["blue"]["vni"]
    tunnels = [{"tunnel": "vxlan", "remote": remote, "vni": vni} for remote in others]
    return config.add("flood", network="blue", to=tunnels)


def routed(name, guests):
    """Configures a host that has a route to each guest of the others; hosts a and b have one to each other for the
    VM."""
    elsewhere = {"a": {"a1": "b", "b1": "b", "a2": "c"}, "b": {"a1": "a", "a2": "c"}, "c": {"a1": "a", "b1": "b"}}
    config = host_config(name, guests)
    for guest, host in elsewhere[name].items():
        seat = SEATS[guest]
        tunnel = {"tunnel": "mpls-over-udp", "remote": UNDERLAY[host], "label": seat.label}
        config.add("route", network="blue", prefix=f"{seat.address}/32", to=[tunnel])
    return config


def start(lab, kind, queues=1):
    """Starts hosts a and b, which have the VM on standby; b has guest b1; host c has the peer, a2."""
    vm = {"a1": vhost("a1", queues=queues, standby=True)}
    guests = {"a": vm, "b": {**vm, "b1": tap("b1")}, "c": {"a2": tap("a2")}}
    for name in guests:
        lab.plug(name)
    return {name: lab.host(kind(name, guests[name])) for name in guests}


def is_here(host):
    return next(vif for vif in host.viaduct("vif") if vif["name"] == "a1")["up"]


# scripts/qemu-backports brings it here.
newest_qemu = lambda *values: at_night(*values, NEWEST_QEMU, id="newest-qemu")


VARIANTS = [("packed=on", 4, QEMU), at_night("", 1, QEMU), newest_qemu("packed=on", 2)]


@pytest.mark.parametrize("options,queues,qemu", VARIANTS)
def test_a_vm_migrates_there_and_back_under_load(lab, options, queues, qemu):
    hosts = start(lab, bridged, queues)
    vm = lab.vm(hosts["a"], "a1", options=options, memory=MEMORY, qemu=qemu)
    peer, b1 = lab.container(hosts["c"], "a2"), lab.container(hosts["b"], "b1")
    vm.boot()
    if queues > 1:
        vm.shell(f"ethtool -L eth0 combined {queues}")
    # Host b has the guest too, and neither answers for it nor keeps what is for it.
    b1.expect_ping(VM.address)
    peer.expect_ping(VM.address)
    lines = Lines(peer, vm, VM.address)
    echoes = peer.background(["ping", "-n", "-i", "0.02", VM.address], "echoes")
    for there in ("b", "a"):
        lines.vm, told = lab.migrate(lines.vm, hosts[there])
        lines.more()
        assert [is_here(hosts[name]) for name in ("a", "b")] == [there == "a", there == "b"]
        # Some echoes find no room in the guest, which is busy with lines.
        assert lines.vm.reaches(PEER.address) and b1.reaches(VM.address)
        print(f"to host {there}: downtime {told['downtime']} ms by QEMU, {told['total-time']} ms in all")
    echoes.stop(signal.SIGINT)
    print(echoes.text().splitlines()[-2])
    numbers = [int(number) for number in re.findall(r"icmp_seq=(\d+) ttl", echoes.text())]
    assert "DUP!" not in echoes.text() and len(numbers) == len(set(numbers))


def test_routes_lead_to_a_vm_where_it_is(lab):
    hosts = start(lab, routed)
    vm = lab.vm(hosts["a"], "a1", memory=MEMORY)
    lab.container(hosts["c"], "a2")
    b1 = lab.container(hosts["b"], "b1")
    vm.boot()
    b1.expect_ping(VM.address)
    route = lambda host: next(r for r in hosts[host].viaduct("rt") if r["prefix"] == f"{VM.address}/32")["origin"]
    at = lambda *kinds: [route("a").split()[0], route("b").split()[0]] == [*kinds]
    eventually(lambda: at("guest", "route"), "the VM's own route is in force where it is")
    vm, _ = lab.migrate(vm, hosts["b"])
    eventually(lambda: at("route", "guest"), "the VM's own route moves with it")
    b1.expect_ping(VM.address)
    # Nobody has it now: b1's packets go to the other host, which drops them.
    vm.stop()
    eventually(lambda: at("route", "route"), "the VM is nowhere")
    b1.expect_no_ping(VM.address)


@pytest.mark.nightly
def test_a_vm_whose_migration_fails_goes_on_where_it_was(lab):
    hosts = start(lab, bridged)
    vm = lab.vm(hosts["a"], "a1", memory=MEMORY)
    peer = lab.container(hosts["c"], "a2")
    vm.boot()
    lines = Lines(peer, vm, VM.address)

    def goes_on():
        assert (is_here(hosts["a"]), is_here(hosts["b"])) == (True, False)
        lines.more()

    # Given up, and dead at the other end, while QEMU copies. With this little bandwidth it never gets ready.
    slow = {"downtime-limit": 1, "max-bandwidth": 5_000_000}
    for fail, end in (
        (lambda moved: vm.qmp("migrate_cancel"), "cancelled"),
        (lambda moved: moved.qemu.process.kill(), "failed"),
    ):
        moved, way = lab.destination(vm, hosts["b"])
        vm.qmp("migrate-set-parameters", **slow)
        vm.qmp("migrate", uri=way)
        eventually(lambda: vm.qmp("query-migrate")["status"] == "active", "the migration has begun")
        lines.more()
        fail(moved)
        eventually(lambda: vm.qmp("query-migrate")["status"] == end, f"the migration has {end}")
        moved.stop()
        goes_on()
    # Completed, but the destination dies before it goes on.
    moved, way = lab.destination(vm, hosts["b"])
    vm.qmp("migrate-set-parameters", **{"max-bandwidth": 1 << 30})
    vm.migrate(way)
    assert not is_here(hosts["a"]) and not is_here(hosts["b"])
    moved.stop()
    vm.qmp("cont")
    eventually(lambda: is_here(hosts["a"]), "host a has the VM again")
    goes_on()


def guarded(name, guests):
    """Configures a host as `bridged` does; lines alone may come to the VM, and no connection is picked up in
    mid-stream."""
    config = bridged(name, guests)
    if "a1" in guests:
        config.entry("network", "blue")["tcp_midstream"] = False
        config.rule("blue", 100, "allow", to={"guest": "a1"}, protocol="tcp", ports="7000")
        config.add("default", network="blue", action="drop")
    return config


def test_connections_go_with_a_vm(lab):
    hosts = start(lab, guarded)
    vm = lab.vm(hosts["a"], "a1", memory=MEMORY)
    peer = lab.container(hosts["c"], "a2")
    vm.boot()
    lines = Lines(peer, vm, VM.address)
    state = lab.directory / "a1.state"

    def connections_follow():
        command = ["sh", "-c", 'exec "$0" --run-dir "$1" guest export a1 > "$2"']
        hosts["a"].namespace.run([*command, binary("viaduct"), hosts["a"].run_dir, state])
        imported = hosts["b"].viaduct("guest", "import", "a1", state)
        assert imported["connections"] >= 1, imported

    lines.vm, _ = lab.migrate(lines.vm, hosts["b"], connections_follow)
    lines.more()
    [before], [after] = (hosts[name].viaduct("flow", "--match", "tcp & port 7000") for name in "ab")
    assert (before["source"], before["state"]) == (after["source"], after["state"])
    assert after["packets"] > before["packets"] and after["age"] >= before["idle"]
    # Without them it ends: host a forgets the connection, and does not pick it up.
    hosts["a"].call("flow", "flush")
    lines.vm, _ = lab.migrate(lines.vm, hosts["a"])
    eventually(lambda: hosts["a"].drops().get("tcp_midstream"), "host a does not know the connection")
    # Wrong states are refused with a reason.
    refused = hosts["b"].call("guest", "import", "b1", state, check=False)
    assert refused.returncode == 1 and "is not the guest's" in refused.stderr
    state.write_bytes(state.read_bytes()[:-3])
    refused = hosts["b"].call("guest", "import", "a1", state, check=False)
    assert refused.returncode == 1 and "its end is missing" in refused.stderr


def test_a_vm_whose_verbs_device_is_used_moves_by_choice(lab):
    """`apply` takes the device from the guest, which tells its programs; then the guest moves, and gets one there."""
    for name in ("a", "b"):
        lab.plug(name)
    there = {"a1": vhost("a1", standby=True), "b1": tap("b1")}
    hosts = {"a": lab.host(bridged("a", {"a1": vhost("a1", rdma="a1")})), "b": lab.host(bridged("b", there))}
    vm, b1 = lab.vm(hosts["a"], "a1", memory=MEMORY), lab.container(hosts["b"], "b1")
    watching = lab.verbs(hosts["a"], "a1").start(["stdbuf", "-oL", "ibv_asyncwatch"])
    vm.boot()
    b1.expect_ping(VM.address)
    eventually(lambda: "async" in watching.text(), "a program uses the device")
    refused = hosts["a"].call("guest", "export", "a1", check=False)
    assert refused.returncode == 1 and "use the verbs device" in refused.stderr, refused

    moves = hosts["a"].config.copy()
    moves.entry("guest", "a1").update(standby=True)
    del moves.entry("guest", "a1")["rdma"]
    hosts["a"].apply(moves)
    eventually(lambda: "IBV_EVENT_DEVICE_FATAL" in watching.text(), "the program is told")
    b1.expect_ping(VM.address)
    moved, _ = lab.migrate(vm, hosts["b"])
    assert [is_here(hosts[name]) for name in ("a", "b")] == [False, True]
    b1.expect_ping(VM.address)

    arrived = hosts["b"].config.copy()
    arrived.entry("guest", "a1").update(rdma="a1")
    del arrived.entry("guest", "a1")["standby"]
    hosts["b"].apply(arrived)
    assert moved.reaches(B1.address)
    again = lab.verbs(hosts["b"], "a1").start(["ibv_devinfo"])
    eventually(lambda: "PORT_ACTIVE" in again.text(), "the guest has a device again")
