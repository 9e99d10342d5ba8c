"""Domains of a real libvirtd: the XML of docs/libvirt.md, and guests that the hook adds and removes.

libvirtd has directories of its own here (a mount namespace), so that the machine's libvirt is not touched.
"""

import os
import pwd
import re
import shutil
import subprocess

import pytest

from lab import Failed, eventually
from lab.host import REPOSITORY, binary
from lab.shell import Background, run
from lab.topology import SEATS, host_config, tap
from lab.vm import IMAGES, Vm, accelerator, build_images

pytestmark = [pytest.mark.alone, pytest.mark.timeout(400)]

PAGE = (REPOSITORY / "docs/libvirt.md").read_text()
BLOCKS = re.findall(r"^```xml\n(.*?)^```$", PAGE, flags=re.M | re.S)
MEMFD, HUGE_PAGES = (block for block in BLOCKS if block.startswith("<memoryBacking"))
CLIENT, SERVER = (block for block in BLOCKS if block.startswith("<interface"))
METADATA = next(block for block in BLOCKS if block.startswith("<metadata"))
USER = "libvirt-qemu"
A1, A2 = SEATS["a1"], SEATS["a2"]
MEMORY = 192


class Libvirt:
    """A libvirtd of its own, in the mount namespace of a shell that stays."""

    DIRECTORIES = ("/etc/libvirt", "/var/lib/libvirt", "/run/libvirt", "/var/log/libvirt", "/var/cache/libvirt",
                   "/dev/hugepages")
    # What a test machine lacks: a log daemon, control groups, a device namespace. Nobody changes the owners of files.
    CONFIGURATION = """stdio_handler = "file"
cgroup_controllers = []
namespaces = []
security_driver = "none"
dynamic_ownership = 0
remember_owner = 0
"""

    def __init__(self, lab, host):
        self.lab, self.host = lab, host
        self.etc = lab.directory / "etc"
        (self.etc / "hooks/qemu.d").mkdir(parents=True)
        (self.etc / "qemu.conf").write_text(self.CONFIGURATION)
        (self.etc / "libvirtd.conf").write_text('auth_unix_rw = "none"\n')
        # As docs/libvirt.md says for another run-dir.
        hook = self.etc / "hooks/qemu.d/viaduct"
        hook.write_text(f"#!/bin/sh\nexport PATH={binary('viaduct').parent}:$PATH VIADUCT_RUN_DIR={host.run_dir}\n"
                        f'exec {REPOSITORY}/dist/libvirt/qemu "$@"\n')
        hook.chmod(0o755)
        self.images = lab.directory / "images"
        self.images.mkdir()
        build_images()
        for name in ("vmlinux", "initramfs.cpio"):
            shutil.copy(IMAGES / name, self.images)
        mounts = "".join(f"mkdir -p {path}; mount -t {'hugetlbfs' if 'huge' in path else 'tmpfs'} x {path}; "
                         for path in self.DIRECTORIES)
        script = (f"{mounts} cp -r {self.etc}/. /etc/libvirt/ && chmod 711 /var/lib/libvirt && "
                  "mkdir /var/log/libvirt/qemu && exec libvirtd --timeout 0 --pid-file /run/libvirt/libvirtd.pid")
        self.daemon = None
        self.command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]

    def start(self):
        self.daemon = Background(self.command, self.lab.directory / "libvirtd.log")
        self.lab.cleanup.callback(self.daemon.stop)
        eventually(lambda: self.virsh("list", check=False).returncode == 0, "libvirtd", 60)
        return self

    def enter(self, *words):
        return ["nsenter", f"--target={self.daemon.process.pid}", "--mount", *words]

    def virsh(self, *words, **options):
        try:
            return run(self.enter("virsh", "-c", "qemu:///system", *words), timeout=90, **options)
        except Failed as failed:
            raise Failed(f"{failed}\n{self.daemon.describe(10)}") from None


