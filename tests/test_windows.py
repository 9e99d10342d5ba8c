"""Windows of virtual machines, as the host has them: files, sockets, what `viaduct` and the metrics say of them, and
restarts. What programs in virtual machines do with them is in test_vm_verbs.py."""

import signal
import socket
import stat
import subprocess
import uuid

from lab import PATIENCE, eventually
from lab.shell import run
from lab.topology import host_config, verbs, vhost

MIB = 1 << 20
DATA = 2 * MIB
TRUST = {"rdma_trust": "job7"}


_HOLD = """
import signal
from pyverbs.device import Context
context = Context(name="viaduct0")
print("open")
signal.pause()
"""


def config(name="a", guest="a1", size=64, **keys):
    """Configures a VM with a window, and a container that has one in common with it."""
    guests = {guest: vhost(guest, rdma=guest, window_mb=size, owner="1000:1001", **TRUST, **keys)}
    if name == "a":
        guests["a2"] = verbs(**TRUST)
    return host_config(name, guests, wire=False)


def prepare(lab, config, size="2G", more=""):
    """Makes the host, not started, with memory of this size for windows; `more` options of the mount."""
    host = lab.host(config, start=False)
    directory = host.run_dir / "rdma/vm"
    directory.mkdir(parents=True)
    run(["mount", "-t", "tmpfs", "-o", f"mode=755,size={size}{more}", "windows", directory])
    lab.cleanup.callback(lambda: run(["umount", "--lazy", directory], check=False))
    return host


def files(host):
    return {path.name: path.stat() for path in (host.run_dir / "rdma/vm").iterdir()}


def windows(host):
    return {row["name"]: row for row in host.viaduct("rdma", "windows")}


def dials(path):
    with socket.socket(socket.AF_UNIX) as stream:
        return stream.connect_ex(str(path)) == 0


def test_the_files_are_the_vmms(lab):
    host = prepare(lab, config()).start()
    made = files(host)
    assert set(made) == {"a1", "a1.vsock_4791", "trust-job7"}
    for name, file in made.items():
        assert (file.st_uid, file.st_gid, stat.S_IMODE(file.st_mode)) == (1000, 1001, 0o660), name
    assert made["a1"].st_size == made["trust-job7"].st_size == 64 * MIB
    assert made["a1"].st_blocks * 512 < MIB
    assert dials(host.run_dir / "rdma/vm/a1.vsock_4791")
    told = windows(host)
    own, common = told["a1"], told["trust-job7"]
    assert (own["kind"], own["device"], own["attached"], own["used_bytes"]) == ("own", "a1", [], 0)
    assert (common["kind"], common["trust"], common["users"]) == ("common", "job7", [])
    for row in (own, common):
        with open(row["path"], "rb") as file:
            file.seek(4096)
            block = file.read(4096)
            file.seek(DATA)
            header = file.read(128)
        assert block.startswith(b"NVDIMM_DAX_INFO\0") and block[16:32].hex() == row["uuid"]
        assert header.startswith(b"VIADUCT-WINDOW\0\0") and header[24:40].hex() == row["uuid"]
        assert uuid.UUID(row["uuid"]).version == 8
    table = host.call("rdma", "windows").stdout.splitlines()
    assert table[0].split()[:4] == ["NAME", "KIND", "BYTES", "USED"] and len(table) == 3
    assert "a1" in host.call("rdma").stdout


def test_they_stay_over_restarts_and_go_with_their_guests(lab):
    host = prepare(lab, config()).start()
    before = windows(host)
    inode = files(host)["a1"].st_ino
    with open(before["a1"]["path"], "r+b") as file:
        file.seek(32 * MIB)
        file.write(b"heap")
        # Root of the guest may write what he likes.
        for at in (4096, DATA):
            file.seek(at)
            file.write(b"\xff" * 128)

    def is_as_before():
        now = windows(host)
        assert {name: row["uuid"] for name, row in now.items()} == {name: row["uuid"] for name, row in before.items()}
        assert files(host)["a1"].st_ino == inode and dials(host.run_dir / "rdma/vm/a1.vsock_4791")
        with open(before["a1"]["path"], "rb") as file:
            file.seek(32 * MIB)
            assert file.read(4) == b"heap"
            file.seek(DATA)
            assert file.read(14) == b"VIADUCT-WINDOW"

    host.replace()
    is_as_before()
    host.stop()
    assert {"a1", "trust-job7"} <= set(files(host))
    host.start()
    is_as_before()
    host.kill()
    host.start()
    is_as_before()
    # It is noted in the file which pages programs have; this one nobody got.
    assert windows(host)["a1"]["left_bytes"] == 0

    larger = config(size=96)
    said = host.call("diff", host.write(larger), check=False).stdout
    assert "window_mb: 64 -> 96" in said and "has it once it is started again" in said
    host.apply(larger)
    assert windows(host)["a1"]["uuid"] != before["a1"]["uuid"]
    assert files(host)["a1"].st_size == files(host)["trust-job7"].st_size == 96 * MIB
    host.apply(host_config("a", {"a2": verbs(**TRUST)}, wire=False))
    assert files(host) == {} and windows(host) == {}
    # Windows of a guest that was removed while no daemon was there, and the sockets that a killed one left.
    host.apply(config())
    sockets = [host.run_dir / name for name in ("a1.sock", "rdma/a1", "rdma/vm/a1.vsock_4791")]
    host.kill()
    assert all(path.is_socket() for path in sockets)
    foreign = host.run_dir / "a3.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(foreign))
    host.write(host_config("a", {"a2": verbs()}, wire=False))
    host.start()
    assert not {"a1", "trust-job7"} & set(files(host))
    assert not any(path.exists() for path in sockets) and foreign.is_socket()


