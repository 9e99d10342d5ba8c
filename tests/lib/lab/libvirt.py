"""libvirtd on machines of their own, and its domains.

A machine has directories, a name and a network of its own (namespaces), so that the real machine's libvirt is not
touched, and two of them can migrate domains to each other.
"""

import os
import pwd
import re
import shlex
import shutil
import uuid
from pathlib import Path

from .host import REPOSITORY, binary
from .netns import Namespace
from .shell import Failed, eventually
from .vm import IMAGES, Vm, accelerator, build_images

PAGE = (REPOSITORY / "docs/libvirt.md").read_text()
BLOCKS = re.findall(r"^```xml\n(.*?)^```$", PAGE, flags=re.M | re.S)
MEMFD, HUGE_PAGES = (block for block in BLOCKS if block.startswith("<memoryBacking"))
CLIENT, SERVER = (block for block in BLOCKS if block.startswith("<interface"))
METADATA = next(block for block in BLOCKS if block.startswith("<metadata"))
HOTPLUG = next(block for block in BLOCKS if block.startswith("<maxMemory"))
PMEM, NVDIMM = (block for block in BLOCKS if block.startswith("<memory model"))
USER = "libvirt-qemu"
MEMORY = 192  # MiB
RUN_DIR = Path("/run/viaduct")


class Machine(Namespace):
    """A namespace with directories and a name of its own."""

    DIRECTORIES = ("/etc/libvirt", "/var/lib/libvirt", "/run/libvirt", "/var/log/libvirt", "/var/cache/libvirt",
                   "/dev/hugepages", "/etc/viaduct", RUN_DIR, "/srv")
    holder = None

    def __init__(self, name, directory):
        super().__init__(name, directory)
        mounts = "".join(f"mkdir -p {path} && mount -t {'hugetlbfs' if 'huge' in str(path) else 'tmpfs'} x {path} && "
                         for path in self.DIRECTORIES)
        script = f"{mounts} hostname {name} && echo here && exec sleep infinity"
        words = ["unshare", "--mount", "--uts", "--propagation", "slave", "sh", "-c", script]
        holder = self.background(words, "machine")
        holder.wait_for("here")
        self.holder = holder

    def words(self, command):
        if not self.holder:
            return super().words(command)
        pid = self.holder.process.pid
        return ["nsenter", f"--target={pid}", "--mount", "--uts", "--net", *command]

    def path(self, path):
        """Returns the path by which a file of its own is seen from here."""
        return Path(f"/proc/{self.holder.process.pid}/root{path}")

    def delete(self):
        self.holder.stop()
        super().delete()


class Libvirt:
    """A libvirtd of its own, on the machine of a host."""

    # A test machine lacks a log daemon, control groups, a device namespace. Nobody changes the owners of files.
    CONFIGURATION = """stdio_handler = "file"
cgroup_controllers = []
namespaces = []
security_driver = "none"
dynamic_ownership = 0
remember_owner = 0
"""
    HOOK = "/etc/libvirt/hooks/qemu.d/viaduct"
    DAEMON = """auth_unix_rw = "none"
listen_tls = 0
listen_tcp = 1
auth_tcp = "none"
"""

    def __init__(self, lab, config):
        self.lab = lab
        lab.directory.chmod(0o711)
        self.machine = lab.namespace(config.name, Machine)
        self.host = lab.host(config, start=False)
        self.host.run_dir = RUN_DIR
        self.host.start()
        self.images = lab.directory / "images"
        build_images()
        self.images.mkdir(exist_ok=True)
        for name in ("vmlinux", "initramfs.cpio"):
            shutil.copy(IMAGES / name, self.images)
        self.write("/etc/libvirt/qemu.conf", self.CONFIGURATION)
        self.write("/etc/libvirt/libvirtd.conf", f'{self.DAEMON}host_uuid = "{uuid.uuid4()}"\n')
        # The programs built here are not in the PATH. The hook's log goes to a file.
        logger = self.write("/srv/bin/logger", "#!/bin/sh\necho \"$@\" >>/srv/log\n")
        hook = self.write(self.HOOK, f"#!/bin/sh\nexport PATH={logger.parent}:{binary('viaduct').parent}:$PATH\n"
                          f'exec {REPOSITORY}/dist/libvirt/qemu "$@"\n')
        self.machine.run(["chmod", "755", logger, hook])
        self.machine.run(["sh", "-c", "chmod 711 /var/lib/libvirt && mkdir /var/log/libvirt/qemu"])
        words = ["libvirtd", "--listen", "--timeout", "0", "--pid-file", "/run/libvirt/libvirtd.pid"]
        self.daemon = self.machine.background(words)
        lab.cleanup.callback(self.daemon.stop)
        eventually(lambda: self.virsh("list", check=False).returncode == 0, "libvirtd")

    def write(self, path, text):
        """Writes a file of the machine."""
        file = self.machine.path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return Path(path)

    def log(self):
        """Returns the lines that the hook has logged."""
        log = self.machine.path("/srv/log")
        return log.read_text() if log.exists() else ""

    def peer(self):
        """Returns the command that is this host's `viaduct` to others: in place of ssh."""
        return shlex.join(map(str, self.machine.words([binary("viaduct")])))

    def hook(self, domain, operation, xml):
        """Calls the hook as libvirt would."""
        return self.machine.run([self.HOOK, domain, operation, "begin", "-"], stdin=xml, check=False)

    def virsh(self, *words, **options):
        try:
            return self.machine.run(["virsh", "-c", "qemu:///system", *words], timeout=600, **options)
        except Failed as failed:
            raise Failed(f"{failed}\n{self.daemon.describe(10)}") from None

    def guest_names(self):
        return {row["name"] for row in self.host.viaduct("guest")}


