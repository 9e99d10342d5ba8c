"""Virtual machines: QEMU with a vhost-user network device, and a shell over the serial line."""

import fcntl
import functools
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from .guest import Guest, address_words
from .host import REPOSITORY
from .shell import PATIENCE, Background, Failed, eventually, run

IMAGES = REPOSITORY / ".cache" / "vm"
# Images with a kernel that has Soft-RoCE, and verbs programs; VIADUCT_VM_KERNEL names the meta package of another one.
KERNEL = os.environ.get("VIADUCT_VM_KERNEL")
RDMA_IMAGES = REPOSITORY / ".cache" / (f"vm-rdma-{KERNEL}" if KERNEL else "vm-rdma")
# Images with FRR and the VRFs, VXLAN and MPLS of Debian's kernel.
FRR_IMAGES = REPOSITORY / ".cache" / "vm-frr"
READY = "guest ready"
# Seconds for that: some machines boot at a time, translated, on few CPUs.
BOOT = 600
# VIADUCT_QEMU names another one than the installed one.
QEMU = os.environ.get("VIADUCT_QEMU", "qemu-system-x86_64")
# The QEMU that scripts/qemu-backports leaves there.
NEWEST_QEMU = REPOSITORY / ".cache/qemu-backports/qemu-system-x86_64"