def test_a_daemon_that_is_stopped_leaves_no_sockets(lab):
    host = prepare(lab, config()).start()
    names = ("a1.sock", "rdma/a1", "rdma/a2", "rdma/vm/a1.vsock_4791")
    sockets = [host.run_dir / name for name in names]
    assert all(path.is_socket() for path in sockets)
    program = lab.verbs(host, "a2").python(_HOLD)
    program.wait_for("open")
    host.stop()
    assert [path for path in sockets if path.exists()] == []
    # Windows stay, for VMs that go on.
    assert set(files(host)) == {"a1", "trust-job7"}


def test_huge_pages_are_no_programs(lab):
    """Huge pages that the daemon's writes bring with them, where docs/rdma.md mounts the file system, count as
    nobody's."""
    host = prepare(lab, config(), more=",huge=within_size").start()
    left = lambda: {name: row["left_bytes"] for name, row in windows(host).items()}
    assert left() == {"a1": 0, "trust-job7": 0}
    host.kill()
    host.start()
    assert left() == {"a1": 0, "trust-job7": 0}


def test_what_is_wrong_with_a_window_is_a_fault_of_that_device_alone(lab):
    host = prepare(lab, config(), size="80M").start()
    status = lambda: host.call("status").stdout
    assert "its file system has room for" not in status()
    host.apply(config(size=96))
    faults = [row for row in host.viaduct("vif") if row.get("fault")]
    assert [row["name"] for row in faults] == ["a1:rdma"] and "make it larger" in faults[0]["fault"]
    assert "trust-job7" in status() and "rdma/a2" in host.call("rdma", "show", "a2").stdout
    shown = windows(host)
    assert all("make it larger" in shown[name]["fault"] for name in ("a1", "trust-job7")), shown
    assert "make it larger" in host.call("rdma", "windows").stdout
    run(["mount", "-o", "remount,size=1G", host.run_dir / "rdma/vm"])
    eventually(lambda: not any(row.get("fault") for row in host.viaduct("vif")), "there is room")
    shown = windows(host)
    assert set(shown) == {"a1", "trust-job7"} and "trust-job7" not in status()
    assert not any(row.get("fault") for row in shown.values()), shown
    # Its file is removed, and those that have it go on.
    for name in ("a1", "trust-job7"):
        (host.run_dir / "rdma/vm" / name).unlink()
        assert "its file was removed" in windows(host)[name]["fault"] and f'window "{name}"' in status()
    host.stop()
    host.start()
    assert "was removed" not in status() and not any(row.get("fault") for row in windows(host).values())
    # A VM that runs may have a file of another size: it is not cut.
    host.stop()
    host.write(config(size=128))
    host.start()
    fault = next(row["fault"] for row in host.viaduct("vif") if row["name"] == "a1:rdma")
    assert "it has 100663296 bytes" in fault and files(host)["a1"].st_size == 96 * MIB
    (host.run_dir / "rdma/vm/a1").unlink()
    eventually(lambda: files(host).get("a1") and files(host)["a1"].st_size == 128 * MIB, "a new file")


def test_a_second_daemon_does_without_the_kernels_vsock(lab):
    hosts = [prepare(lab, config(*where)).start() for where in (("a", "a1"), ("b", "b1"))]
    without = lambda host: [row for row in host.viaduct("status")["warnings"] if row["object"] == "vsock"]
    # Daemons of other tests may have it as well, for a while.
    missing = [row for host in hosts for row in without(host)]
    assert "vhost-vsock of the kernel" in missing[0]["message"]
    hosts[1].apply(host_config("b", {"b1": vhost("b1")}, wire=False))
    plain = prepare(lab, host_config("c", {"b2": verbs()}, wire=False)).start()
    assert not without(plain)


def test_metrics_tell_how_much_is_used(lab):
    host = prepare(lab, config()).start()
    assert host.viaduct("rdma", "windows")
    host.stop()
    changed = config()
    changed.host["metrics"] = "127.0.0.1:9101"
    host.write(changed)
    host.start()
    text = run(host.namespace.words(["curl", "-s", "http://127.0.0.1:9101/metrics"])).stdout
    assert f'viaduct_rdma_window_bytes{{window="a1",kind="own"}} {64 * MIB}' in text
    assert 'viaduct_rdma_window_used_bytes{window="trust-job7",kind="common"} 0' in text


