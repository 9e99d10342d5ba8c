"""A VM with a window migrates, by choice: its programs lose their device, keep their memory, and get a device where the
VM goes on.

vhost-user-vsock, which takes the place of the kernel's vsock here, can't migrate: it is unplugged before, and plugged
in at the other end.
"""

import itertools
import re
import shutil

import pytest
from test_migrate import bridged, newest_qemu

from lab import PATIENCE, binary, eventually
from lab.host import REPOSITORY
from lab.marks import machines
from lab.shell import run
from lab.topology import vhost
from lab.verbs_vm import MODULES, VerbsVm
from lab.vm import BOOT, QEMU, Vm, version

pytestmark = [machines, pytest.mark.nightly]

# A window and no trust: 36 MB and more, of which programs get 32.
KEYS = {"standby": True, "rdma": "a1", "window_mb": 36, "window_migrates": True}
# The directory of the files that the guest gets by 9p before it moves.
FILES = "/tmp/files"
_numbers = itertools.count()


class MovingVm(VerbsVm):
    """A guest with its window as an NVDIMM, and everything that its programs need in its own memory."""

    def more_words(self):
        [file] = self.windows().values()
        words = ["-fsdev", f"local,id=files,path={self.kept['files']},security_model=none,readonly=on"]
        words += ["-device", "virtio-9p-pci,fsdev=files,mount_tag=files", "-machine", "nvdimm=on"]
        words += ["-object", f"memory-backend-file,id=own,mem-path={file},size={file.stat().st_size},share=on"]
        return [*words, "-device", "nvdimm,memdev=own", "-device", "pcie-root-port,id=port-vsock,chassis=1"]

    def __init__(self, *words, files, **options):
        super().__init__(*words, **options)
        self.kept["files"] = files

    def boot(self, timeout=BOOT):
        Vm.boot(self, timeout)
        self.shell(f"modprobe -a {MODULES} && mkdir -p /mnt {FILES} /dev/shm")
        self.plug_vsock()
        mount = "mount -t 9p -o trans=virtio,version=9p2000.L,ro files /mnt"
        self.shell(f"{mount} && cp /mnt/* {FILES} && umount /mnt && until ls /dev/dax*; do sleep 0.1; done")
        return self

    def plug_vsock(self):
        # QEMU does not let go of the one that a device had.
        chardev = f"vsock-{next(_numbers)}"
        address = {"type": "unix", "data": {"path": str(self.way)}}
        self.qmp("chardev-add", id=chardev, backend={"type": "socket", "data": {"addr": address, "server": False}})
        self.qmp("device_add", driver="vhost-user-vsock-pci", id="vsock", chardev=chardev, bus="port-vsock", vectors=0)
        driver = "/sys/bus/virtio/drivers/vmw_vsock_virtio_transport"
        self.shell(f"until ls -d {driver}/virtio*; do sleep 0.1; done", timeout=PATIENCE)

    def unplug_vsock(self):
        self.qmp("device_del", id="vsock")
        names = lambda: {each["name"] for each in self.qmp("qom-list", path="/machine/peripheral")}
        eventually(lambda: "vsock" not in names(), "vsock is gone")
        self.vsock.stop()

    def begin(self, name, *words):
        line = f"LD_LIBRARY_PATH={FILES} {FILES}/moves {' '.join(words)}"
        self.shell(f"({line} >/tmp/{name} 2>&1; echo ends $? >>/tmp/{name}) &")

    def said(self, name):
        return self.shell(f"touch /tmp/{name}; cat /tmp/{name}").stdout.split("\n")[:-1]

    def expect(self, name, words):
        has = lambda: self.said(name) == words or "ends" in "".join(self.said(name))
        eventually(has, f"{name} says {words}", interval=0.2)
        assert self.said(name) == words


