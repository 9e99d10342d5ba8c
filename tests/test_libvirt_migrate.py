"""Domains that move: `virsh migrate`, `save`, `restore`, `managedsave`, snapshots. Connections that were opened from
outside go on, though rules let in no packet of them that does not belong to a connection.

Two libvirtds are on machines of their own, with a Viaduct each, and a network between them as operators have for such.
"""

import re
import shlex
import signal

import pytest

from lab import Lines, binary, eventually
from lab.host import REPOSITORY
from lab.libvirt import CLIENT, MEMFD, USER, Domain, Libvirt, Machine, metadata
from lab.marks import machines
from lab.topology import NETWORKS, SEATS, UNDERLAY, host_config, tap, verbs

pytestmark = machines

VM, PEER = SEATS["a1"], SEATS["a2"]
PEERS = "/etc/viaduct/peers"
# A command in place of ssh to a host that is not there.
DEAD = "sh -c 'echo no route to host >&2; exit 255' dead"
MANAGEMENT = {"a": "198.51.100.1", "b": "198.51.100.2"}


def guarded(name, guests):
    """Configures a host that floods to the others. Where the VM may be, lines and echoes alone may come to it, and no
    connection is picked up in mid-stream."""
    config = host_config(name, guests)
    others = [UNDERLAY[other] for other in "abc" if other != name]
    tunnels = [{"tunnel": "vxlan", "remote": remote, "vni": NETWORKS["blue"]["vni"]} for remote in others]
    config.add("flood", network="blue", to=tunnels)
    if name != "c":
        if not guests:
            config.add("network", name="blue", **NETWORKS["blue"])
        config.entry("network", "blue")["tcp_midstream"] = False
        to = {"cidr": f"{VM.address}/32"}
        config.rule("blue", 100, "allow", to=to, protocol="tcp", ports="7000")
        config.rule("blue", 110, "allow", to=to, protocol="icmp")
        config.add("default", network="blue", action="drop")
    return config


@pytest.fixture
def libvirts(lab):
    """Starts a libvirt on each of hosts a and b. Each is to ask the other for connections, and host a one that is not
    there."""
    libvirts = {}
    for name, address in MANAGEMENT.items():
        lab.namespace(name, Machine)
        lab.plug(name)
        lab.plug(name, "mgmt0", fabric="management").ip(f"addr add {address}/24 dev mgmt0")
        libvirts[name] = Libvirt(lab, guarded(name, {}))
    libvirts["a"].write(PEERS, f"# The other hosts.\n{libvirts['b'].peer()}\n{DEAD}\n")
    libvirts["b"].write(PEERS, libvirts["a"].peer())
    return libvirts


def peer_of(lab):
    """Returns the container that the VM has connections with, on host c."""
    lab.plug("c")
    return lab.container(lab.host(guarded("c", {"a2": tap("a2")})), "a2")


def migrate(domain, there):
    here, address = domain.libvirt, MANAGEMENT[there.host.name]
    domain.at(there)
    here.virsh("migrate", "--live", "--persistent", "--undefinesource", domain.name, f"qemu+tcp://{address}/system",
               "--migrateuri", f"tcp://{address}")


def imported(libvirt):
    """Counts the connections that each import brought."""
    return [int(count) for count in re.findall(r"imported.* connections=(\d+)", libvirt.host.daemon.text())]


def connection(libvirt):
    """Returns the VM's connection, as the host has it."""
    [found] = libvirt.host.viaduct("flow", "--match", "tcp & port 7000")
    return found


@pytest.mark.nightly
def test_a_domain_migrates_there_and_back(lab, libvirts):
    peer, a, b = peer_of(lab), libvirts["a"], libvirts["b"]
    domain = Domain(a, VM, CLIENT, MEMFD, metadata(VM), odd=True).define().start()
    domain.boot()
    assert peer.reaches(VM.address)
    lines = Lines(peer, domain, VM.address)
    first = connection(a)
    echoes = peer.background(["ping", "-n", "-i", "0.02", VM.address], "echoes")
    for here, there in ((a, b), (b, a)):
        migrate(domain, there)
        assert [libvirt.guest_names() for libvirt in (here, there)] == [set(), {"a1"}]
        lines.more()
        now = connection(there)
        assert now["source"] == first["source"] and now["packets"] > first["packets"]
        assert imported(there)[-1] > 0
    echoes.stop(signal.SIGINT)
    print(echoes.text().splitlines()[-2])
    numbers = [int(number) for number in re.findall(r"icmp_seq=(\d+) ttl", echoes.text())]
    assert "DUP!" not in echoes.text() and len(numbers) == len(set(numbers))
    # A host that is not there holds nobody up, and the log tells of it.
    assert not b.log() and "can't come from" in a.log() and "no route to host" in a.log()

    # Where no connections come, the VM moves all the same.
    b.write(PEERS, DEAD)
    b.host.call("flow", "flush")
    migrate(domain, b)
    assert peer.reaches(VM.address)
    assert "connections of guest a1 stay behind" in b.log()
    eventually(lambda: b.host.drops().get("tcp_midstream"), "host b does not know the connection")


