"""Virtual machines in which programs use verbs: a guest with the windows of its device and vsock, or with Soft-RoCE."""

import functools
import itertools
import shlex
import signal

from .host import REPOSITORY, binary
from .shell import PATIENCE, Background, Failed, eventually
from .vm import BOOT, RDMA_IMAGES, Vm

VSOCK = REPOSITORY / ".cache/tools/bin/vhost-device-vsock"
# The module's own alias names them: udev loads them in a guest that has one.
MODULES = "virtio_pmem nfit nd_pmem dax_pmem device_dax vmw_vsock_virtio_transport 9p 9pnet_virtio overlay"
# This machine's files, and in memory what the guest writes.
SYSTEM = """
modprobe -a {modules} &&
mkdir -p /below /above /system && mount -t tmpfs above /above && mkdir /above/files /above/work &&
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 system /below &&
mount -t overlay -o lowerdir=/below,upperdir=/above/files,workdir=/above/work system /system &&
for each in dev proc sys; do mount --bind /$each /system/$each || exit; done &&
mkdir -p /dev/shm /dev/infiniband && mount -t tmpfs shm /dev/shm &&
mount -t tmpfs run /system/run && ulimit -l unlimited
"""
_programs = itertools.count(1)


def inside(words, environment):
    """Returns the line of shell that runs a program among this machine's files."""
    settings = [f"{name}={value}" for name, value in environment.items()]
    return shlex.join(["chroot", "/system", "/usr/bin/env", "-C", "/tmp", *settings, *map(str, words)])


class Program:
    """A program in a guest; as `Background`."""

    def __init__(self, vm, words, environment):
        self.vm = vm
        self.command = [str(word) for word in words]
        self.files = f"/tmp/program-{next(_programs)}"
        script = shlex.quote(f"echo $$ >{self.files}.pid; exec {inside(words, environment)}")
        line = f"(sh -c {script} >{self.files}.log 2>&1; echo $? >{self.files}.status) &"
        vm.shell(f"{line} until [ -s {self.files}.pid ]; do :; done")
        self.status = None
        self.boot = vm.this_boot

    def running(self):
        """Says whether it runs; if not, `status` has its exit status, 128 and more for signals, as if by one where the
        machine ended."""
        if self.boot != self.vm.this_boot:
            self.status = 128 + signal.SIGKILL
        if self.status is None:
            said = self.vm.shell(f"[ ! -s {self.files}.status ] || cat {self.files}.status").stdout
            self.status = int(said) if said.strip() else None
        return self.status is None

    def wait(self, timeout=PATIENCE):
        """Its exit status, once it has ended."""
        eventually(lambda: not self.running(), f"the end of {shlex.join(self.command)} in {self.vm.name}", timeout, 0.2)
        return self.status

    @property
    def pid(self):
        return int(self.vm.shell(f"cat {self.files}.pid").stdout)

    def text(self):
        if self.boot != self.vm.this_boot:
            return "(the machine ended)"
        return self.vm.shell(f"cat {self.files}.log").stdout

    def describe(self, lines=30):
        tail = "\n".join(self.text().splitlines()[-lines:])
        return f"{self.vm.name}: {shlex.join(self.command)}\n{tail}"

    def stop(self, how=signal.SIGTERM):
        if self.running():
            self.vm.shell(f"kill -{int(how)} $(cat {self.files}.pid)", check=False)
            return self.wait()
        return self.status


class Inside:
    """The verbs device of a guest, for programs inside; as `Verbs`."""

    def __init__(self, vm, environment=None, prefix=()):
        """Takes `prefix` as the words that precede those of each program. Without an environment they find our
        libraries."""
        self.vm = vm
        self.address = vm.entry["addresses"][0]
        self.device_name = "viaduct0" if vm.device else "rxe0"
        ours = {"LD_LIBRARY_PATH": binary("verbs/libibverbs.so.1").parent} if vm.device else {}
        self.environment = ours if environment is None else environment
        self.prefix = prefix

    def start(self, words, label=None, **environment):
        """Starts a program, one of this machine's."""
        return Program(self.vm, [*self.prefix, *words], {**self.environment, **environment})

    def run(self, words, *, timeout=PATIENCE, **environment):
        """Runs a program to its end, and returns what it printed. Nothing else happens in the guest meanwhile, not even
        a question whether it still runs."""
        line = inside([*self.prefix, *words], {**self.environment, **environment})
        return self.vm.shell(line, timeout=timeout).stdout

    def listens(self, port):
        """Says whether a program listens at that TCP port."""
        entry = f"grep -q ':{port:04X} .* 0A' /proc/net/tcp /proc/net/tcp6"
        return self.vm.shell(entry, check=False).returncode == 0

    def answers(self):
        """Says whether a program listens by the connection manager."""
        if not self.vm.device:
            return "LISTEN" in self.vm.run(["rdma", "resource", "show", "cm_id"]).stdout
        listed = self.vm.host.viaduct("rdma", "cm", "--device", self.vm.device)
        return any(row["state"] == "listen" for row in listed)