@pytest.fixture
def files(lab):
    """Builds the files that the guest gets."""
    directory = lab.directory / "files"
    directory.mkdir()
    source = REPOSITORY / "tests/vm/moves.c"
    run(["cc", "-O2", "-o", directory / "moves", source, "-libverbs"])
    shutil.copy(binary("verbs/libibverbs.so.1"), directory)
    # Libraries that it needs and the guest lacks.
    for needed in re.findall(r"=> (/\S+)", run(["ldd", directory / "libibverbs.so.1"]).stdout):
        shutil.copy(needed, directory)
    run(["strip", "--strip-debug", directory / "libibverbs.so.1"])
    return directory


def stand_still(vm, window):
    """Checks that nobody uses the VM's device while it stands still, and that programs keep their memory."""
    vm.qmp("stop")
    eventually(lambda: not window("a")["users"], "the programs lost their device")
    vm.qmp("cont")
    # The VM does not learn what vhost-user-vsock is told while the VM stands still.
    vm.unplug_vsock()


@pytest.mark.parametrize("qemu", [QEMU, newest_qemu()])
def test_a_vm_with_a_window_moves_by_choice(lab, files, qemu):
    for name in ("a", "b"):
        lab.plug(name)
    guest = {"a1": vhost("a1", **KEYS)}
    hosts = {name: lab.host(bridged(name, guest)) for name in ("a", "b")}
    vm = lab.vm(hosts["a"], "a1", MovingVm, files=files, qemu=qemu)
    window = lambda host: hosts[host].viaduct("rdma", "windows")[0]
    vm.boot()
    for name, mode, go in (("first", "busy", 1), ("busy", "busy", 2), ("asleep", "asleep", 2)):
        vm.begin(name, mode, f"/tmp/go-{go}")
        vm.expect(name, ["holds"])
    assert len({user["pid"] for user in window("a")["users"]}) == 3

    stand_still(vm, window)
    assert window("a")["left_bytes"] > 3 * 200 * 4096
    assert "programs in it lost their verbs device" in hosts["a"].daemon.text()
    for name in ("first", "busy"):
        vm.expect(name, ["holds", "lost"])
    vm._start_vsock()
    vm.plug_vsock()
    vm.shell("touch /tmp/go-1")
    vm.expect("first", ["holds", "lost", "intact", "again", "ends 0"])

    # It moves. Without KVM, QEMU before 9.0 copies correctly only what stands still.
    vm.unplug_vsock()
    left = window("a")["left_bytes"]
    if version(qemu) < 9:
        vm.qmp("stop")
    moved, _ = lab.migrate(vm, hosts["b"])
    eventually(lambda: window("b")["left_bytes"] == left, "host b knows what its programs have")
    moved.plug_vsock()
    moved.shell("touch /tmp/go-2")
    moved.expect("busy", ["holds", "lost", "intact", "again", "ends 0"])
    moved.expect("asleep", ["holds", "intact", "again", "ends 0"])
    eventually(lambda: window("b")["left_bytes"] == window("b")["used_bytes"] == 0, "all is free")


def test_a_vm_with_a_window_is_saved(lab, files):
    lab.plug("a")
    host = lab.host(bridged("a", {"a1": vhost("a1", **KEYS)}))
    vm = lab.vm(host, "a1", MovingVm, files=files)
    window = lambda _: host.viaduct("rdma", "windows")[0]
    vm.boot()
    vm.begin("asleep", "asleep", "/tmp/go")
    vm.expect("asleep", ["holds"])
    stand_still(vm, window)
    left, state = window("a")["left_bytes"], lab.directory / "a1.state"
    vm.qmp("stop")
    vm.migrate(f"exec:cat > {state}")
    vm.stop()
    # Whatever comes into the window meanwhile.
    with open(window("a")["path"], "r+b") as file:
        file.seek(2 << 20)
        file.write(b"\x5a" * (34 << 20))
    vm.start(incoming=f"exec:cat {state}", paused=True)
    vm.resume()
    eventually(lambda: window("a")["left_bytes"] == left, "the daemon knows what its programs have")
    vm.plug_vsock()
    vm.shell("touch /tmp/go")
    vm.expect("asleep", ["holds", "intact", "again", "ends 0"])
    eventually(lambda: window("a")["left_bytes"] == window("a")["used_bytes"] == 0, "all is free")
