"""The packaged unit under a systemd that boots: started, reloaded, upgraded, crashed and removed, while a container
pings its gateway; and the unit of an installation by NFS."""

import re
import signal

import pytest
from test_packages import Chroot, next_version, package  # noqa: F401  a fixture

from lab.host import REPOSITORY
from lab.shell import Background, eventually, run

pytestmark = pytest.mark.timeout(600)
PROGRAM = "/usr/bin/viaductd"
GATEWAY = "10.1.1.254"


class Machine:
    """A system with its own processes, network and systemd."""

    def __init__(self, lab, root):
        # systemd-nspawn mounts its own.
        for directory in ("dev", "proc", "sys", "run"):
            run(["umount", "--lazy", root / directory], check=False)
        words = ["systemd-nspawn", "-D", root, "--register=no", "--keep-unit", "--private-network"]
        self.nspawn = Background([*words, "--bind=/dev/net/tun", "--boot"], lab.directory / "boot.log")
        lab.cleanup.callback(self.nspawn.stop, signal.SIGKILL)
        children = ["pgrep", "-P", self.nspawn.process.pid]
        self.leader = eventually(lambda: run(children, check=False).stdout.strip(), "systemd starts")
        up = lambda: self.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded")
        eventually(up, "systemd is up", 60)
        lab.cleanup.callback(self.off)

    def words(self, *command):
        return ["nsenter", "-t", self.leader, "-a", *command]

    def run(self, *command, check=True):
        return run(self.words("env", "DEBIAN_FRONTEND=noninteractive", *command), check=check, timeout=240)

    def unit(self, name):
        return self.run("systemctl", "show", "--value", "-p", name, "viaductd").stdout.strip()

    def pid(self):
        return self.unit("MainPID")

    def log(self):
        return self.run("journalctl", "--no-pager", "-u", "viaductd").stdout

    def off(self):
        run(["kill", "-s", "RTMIN+4", self.leader], check=False)
        eventually(lambda: not self.nspawn.running(), "the machine is off", 60)


def another_program(machine):
    """Installs the same program anew, as an upgrade does."""
    machine.run("cp", PROGRAM, f"{PROGRAM}.new")
    machine.run("mv", f"{PROGRAM}.new", PROGRAM)


@pytest.fixture
def machine(lab, package):  # noqa: F811
    chroot = Chroot(lab, "bookworm-systemd")
    chroot.install(package)
    machine = Machine(lab, chroot.root)
    assert machine.unit("ActiveState") == "active", machine.log()
    return machine


@pytest.fixture
def pings(lab, machine):
    """Has a container ping its gateway a hundred times a second; the result, called, says how many pings have no
    answer."""
    machine.run("viaduct", "guest", "add", "c1", "--network", "blue", "--kind", "tap", "--device", "c1")
    for command in ("netns add c1", "link set c1 netns c1", "-n c1 addr add 10.1.1.77/24 dev c1",
                    "-n c1 link set c1 up"):
        machine.run("ip", *command.split())
    words = ["ip", "netns", "exec", "c1", "ping", "-i", "0.01", GATEWAY]
    ping = Background(machine.words(*words), lab.directory / "ping.log")
    lab.cleanup.callback(ping.stop, signal.SIGKILL)
    ping.wait_for("icmp_seq=20 ")

    def lost():
        last = ping.text().count("bytes from")
        eventually(lambda: ping.text().count("bytes from") > last + 20, "pings go on")
        lines = [line for line in ping.text().splitlines() if "icmp_seq=" in line and "bytes from" in line]
        last = int(lines[-1].split("icmp_seq=")[1].split()[0])
        return last - len(lines)

    return lost


def test_reload_takes_the_file_and_another_program_takes_over(lab, machine, pings):
    assert "user viaduct, no capabilities" in machine.run("viaduct", "status").stdout
    first = machine.pid()
    machine.run("systemctl", "reload", "viaductd")
    assert machine.pid() == first
    for _ in range(2):
        before = machine.pid()
        another_program(machine)
        machine.run("systemctl", "reload", "viaductd")
        assert machine.pid() != before
        assert "user viaduct, no capabilities" in machine.run("viaduct", "status").stdout
    assert pings() == 0
    # One that cannot: the running one goes on, and the reload fails.
    before = machine.pid()
    machine.run("cp", "/etc/viaduct/host.toml", "/tmp/kept")
    machine.run("sh", "-c", "echo nonsense >> /etc/viaduct/host.toml")
    another_program(machine)
    assert machine.run("systemctl", "reload", "viaductd", check=False).returncode != 0
    assert machine.pid() == before and machine.unit("ActiveState") == "active" and pings() == 0
    machine.run("cp", "/tmp/kept", "/etc/viaduct/host.toml")

    # One that took over is watched like one that was started.
    machine.run("kill", "-KILL", before)
    eventually(lambda: machine.pid() not in ("0", before) and machine.unit("ActiveState") == "active", "a restart", 20)
    assert machine.unit("NRestarts") == "1", machine.log()
    pings()
    assert "c1" in machine.run("ip", "-n", "c1", "link").stdout