class VerbsVm(Vm):
    """A guest in which the programs run that are installed on this machine: it has its files (and writes none of
    them). Where its device has a window, programs use that by our libraries; else by Linux's Soft-RoCE."""

    slots = ",slots=4,maxmem=16G"

    def __init__(self, directory, host, guest, *, memory="384M", images=RDMA_IMAGES, plugs=None, **options):
        """Takes `plugs` as the kind of device by which its windows are plugged in once it runs. Without it, it starts
        with them."""
        super().__init__(directory, host, guest, memory=memory, images=images, **options)
        self.kept |= {"memory": memory, "images": images, "plugs": plugs}
        self.plugs = plugs
        self.vsock = None
        # How often the kernel started, by this QEMU and by all.
        self.boots = self.this_boot = 0

    @property
    def device(self):
        """Returns the name of the verbs device, or None."""
        return self.entry.get("rdma") if self.entry.get("window_mb") else None

    def windows(self):
        """Returns the files of the windows, by their names in QEMU."""
        if not self.device:
            return {}
        directory = self.host.run_dir / "rdma/vm"
        files = {"own": directory / self.device}
        if trust := self.entry.get("rdma_trust"):
            files["common"] = directory / f"trust-{trust}"
        return files

    def start(self, incoming=None, paused=False):
        self.boots = 1
        (self.directory / "serial.log").unlink(missing_ok=True)
        if self.device:
            self._start_vsock()
        return super().start(incoming, paused)

    def _start_vsock(self):
        """Does what the kernel does where it has vhost_vsock: the guest's connections come out as those to a socket."""
        if not VSOCK.exists():
            raise Failed(f"{VSOCK} is missing: run scripts/setup test")
        self.way = self.directory / "vsock"
        self.way.unlink(missing_ok=True)
        uds = self.host.run_dir / "rdma/vm" / f"{self.device}.vsock"
        uds.unlink(missing_ok=True)
        words = [VSOCK, "--vm", f"guest-cid=3,uds-path={uds},socket={self.way}"]
        self.vsock = Background(words, self.directory / "vsock.log")
        eventually(self.way.exists, f"vhost-device-vsock listens: {self.vsock.describe()}")

    def more_words(self):
        words = ["-fsdev", "local,id=system,path=/,security_model=none,readonly=on,multidevs=remap"]
        words += ["-device", "virtio-9p-pci,fsdev=system,mount_tag=system"]
        for name, file in self.windows().items():
            size = file.stat().st_size
            if self.plugs:
                words += ["-device", f"pcie-root-port,id=port-{name},chassis={len(words)}", "-machine", "nvdimm=on"]
                continue
            words += ["-object", f"memory-backend-file,id={name},mem-path={file},size={size},share=on"]
            words += ["-device", f"virtio-pmem-pci,memdev={name}"]
        if self.device:
            # Without vectors for the same reason as the network device.
            words += ["-chardev", f"socket,id=vsock,path={self.way}"]
            words += ["-device", "vhost-user-vsock-pci,chardev=vsock,vectors=0"]
        return words

    def boot(self, timeout=BOOT):
        super().boot(timeout, self.boots)
        self.shell(SYSTEM.format(modules=MODULES))
        if self.plugs:
            self._plug_in()
        if not self.device:
            self.shell("modprobe crc32_generic; modprobe -a rdma_rxe ib_uverbs rdma_ucm")
            self.run(["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0"])
            return self
        count = len(self.windows())
        self.shell(f"until [ $(ls /dev/dax* | wc -l) = {count} ]; do sleep 0.1; done")
        # UCX looks for it before it tries verbs; nothing is done with it.
        self.shell("mknod /dev/infiniband/uverbs0 c 1 3")
        return self

    def _plug_in(self):
        """Plugs the windows into a machine that runs."""
        for name, file in self.windows().items():
            about = {"mem-path": str(file), "size": file.stat().st_size, "share": True}
            self.qmp("object-add", **{"qom-type": "memory-backend-file", "id": name}, **about)
            place = {} if self.plugs == "nvdimm" else {"bus": f"port-{name}"}
            self.qmp("device_add", driver=self.plugs, id=f"window-{name}", memdev=name, **place)

    def reboot(self):
        """Reboots it as by its reset button; `boot` waits for it."""
        self.qmp("set-action", reboot="reset")
        self.qmp("system_reset")
        self.boots += 1
        self.this_boot += 1

    @functools.cached_property
    def programs(self):
        """Its verbs device, for programs inside."""
        return Inside(self)

    def kill(self):
        """Ends QEMU at once."""
        self._ended(signal.SIGKILL)

    def stop(self):
        self._ended(signal.SIGTERM)

    def _ended(self, how):
        if self.console:
            self.console.close()
            self.console = None
        self.qemu.stop(how)
        self.this_boot += 1
        # A VMM's connections end with it; this device keeps them.
        if self.vsock:
            self.vsock.stop(how)