class Domain(Vm):
    """A domain in place of a QEMU of ours."""

    def __init__(self, libvirt, seat, interface, memory, metadata=""):
        self.libvirt, self.name, self.console = libvirt, seat.name, None
        self.directory = libvirt.lab.directory / f"domain-{seat.name}"
        self.directory.mkdir()
        user = pwd.getpwnam(USER)
        os.chown(self.directory, user.pw_uid, user.pw_gid)
        interface = re.sub(r"path='[^']*/([^'/]*)'", self.path, interface)
        interface = re.sub(r"02:00:00:00:00:0\d", seat.mac, interface)
        kvm = accelerator() == "kvm"
        # QEMU 7.2 crashes with MSI-X, vhost-user and no KVM.
        override = "" if kvm else ("<qemu:override><qemu:device alias='net0'><qemu:frontend><qemu:property "
                                   "name='vectors' type='unsigned' value='0'/></qemu:frontend></qemu:device>"
                                   "</qemu:override>")
        arguments = f"console=ttyS0 quiet panic=-1 mitigations=off no_timer_check vm.name={self.name}"
        self.xml = self.directory / "domain.xml"
        self.xml.write_text(f"""
<domain type='{"kvm" if kvm else "qemu"}' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>{self.name}</name>
  {metadata}
  <memory unit='MiB'>{MEMORY}</memory>
  {memory}
  <cpu mode='{"host-passthrough" if kvm else "maximum"}'/>
  <os><type arch='x86_64' machine='q35'>hvm</type><kernel>{libvirt.images}/vmlinux</kernel>
    <initrd>{libvirt.images}/initramfs.cpio</initrd><cmdline>{arguments}</cmdline></os>
  <devices>
    {interface}
    <controller type='usb' model='none'/><memballoon model='none'/>
    <serial type='unix'><source mode='bind' path='{self.directory}/serial'/>
      <log file='{self.directory}/serial.log'/></serial>
  </devices>
  {override}
</domain>""")
        self.qemu = self
        self.entry = {"addresses": [seat.address]}
        self.network = {"gateways": ["10.1.1.254/24"]}

    def path(self, found):
        """The socket's place in this test: the run-dir, or where QEMU may make sockets."""
        directory = self.libvirt.host.run_dir if "viaduct/" in found[0] else self.directory
        return f"path='{directory}/{found[1]}'"

    def define(self):
        self.libvirt.virsh("define", self.xml)
        return self

    def start(self):
        self.libvirt.virsh("start", self.name)
        return self

    def running(self):
        return "running" in self.libvirt.virsh("domstate", self.name, check=False).stdout

    def describe(self):
        return self.libvirt.virsh("domstate", self.name, check=False).stdout


def guest_names(host):
    return {row["name"] for row in host.viaduct("guest")}


@pytest.fixture
def libvirt(lab):
    config = host_config("a", {"b1": tap("b1")}, wire=False)
    lab.directory.chmod(0o711)
    host = lab.host(config)
    host.run_dir.chmod(0o755)
    lab.container(host, "b1")
    return Libvirt(lab, host).start()


def metadata(seat, **attributes):
    """That of the page, for another seat."""
    text = METADATA.replace("02:00:00:00:00:01", seat.mac).replace("10.1.1.1'", f"{seat.address}'")
    more = "".join(f" {key}='{value}'" for key, value in attributes.items())
    return text.replace("network='blue'", f"network='blue'{more}")


@pytest.fixture
def huge_pages():
    """Enough for a domain, while the test runs."""
    count = "/proc/sys/vm/nr_hugepages"
    with open(count, encoding="ascii") as file:
        before = file.read()
    run(["sh", "-c", f"echo {int(before) + MEMORY // 2} > {count}"])
    yield
    run(["sh", "-c", f"echo {before.strip()} > {count}"])


def test_domains_come_and_go_with_their_guests(libvirt, lab, huge_pages):
    """Both modes, memfd and huge pages, several queues, a restart of the daemon."""
    host, container = libvirt.host, lab.namespace("b1")
    client = Domain(libvirt, A1, CLIENT, MEMFD, metadata(A1)).define().start()
    server = Domain(libvirt, A2, SERVER, HUGE_PAGES, metadata(A2, label="777")).define().start()
    assert {"a1", "a2", "b1"} == guest_names(host)
    shown = host.viaduct("guest", "show", "a2")
    assert shown["label"] == 777 and shown["queues"] == 2, shown
    for domain in (client, server):
        domain.boot(150)
        domain.expect_ping(SEATS["b1"].address)
    client.expect_ping(A2.address)

    host.stop()
    host.start()
    eventually(lambda: client.reaches(A2.address, 1), "the VMs' way after a restart of the daemon", 30)

    libvirt.virsh("destroy", "a1")
    eventually(lambda: guest_names(host) == {"a2", "b1"}, "the guest's end")
    libvirt.virsh("destroy", "a2")
    eventually(lambda: guest_names(host) == {"b1"}, "the guest's end")
    libvirt.virsh("undefine", "a1")
    libvirt.virsh("undefine", "a2")
    assert container.run(["ip", "link"], check=False).returncode == 0