@pytest.mark.nightly
def test_a_saved_domain_goes_on(lab, libvirts):
    peer, a = peer_of(lab), libvirts["a"]
    disk = lab.directory / "disk.qcow2"
    a.machine.run(["qemu-img", "create", "-q", "-f", "qcow2", disk, "1G"])
    a.machine.run(["chown", USER, disk])
    devices = f"""<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='{disk}'/>
      <target dev='sda' bus='sata'/></disk>"""
    domain = Domain(a, VM, CLIENT, MEMFD, metadata(VM), devices).define().start()
    domain.boot()
    assert peer.reaches(VM.address)
    lines = Lines(peer, domain, VM.address)
    file = lab.directory / "a1.save"
    for save, restore in ((("save", "a1", file), ("restore", file)), (("managedsave", "a1"), ("start", "a1"))):
        a.virsh(*save)
        assert a.guest_names() == set()
        a.virsh(*restore)
        domain.at(a)
        lines.more()
    assert not a.host.drops().get("tcp_midstream") and not a.log()

    # Saved connections are gone after an ordinary end and start: they are of another life.
    lines.sender.stop()
    domain.shell("echo before > /tmp/when")
    a.virsh("snapshot-create-as", "a1", "before")
    domain.shell("echo after > /tmp/when")
    assert peer.reaches(VM.address)
    a.virsh("snapshot-revert", "a1", "before")
    domain.at(a)
    assert domain.shell("cat /tmp/when").stdout == "before\n"
    assert peer.reaches(VM.address)


INTERFACE = CLIENT.replace("02:00:00:00:00:01", VM.mac)
XML = f"<domain><name>a1</name>{metadata(VM)}<devices>{INTERFACE}</devices></domain>"


def test_a_domain_whose_guest_can_not_move_is_refused(lab, libvirts):
    """The hook refuses a domain while programs use the guest's verbs device on the host where it is."""
    host, b = lab.host(host_config("c", {"a1": verbs()}, wire=False)), libvirts["b"]
    device = lab.verbs(host, "a1")
    words = host.namespace.words([binary("viaduct"), "--run-dir", host.run_dir])
    b.write(PEERS, f"{DEAD}\n{shlex.join(map(str, words))}\n")
    device.start(["ibv_rc_pingpong"])
    eventually(lambda: device.shown()["clients"], "a program uses the device")
    refused = b.hook("a1", "migrate", XML)
    assert refused.returncode == 1 and "guest a1 is to stay where it is: viaduct: 1 programs use" in refused.stderr


def test_a_host_that_does_not_answer_holds_nobody_up(libvirts):
    """The hook goes on without hosts that say nothing, or too little. The migration fails before a guest is added."""
    b = libvirts["b"]
    title = "echo viaduct guest state"
    b.write(PEERS, f"sh -c 'exec sleep 1000' slow\nno-such-program\n"
                   f"sh -c '{title}; exit 7' broken\nsh -c '{title}; exec sleep 1000' waits\n")
    hook = (REPOSITORY / "dist/libvirt/qemu").read_text().replace("TIMEOUT = 10 ", "TIMEOUT = 5 ")
    words = ["python3", "-c", hook, "a1", "migrate", "begin", "-"]
    b.machine.run(["env", "PATH=/srv/bin:/usr/bin:/bin", *words], stdin=XML)
    assert "slow: no answer within 5 s" in b.log() and "can't come from no-such-program: " in b.log()
    for said in ("broken: exit status 7", "waits: exit status -9"):
        eventually(lambda said=said: said in b.log(), "the hook tells of it")