@functools.cache
def build_images(images=IMAGES):
    """Builds kernel and initramfs unless they are there."""
    flavours = {RDMA_IMAGES: ["--rdma", *(["--kernel", KERNEL] if KERNEL else [])], FRR_IMAGES: ["--frr"]}
    # One at a time, of the tests that run beside each other.
    with open(images.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run([REPOSITORY / "tests/vm/build", *flavours.get(images, []), images], timeout=600)


def qemu_words(name, accelerator, memory="192M", images=IMAGES, qemu=QEMU):
    """Returns the part of the QEMU command line that every guest has. `memory` is as QEMU has it."""
    # no_timer_check: a busy host is late with the timer's first tick, and the kernel would give up for that.
    # maxcpus: QEMU's translator executes atomic instructions and barriers of a machine that never has a second CPU as
    # plain ones. Other machines and Viaduct, which share its memory, would see them torn.
    kernel = f"console=ttyS0 quiet panic=-1 mitigations=off no_timer_check vm.name={name}"
    return (
        [str(qemu), "-name", name, "-accel", accelerator]
        + ["-cpu", "host" if accelerator == "kvm" else "max", "-m", memory, "-M", "q35", "-smp", "1,maxcpus=2"]
        + ["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]
        + ["-kernel", str(images / "vmlinux"), "-initrd", str(images / "initramfs.cpio")]
        + ["-append", kernel]
    )


@functools.cache
def accelerator():
    """Returns "kvm" if a guest really starts with it, else QEMU's translator. /dev/kvm alone promises little: in a
    nested machine it may be there and not work. The answer is kept until the machine boots again."""
    software = "tcg,thread=multi"
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return software
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    kept = IMAGES / f"accelerator-{boot}"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as scratch:
            log = Path(scratch) / "probe.log"
            probe = Background([*qemu_words("probe", "kvm"), "-serial", "stdio"], log)
            try:
                probe.wait_for(READY, timeout=20)
                kept.write_text("kvm")
            except Failed:
                kept.write_text(software)
            finally:
                probe.stop()
    return kept.read_text()


@functools.cache
def version(qemu):
    """Returns the first number of its version."""
    return int(re.search(r"version (\d+)", run([qemu, "--version"]).stdout)[1])


class Vm(Guest):
    """A Linux guest of kind "vhost". `seat`: its MAC and addresses, where the configuration has none, the latter with
    lengths of prefixes."""

    # The rest of QEMU's -m after the size.
    slots = ""
    # Words before QEMU's.
    prefix = ()
    # How it has its memory.
    backend = "memory-backend-memfd,share=on"

    def __init__(
        self, directory: Path, host, guest, *, options="", memory="192M", images=IMAGES, seat=None, qemu=QEMU
    ):
        self.name = guest
        self.host = host
        self.directory = directory
        self.entry = {**host.config.entry("guest", guest), **(seat or {})}
        self.network = host.config.entry("network", self.entry["network"]) if "network" in self.entry else {}
        self.kept = {"options": options, "memory": memory, "images": images, "seat": seat, "qemu": qemu}
        self.options = options
        self.memory = memory
        self.images = images
        self.qemu_program = qemu
        self.console = None
        directory.mkdir(parents=True, exist_ok=True)

    def start(self, incoming=None, paused=False):
        """Starts QEMU; the guest boots while the caller goes on. `boot` waits for it. `incoming`: it takes the state
        of another from there, and goes on with it, if `paused` only after `resume`."""
        if not shutil.which(self.qemu_program):
            builder = "qemu-backports" if self.qemu_program == NEWEST_QEMU else "setup test"
            raise Failed(f"{self.qemu_program} is missing: run scripts/{builder}")
        build_images()  # accelerator() starts one of these
        build_images(self.images)
        queues = self.entry.get("queues", 1)
        accel = accelerator()
        device = f"virtio-net-pci,netdev=net0,mac={self.entry['mac']},romfile="
        if queues > 1:
            device += ",mq=on"
        # QEMU 7.2 crashes with MSI-X, vhost-user and no KVM.
        has_vectors = accel == "kvm" or version(self.qemu_program) >= 10
        device += f",vectors={2 * queues + 2 if has_vectors else 0}"
        if self.options:
            device += "," + self.options
        words = qemu_words(self.name, accel, self.memory + self.slots, self.images, self.qemu_program) + [
            *("-object", f"{self.backend},id=memory,size={self.memory}"),
            *("-machine", "memory-backend=memory"),
            *self.net_words(queues),
            *("-device", device),
            *(
                "-chardev",
                f"socket,id=serial,path={self.directory}/serial,server=on,wait=off,"
                f"logfile={self.directory}/serial.log",
            ),
            *("-serial", "chardev:serial"),
            *("-qmp", f"unix:{self.directory}/qmp,server=on,wait=off"),
            *self.more_words(),
        ]
        if incoming:
            words += ["-incoming", incoming, *(["-S"] if paused else [])]
        self.qemu = Background([*self.prefix, *words], self.directory / "qemu.log", stdout=subprocess.DEVNULL)
        return self

    def net_words(self, queues):
        """Returns the words of the network device's other end, `net0`."""
        # The VMM's role is the other one than viaductd's.
        role = "server=on,wait=off" if self.entry.get("role") == "client" else "reconnect=1"
        return [
            *("-chardev", f"socket,id=vhost,path={self.host.socket(self.name)},{role}"),
            *("-netdev", f"vhost-user,id=net0,chardev=vhost,queues={queues}"),
        ]

    def more_words(self):
        """Returns what else QEMU's command line has."""
        return []

    def boot(self, timeout=BOOT, boots=1):
        """Waits until the guest is up, so many times by now, and gives it its addresses."""
        log = self.directory / "serial.log"
        said = lambda: log.read_text(errors="replace") if log.exists() else ""
        try:
            eventually(lambda: said().count(READY) >= boots or not self.qemu.running(), READY, timeout, 0.1)
        except Failed as late:
            raise Failed(f"guest {self.name}: {late}: {self.qemu.describe()}\n{said()[-2000:]}") from None
        if not self.qemu.running():
            raise Failed(f"guest {self.name} does not start: {self.qemu.describe()}\n{said()[-2000:]}")
        self.run(["ip", "link", "set", "eth0", "up"])
        for words in address_words("eth0", self.entry.get("addresses", []), self.network):
            self.run(" ".join(["ip", *words]).split())
        return self

    def run(self, command, *, check=True, timeout=PATIENCE):
        """Runs a command (list of words) in the guest; its output and errors come as one."""
        program, *words = (str(word) for word in command)
        # Called by its path, because busybox's shell takes its own `ip` and `ping` before those of the PATH.
        return self.shell(shlex.join([f"/bin/{program}", *words]), check=check, timeout=timeout)

    def shell(self, line, *, check=True, timeout=PATIENCE):
        """Runs a line of shell in the guest. One at a time: there is one serial line."""
        self.console = self.console or self._connect()
        tag = f"{time.monotonic_ns():x}"
        self.console.sendall(
            f"echo begin-{tag}; eval {shlex.quote(line)} </dev/null 2>&1; echo end-{tag}=$?.\n".encode()
        )
        # The shell echoes nothing, so that the marks occur only in what echo wrote.
        ended = re.compile(rf"begin-{tag}\r?\n(.*)end-{tag}=(\d+)\.".encode(), re.S)
        seen, deadline = b"", time.monotonic() + timeout
        while not (match := ended.search(seen)):
            if time.monotonic() > deadline or not self.qemu.running():
                raise Failed(f"guest {self.name}: no end within {timeout} s: {line}\n{seen.decode(errors='replace')}")
            try:
                seen += self.console.recv(65536)
            except TimeoutError:
                continue
        output = match[1].decode(errors="replace").replace("\r", "")
        done = subprocess.CompletedProcess(line, int(match[2]), output, "")
        if check and done.returncode != 0:
            raise Failed(f"guest {self.name}: exit status {done.returncode}: {line}\n{output}")
        return done

    def qmp(self, execute, **arguments):
        """Has QEMU execute a command of its monitor protocol; returns what it answers."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(PATIENCE)
            # QEMU makes the socket some time after it starts.
            eventually(lambda: monitor.connect_ex(str(self.directory / "qmp")) == 0, f"{self.name}'s monitor")
            answers = monitor.makefile()
            for request in ({"execute": "qmp_capabilities"}, {"execute": execute, "arguments": arguments}):
                monitor.sendall(json.dumps(request).encode())
                # Its greeting and events come between.
                while not (answer := json.loads(answers.readline())).keys() & {"return", "error"}:
                    pass
        if "error" in answer:
            raise Failed(f"guest {self.name}: {execute}: {answer['error']['desc']}")
        return answer["return"]

    def save(self, file, rounds=4):
        """Writes the state of the running guest to a file, as a migration would, and ends QEMU. QEMU copies, while the
        guest runs, at least `rounds` times what was written since the last time, unless nothing is. Returns the
        guest's memory, as it was when the guest stopped."""

        self.migrate(f"exec:cat > {file}", rounds)
        memory = self.content()
        self.stop()
        return memory

    def migrate(self, uri, rounds=4, before_last=None):
        """Sends the state of the running guest there, as in `save`, and returns what QEMU tells of it. `before_last` is
        called after so many rounds, before the guest is stopped for the last one."""

        def progress():
            now = self.qmp("query-migrate")
            return now["status"], now.get("ram", {}).get("dirty-sync-count", 0)

        # A round that takes longer than a millisecond is not the last one.
        self.qmp("migrate-set-parameters", **{"downtime-limit": 1})
        self.qmp("migrate", uri=uri)
        ends = ("completed", "failed")
        eventually(lambda: progress()[0] in ends or progress()[1] > rounds, f"{rounds} rounds", 600)
        if before_last:
            before_last()
            if progress()[0] in ends:
                raise Failed("the migration ended too early")
        self.qmp("migrate-set-parameters", **{"downtime-limit": 60_000})
        eventually(lambda: progress()[0] in ends, "the migration ends", 600)
        told = self.qmp("query-migrate")
        if told["status"] != "completed":
            raise Failed(f"guest {self.name} did not migrate: {told}")
        return told

    def arrived(self):
        """Waits until QEMU has the state of another; one that cannot take it ends, and says why."""
        has = lambda: self.qmp("query-status")["status"] != "inmigrate"
        try:
            eventually(has, "QEMU has the state", 600)
        except (Failed, OSError, ValueError) as error:
            raise Failed(f"guest {self.name} did not arrive: {error}\n{self.qemu.describe()}") from None

    def resume(self):
        """Lets a guest go on that was started with the state of another; returns the memory that it starts with."""
        self.arrived()
        memory = self.content()
        self.qmp("cont")
        return memory

    def content(self):
        """Returns the bytes of the guest's memory."""
        # QEMU names the file after the type of the object that has it.
        links = Path(f"/proc/{self.qemu.process.pid}/fd").iterdir()
        file = next(link for link in links if os.readlink(link).startswith("/memfd:memory-backend-memfd"))
        return file.read_bytes()

    def features(self):
        """Returns the virtio feature bits that device and driver agreed on."""
        bits = self.shell("cat /sys/bus/virtio/devices/virtio*/features").stdout.split()
        network = max(bits, key=lambda row: row.count("1"))
        return {number for number, bit in enumerate(network) if bit == "1"}

    def stop(self):
        if self.console:
            self.console.close()
            self.console = None
        self.qemu.stop()

    def _connect(self):
        console = socket.socket(socket.AF_UNIX)
        console.connect(str(self.directory / "serial"))
        console.settimeout(0.5)
        return console