def vmm(host, monitor="none"):
    """Starts a QEMU with the window and the interface of the VM, which stands still."""
    window, way = host.run_dir / "rdma/vm/a1", host.run_dir / "a1.sock"
    words = ["qemu-system-x86_64", "-M", "q35,accel=tcg", "-m", "128M,slots=2,maxmem=4G", "-nodefaults",
             "-display", "none", "-object", "memory-backend-memfd,id=ram,size=128M,share=on",
             "-machine", "memory-backend=ram", "-S",
             "-object", f"memory-backend-file,id=w0,mem-path={window},size=64M,share=on",
             "-device", "virtio-pmem-pci,memdev=w0", "-chardev", f"socket,id=c0,path={way},reconnect=1",
             "-netdev", "vhost-user,id=n0,chardev=c0", "-device", "virtio-net-pci,netdev=n0",
             "-monitor", monitor]  # fmt: skip
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_vm_with_a_window_does_not_migrate(lab):
    host = prepare(lab, config()).start()
    qemu = vmm(host, "stdio")
    try:
        said, _ = qemu.communicate("migrate exec:cat>/dev/null\nquit\n", timeout=PATIENCE)
    finally:
        qemu.kill()
    assert "lacks VHOST_USER_PROTOCOL_F_LOG_SHMFD" in said or "lacks VHOST_F_LOG_ALL" in said, said


class Programs:
    """Programs of the container and of the VM, which are processes of this host that use its windows as those in it
    would. They have memory of the windows, and wait."""

    def __init__(self, lab, host):
        self.sides = {name: lab.verbs(host, name) for name in ("a1", "a2")}
        directory = host.run_dir / "rdma/vm"
        self.as_vm = {"VIADUCT_RDMA": f"{directory}/a1+{directory}/trust-job7@{directory}/a1.vsock_4791"}
        self.bytes = lambda: {user["pid"]: user["bytes"] for user in windows(host)["trust-job7"]["users"]}
        self.left = lambda: windows(host)["trust-job7"]["left_bytes"]

    def run(self, guest, words):
        return self.sides[guest].start(words, **(self.as_vm if guest == "a1" else {}))

    def start(self, guest, port):
        """Starts a program; returns it, and how much it has."""
        before = self.bytes()
        program = self.run(guest, ["ibv_rc_pingpong", "-g", "1", "-s", "100000", "-p", port])
        listens = lambda: self.sides[guest].listens(port) or not program.running()
        eventually(listens, f"it waits: {program.describe()}")
        [(_, has)] = self.bytes().items() - before.items()
        return program, has

    def expect_left(self, wanted):
        eventually(lambda: self.left() == wanted, f"{wanted} bytes are left, not {self.left()}")


def test_programs_that_end_without_a_daemon_leave_nothing(lab):
    host = prepare(lab, config()).start()
    programs, qemu = Programs(lab, host), vmm(host)
    lab.cleanup.callback(qemu.kill)
    came = lambda: host.daemon.text().count("VMM connected")
    eventually(came, "the VMM")
    (stays, its), (gone, _), (inside, of_vm) = (
        programs.start(guest, port) for guest, port in (("a2", 18601), ("a2", 18602), ("a1", 18603))
    )
    host.kill()
    gone.stop(signal.SIGKILL)
    inside.stop(signal.SIGKILL)
    host.start()
    # Only another program in the VM can tell of the one that was there.
    programs.expect_left(its + of_vm)
    witness = programs.run("a1", ["ibv_devinfo"])
    eventually(lambda: not witness.running(), f"the end of ibv_devinfo: {witness.describe()}")
    programs.expect_left(its)
    # A program that lives keeps its memory, whatever ends and begins around it.
    eventually(came, "the VMM")
    (inside, of_vm), (other, of_other) = (programs.start(*which) for which in (("a1", 18604), ("a2", 18605)))
    host.replace()
    programs.expect_left(its + of_vm + of_other)
    other.stop(signal.SIGKILL)
    programs.expect_left(its + of_vm)
    host.kill()
    inside.stop(signal.SIGKILL)
    qemu.kill()
    qemu.wait()
    host.start()
    programs.expect_left(its)
    stays.stop(signal.SIGKILL)
    programs.expect_left(0)


def test_status_tells_that_the_program_of_a_vms_vsock_ended(lab):
    host = prepare(lab, config()).start()
    told = lambda: [row["message"] for row in host.viaduct("status")["warnings"] if row["object"] == 'window "a1"']
    qemu = vmm(host)
    try:
        # It plays both: a program of the VM, and what carries its stream to the daemon.
        carrier, _ = Programs(lab, host).start("a1", 18604)
        assert not told()
        carrier.stop(signal.SIGKILL)
        eventually(told, "a warning")
        assert "carried the VM's vsock" in told()[0]
    finally:
        qemu.kill()
    eventually(lambda: not told(), "no warning once the VM ended")