class Domain(Vm):
    """A domain in place of a QEMU of ours."""

    def __init__(self, libvirt, seat, interface, memory, metadata="", devices="", odd=False, numa=""):
        self.name, self.console = seat.name, None
        self.at(libvirt)
        interface = re.sub(r"(path='[^']*/)[^'/]*'", rf"\g<1>{seat.name}.sock'", interface)
        interface = re.sub(r"02:00:00:00:00:0\d", seat.mac, interface)
        kvm = accelerator() == "kvm"
        arguments = f"console=ttyS0 quiet panic=-1 mitigations=off no_timer_check vm.name={self.name}"
        self.xml = libvirt.lab.directory / f"{seat.name}.xml"
        self.xml.write_text(f"""
<domain type='{"kvm" if kvm else "qemu"}' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>{self.name}</name>
  {metadata}
  <memory unit='MiB'>{MEMORY}</memory>
  {memory}
  <cpu mode='{"host-passthrough" if kvm else "maximum"}'>{numa}</cpu>
  <os><type arch='x86_64' machine='q35'>hvm</type><kernel>{libvirt.images}/vmlinux</kernel>
    <initrd>{libvirt.images}/initramfs.cpio</initrd><cmdline>{arguments}</cmdline></os>
  <devices>
    {interface}
    {devices}
    <controller type='usb' model='none'/><memballoon model='none'/>
    <serial type='unix'><source mode='bind' path='/srv/{self.name}/serial'/>
      <log file='/srv/{self.name}/serial.log'/></serial>
  </devices>
  {"" if kvm else self.WITHOUT_KVM}
  {self.ODD if odd and not kvm else ""}
</domain>""")
        self.qemu = self
        self.entry = {"addresses": [seat.address]}
        self.network = {"gateways": ["10.1.1.254/24"]}

    # QEMU 7.2 crashes with MSI-X, vhost-user and no KVM.
    WITHOUT_KVM = """<qemu:override><qemu:device alias='net0'><qemu:frontend><qemu:property
      name='vectors' type='unsigned' value='0'/></qemu:frontend></qemu:device></qemu:override>"""

    # Memory for migrations by QEMU 7.2: see test_save.py. libvirt would round it.
    ODD = "<qemu:commandline>" + "".join(f"<qemu:arg value='{word}'/>" for word in (
        "-object", f"memory-backend-memfd,id=odd,size={MEMORY * 1024 + 8}K,share=on",
        "-machine", "memory-backend=odd", "-m", f"{MEMORY * 1024 + 8}K")) + "</qemu:commandline>"

    def at(self, libvirt):
        """Takes note that the domain is there from now on, or comes there next."""
        self.libvirt = libvirt
        self.directory = libvirt.machine.path(f"/srv/{self.name}")
        self.directory.mkdir(exist_ok=True)
        user = pwd.getpwnam(USER)
        os.chown(self.directory, user.pw_uid, user.pw_gid)
        if self.console:
            self.console.close()
            self.console = None

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


def metadata(seat, **attributes):
    """Returns the metadata of the page, for another seat."""
    text = METADATA.replace("02:00:00:00:00:01", seat.mac).replace("10.1.1.1'", f"{seat.address}'")
    more = "".join(f" {key}='{value}'" for key, value in attributes.items())
    return text.replace("network='blue'", f"network='blue'{more}")


def window(block, name, megabytes):
    """Returns the page's device of a window, with the rest that a small domain needs for it: memory, NUMA cells,
    devices."""
    maximum, numa = re.fullmatch(r"(<maxMemory.*</maxMemory>)\n<cpu.*?>\n(.*)</cpu>\n", HOTPLUG, flags=re.S).groups()
    numa = numa.replace("cpus='0-3' memory='4' unit='GiB'", f"cpus='0' memory='{MEMORY}' unit='MiB'")
    devices = block.replace("/vm/vm1", f"/vm/{name}").replace(">1024<", f">{megabytes}<")
    memory = f"{MEMFD}{maximum}<features><acpi/></features>"
    return {"memory": memory, "numa": numa, "devices": devices}