@pytest.mark.parametrize("wrong, said", [
    (metadata(A1).replace("network='blue'", ""), "a guest needs the attribute network"),
    (metadata(A1).replace("network='blue'", "network='pink'"), 'there is no network "pink"'),
    (metadata(A1, colour="red"), "unknown attribute colour"),
    (metadata(A2), f"no <interface type='vhostuser'> of MAC {A2.mac}"),
    (metadata(A1).replace(A1.address, "10.1.1.999"), "10.1.1.999"),
])
def test_malformed_metadata(libvirt_once, wrong, said):
    libvirt = libvirt_once
    domain = Domain(libvirt, A1, CLIENT, MEMFD, wrong)
    done = libvirt.virsh("create", domain.xml, check=False)
    shutil.rmtree(domain.directory)
    assert done.returncode != 0 and said in done.stderr, done.stderr
    assert guest_names(libvirt.host) == {"b1"}


@pytest.fixture(scope="module")
def libvirt_once(shared_lab):
    shared_lab.directory.chmod(0o711)
    host = shared_lab.host(host_config("a", {"b1": tap("b1")}, wire=False))
    return Libvirt(shared_lab, host).start()


def test_without_a_daemon_a_domain_says_why_it_does_not_start(libvirt):
    libvirt.host.stop()
    domain = Domain(libvirt, A1, CLIENT, MEMFD, metadata(A1)).define()
    done = libvirt.virsh("start", "a1", check=False)
    assert done.returncode != 0 and "guest a1 can't be added: viaduct: no daemon at" in done.stderr, done.stderr
    assert not domain.running()


def test_a_daemon_that_does_not_answer_holds_nobody_up(lab):
    """The hook alone, with a program in place of viaduct that never ends."""
    slow = lab.directory / "viaduct"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o755)
    xml = f"<domain><name>a1</name>{METADATA}<devices>{CLIENT}</devices></domain>"
    hook = (REPOSITORY / "dist/libvirt/qemu").read_text().replace("TIMEOUT = 10 ", "TIMEOUT = 0.2 ")
    done = subprocess.run(["python3", "-c", hook, "a1", "prepare", "begin", "-"], input=xml, text=True, timeout=60,
                          capture_output=True, env={**os.environ, "PATH": f"{lab.directory}:{os.environ['PATH']}"})
    assert done.returncode == 1 and "does not answer within 0.2 s" in done.stderr, done.stderr
    # A domain that is not ours is left alone.
    foreign = subprocess.run([REPOSITORY / "dist/libvirt/qemu", "x", "prepare", "begin", "-"], text=True, timeout=60,
                             input="<domain><name>x</name></domain>", capture_output=True)
    assert foreign.returncode == 0 and not foreign.stderr


def test_a_domain_does_not_take_the_guest_of_another(lab):
    """The hook alone, with domains whose guests have the same name, and one that is named like an option."""
    host = lab.host(host_config("a", {"b1": tap("b1")}, wire=False))
    environment = {**os.environ, "PATH": f"{binary('viaduct').parent}:{os.environ['PATH']}",
                   "VIADUCT_RUN_DIR": str(host.run_dir)}

    def hook(operation, seat, **attributes):
        interface = CLIENT.replace("02:00:00:00:00:01", seat.mac).replace("/run/viaduct", str(host.run_dir))
        xml = f"<domain><name>x</name>{metadata(seat, **attributes)}<devices>{interface}</devices></domain>"
        return subprocess.run([REPOSITORY / "dist/libvirt/qemu", "x", operation, "begin", "-"], input=xml, text=True,
                              timeout=60, env=environment, capture_output=True)

    assert hook("prepare", A1).returncode == 0
    refused = hook("prepare", A2)
    assert refused.returncode == 1 and f"there is one with MAC {A1.mac}" in refused.stderr, refused
    hook("release", A2)
    assert host.viaduct("guest", "show", "x")["mac"] == A1.mac
    refused = hook("prepare", A2, name="--help")
    assert refused.returncode == 1 and "can't be a name" in refused.stderr, refused
    assert hook("prepare", A1).returncode == 0, "one of its own that is left is replaced"
    assert not hook("release", A1).stderr
    assert guest_names(host) == {"b1"}