def test_what_fails_is_tried_again_at_a_pace_and_a_wrong_file_is_not(machine):
    def crash(times):
        machine.run("kill", "-KILL", machine.pid())
        if times > 1:
            # Within ten seconds of its start.
            eventually(lambda: machine.unit("SubState") == "stop-post", "a pause")
        restarted = lambda: (machine.unit("NRestarts"), machine.unit("ActiveState")) == (str(times), "active")
        eventually(restarted, "a restart", 20)

    crash(1)
    crash(2)
    machine.run("sh", "-c", "echo nonsense >> /etc/viaduct/host.toml")
    assert machine.run("systemctl", "restart", "viaductd", check=False).returncode != 0
    assert (machine.unit("ActiveState"), machine.unit("NRestarts")) == ("failed", "0"), machine.log()


def test_an_upgrade_of_the_package_loses_nothing(lab, machine, pings, package):  # noqa: F811
    before = machine.pid()
    later = next_version(package, lab.directory)
    run(["cp", later, f"/proc/{machine.leader}/root/var/tmp/later.deb"])
    machine.run("dpkg", "--install", "--force-confold", "/var/tmp/later.deb")
    assert machine.pid() != before and machine.unit("NRestarts") == "0", machine.log()
    assert "has taken over" in machine.log() and pings() == 0
    machine.run("dpkg", "--remove", "viaduct")
    assert machine.run("pgrep", "-f", "viaductd", check=False).stdout == ""


# Instead of a server: what it exports is here. What systemd knows of the mounts is what it reads in fstab.
MOUNT_NFS = """#!/bin/sh
exec mount --bind -o ro "${1#SERVER:}" "$2"
"""


def test_one_installation_for_many_nodes(lab):
    """The commands of docs/install.md, word for word but for `make` and `exportfs`; the node boots again, and goes over
    to the next version."""
    page = (REPOSITORY / "docs/install.md").read_text()
    section = re.search(r"^## One installation for many nodes\n(.*?)^## ", page, flags=re.M | re.S)[1]
    blocks = ["\n".join(re.findall("^    (.*)$", block, flags=re.M)) for block in re.split(r"\n\n(?! )", section)]
    of_server, of_node = [block for block in blocks if block]
    chroot = Chroot(lab, "bookworm-systemd")
    (chroot.root / "etc/hostname").write_text("node1\n")
    (chroot.root / "sbin/mount.nfs").write_text(MOUNT_NFS)
    (chroot.root / "sbin/mount.nfs").chmod(0o755)

    def serve(prefix):
        run(["env", f"PREFIX={prefix}", f"DESTDIR={chroot.root}/export", REPOSITORY / "dist/install"])

    installs, *files, exports = of_server.splitlines()
    assert installs == "PREFIX=/opt/viaduct-0.1 DESTDIR=/export make install" and "exportfs" in exports
    serve("/opt/viaduct-0.1")
    chroot.run("sh", "-e", "-c", "\n".join(files))
    machine = Machine(lab, chroot.root)
    machine.run("bash", "-e", "-c", of_node)
    ready = lambda: "user viaduct, no capabilities" in machine.run(
        "/opt/viaduct-0.1/bin/viaduct", "status", check=False).stdout
    eventually(ready, "the daemon", 20)

    # Something of the machine waits for the network, as there is no such program here.
    machine.run("systemctl", "add-wants", "multi-user.target", "network.target", "network-online.target")
    machine.off()
    machine = Machine(lab, chroot.root)
    assert "ordering cycle" not in machine.nspawn.text()
    assert machine.unit("ActiveState") == "active", machine.log()

    serve("/opt/viaduct-0.2")
    before = machine.pid()
    steps = re.sub("^.*(/etc/viaduct nfs|sysusers.d/viaduct.conf|enable).*$", "", of_node, flags=re.M)
    steps = steps.replace(" && mount /etc/viaduct", "").replace("viaduct-0.1", "viaduct-0.2")
    machine.run("bash", "-e", "-c", f"{steps}\nsystemctl daemon-reload && systemctl reload viaductd")
    assert machine.pid() not in ("0", before) and machine.unit("NRestarts") == "0", machine.log()
    program = machine.run("readlink", f"/proc/{machine.pid()}/exe").stdout.strip()
    assert program == "/opt/viaduct-0.2/bin/viaductd"
