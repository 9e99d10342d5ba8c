"""Verbs in virtual machines: unmodified programs in stock Debian kernels, by windows of memory that they share with the
daemon and, where their guests trust each other, with other machines and containers.

    host a: VMs a1 and a2, and container near, trust each other;  VM own and container far trust nobody
    host b: VM b1;  VM b2 has Linux's Soft-RoCE in place of a device
"""

import signal
import subprocess

import pytest
from test_mpi import MPIRUN, UCX, built, device_file  # noqa: F401
from test_rsockets import PRELOAD

from lab import PATIENCE, Config, Failed, Meeting, Verbs, eventually, meet, nfs
from lab.host import REPOSITORY, binaries
from lab.pairwise import options, pairwise
from lab.topology import UNDERLAY, host_config, verbs, vhost
from lab.verbs_vm import Inside, VerbsVm

# The first test of a group waits for its machines, which may be translated.
pytestmark = [pytest.mark.takes_long, pytest.mark.timeout(1800)]

CONTAINERS = ("near", "far")
MORE = {"own": 3, "near": 4, "far": 5}  # last bytes of addresses of host a's guests without seats
# Devices as which machines get their windows once they run.
PLUGS = {"own": "nvdimm", "b1": "virtio-pmem-pci"}
# A rank of MPI takes 62 MB and more; without room it hangs.
WINDOW = {"window_mb": 128}
PINGPONGS = ["rc -c", "rc -c -e", "uc -c", "ud -c -s 1000", "srq -c -q 4"]
PERFTESTS = [
    *("ib_send_lat -s 8", "ib_send_bw -s 65536", "ib_send_bw -e -s 4096", "ib_send_lat -c UC -s 4096"),
    *("ib_send_lat -c UD -s 512", "ib_send_bw --use-srq -s 64", "ib_write_lat -s 8", "ib_write_bw -s 65536 -q 2"),
    *("ib_read_lat -s 8 -o 8", "ib_read_bw -s 65536 -o 8", "ib_atomic_lat -o 8"),
]
REMOTE = REPOSITORY / "tests/mpi/remote"
MPI_PORT = 2222


def perftest(run, *more):
    program, *options = run.split()
    return [program, "-d", "DEVICE", "-x", "1", "-F", "-n", "50", *options, *more]


def configs():
    """Returns those of both hosts."""
    trusted = {**WINDOW, "rdma_trust": "job"}
    config = host_config("a", {name: vhost(name, rdma=name, **trusted) for name in ("a1", "a2")})
    for name, number in MORE.items():
        addresses = [f"10.1.1.{number}", f"fd00:1::{number:x}"]
        keys = {"mac": f"02:00:00:00:01:{number:02x}", "addresses": addresses, "label": 100 + number}
        keys |= {"rdma": name, "rdma_trust": "job" if name == "near" else None}
        keys |= vhost(name, **WINDOW) if name == "own" else {"kind": "tap", "device": f"tap-{name}"}
        config.add("guest", name=name, network="blue", **keys)
    other = host_config("b", {"b1": vhost("b1", rdma="b1", **WINDOW), "b2": vhost("b2")})
    for here, there in ((config, other), (other, config)):
        for guest in (keys for table, keys in there.tables if table == "guest"):
            hop = {"tunnel": "mpls-over-udp", "remote": UNDERLAY[there.name], "label": guest["label"]}
            for address, length in zip(guest["addresses"], (32, 128)):
                here.add("route", network="blue", prefix=f"{address}/{length}", to=[hop])
    return config, other


class World:
    """Both hosts, with everything in them; a machine boots when a test needs it for the first time."""

    def __init__(self, lab):
        self.lab = lab
        for name in ("a", "b"):
            lab.plug(name)
        self.a, self.b = (lab.host(config) for config in configs())
        self.vms, self.sides = {}, {}
        for name in CONTAINERS:
            container = lab.container(self.a, name)
            self.sides[name] = Verbs(container.namespace, self.a, name, lab.directory, container.addresses[0])

    def need(self, *names):
        """Boots those of these machines that have not been needed yet, all at once; returns the sides of all."""
        new = [name for name in names if name not in self.sides]
        for name in new:
            self.vms[name] = self.lab.vm(self.host_of(name), name, VerbsVm, plugs=PLUGS.get(name))
        for name in new:
            self.sides[name] = self.vms[name].boot().programs
        for name in new:
            for other in self.sides:
                if other != name:
                    self.vms[name].expect_ping(self.sides[other].address, 1)
        return [self.sides[name] for name in names]

    def host_of(self, name):
        return self.b if name.startswith("b") else self.a

    def windows(self, host=None):
        return (host or self.a).viaduct("rdma", "windows")

    def is_clean(self):
        """Says whether no program has anything of a device or a window any more."""
        left = [user for host in (self.a, self.b) for window in self.windows(host) for user in window["users"]]
        used = [row["clients"] for host in (self.a, self.b) for row in host.viaduct("rdma")]
        return not left and not any(used)

    def expect_clean(self):
        eventually(self.is_clean, "windows and devices that no program uses")


@pytest.fixture(scope="module")
def world(shared_lab):
    return World(shared_lab)


# Server and client, how their messages travel, and the worker's group that has their machines.
PAIRS = {
    "common window": ("a1", "a2", "shared", "one host"),
    "own windows": ("a1", "own", "copy", "one host"),
    "two hosts": ("b1", "a1", "roce", "two hosts"),
    "VM and container": ("a1", "near", "shared", "one host"),
    "VM and container without trust": ("own", "far", "copy", "one host"),
    "Soft-RoCE asks": ("a2", "b2", "roce", "two hosts"),
    "Soft-RoCE is asked": ("b2", "a2", "roce", "two hosts"),
}
in_group = lambda name: pytest.mark.xdist_group(f"verbs in machines: {name}")
of_pair = lambda pair, *_: [in_group(PAIRS[pair][3])]
# For tests that need several pairs.
with_most_machines = in_group("two hosts")


def parts(value):
    """Names how a pair's messages travel and who is beside the first machine, and what a program does: what it
    transfers, whether it measures latency or bandwidth, and its options but for sizes and numbers."""
    if value in PAIRS:
        server, client, way, _ = PAIRS[value]
        return [way, "container" if client in CONTAINERS else "Soft-RoCE" if "b2" in (server, client) else "machine"]
    program, *words = options(value)
    kinds = [word for word in words if word.split()[0] not in ("-s", "-q", "-o")]
    return [*program.removeprefix("ib_").split("_"), *kinds]


@pytest.fixture
def pair(request, world):
    """Returns both sides; nothing may be left of a test on them."""
    server, client, *_ = PAIRS[request.param]
    yield world.need(server, client)
    world.expect_clean()


# Machines are translated where there is no KVM, which takes CPUs.
on_pairs = lambda *runs, **keys: pairwise(PAIRS, *runs, parts=parts, marks=of_pair, strength=1, **keys)
only = lambda name, *marks: pytest.param(name, marks=[*of_pair(name), *marks])


@pytest.mark.parametrize("pair, run", on_pairs(PINGPONGS), indirect=["pair"])
def test_pingpong(pair, run):
    """Every byte arrives."""
    kind, *words = run.split()
    meet(*pair, f"ibv_{kind}_pingpong", "-d", "DEVICE", "-g", "1", "-n", "50", *words)


# These stood still where the machine's processor was emulated with atomic instructions that were none.
ONCE_FAILED = [("two hosts", "ib_send_bw --use-srq -s 64"), ("common window", "ib_send_bw -e -s 4096")]


@pytest.mark.parametrize("pair, run", on_pairs(PERFTESTS, always=ONCE_FAILED), indirect=["pair"])
def test_perftest(pair, run):
    meet(*pair, *perftest(run))


# Programs that connect by the addresses of their machines; what the server and the client are told.
CONNECTING = {
    "rping": ("rping -V -C 10 -s -a {server}", "rping -V -C 10 -c -a {server}"),
    "rstream": ("rstream -T v -I 3 -C 10 -b {server}", "rstream -T v -I 3 -C 10 -s {server}"),
}


@pytest.mark.parametrize("pair, run", on_pairs(CONNECTING), indirect=["pair"])
def test_connections(pair, run):
    server, client = pair
    serves, asks = (words.format(server=server.address).split() for words in CONNECTING[run])
    serving = server.start(serves)
    eventually(lambda: server.answers() or not serving.running(), f"a listener: {serving.describe()}")
    asking = client.start(asks)
    eventually(lambda: not asking.running() and not serving.running(), f"the end of {run}")
    assert (serving.status, asking.status) == (0, 0), f"{serving.describe()}\n{asking.describe()}"


# Programs of tests/mpi, and what they print at the end.
MPI_PROGRAMS = {"collective": "2 ranks, 0 wrong", "memory": "0 wrong"}


# Soft-RoCE has no MPI here.
MPI = [only(name) for name in PAIRS if not name.startswith("Soft-RoCE")]


@pytest.mark.nightly
@pytest.mark.parametrize("name", MPI_PROGRAMS)
@pytest.mark.parametrize("pair", MPI, indirect=True)
def test_mpi(shared_lab, pair, name):
    """There is a rank by each device. mpirun starts those of the other machine by tests/mpi/remote, in place of ssh."""
    program = built(shared_lab.directory, name)
    environment = {**UCX, "UCX_IB_GID_INDEX": "2", "HOME": "/tmp"}
    remotes = [side.start([REMOTE, "serve"], **environment) for side in pair]
    try:
        eventually(lambda: all(side.listens(MPI_PORT) for side in pair), "tests/mpi/remote")
        hosts = ["--host", ",".join(side.address for side in reversed(pair)), "-np", "2"]
        options = ["--mca", "plm_rsh_agent", REMOTE, "--mca", "oob_tcp_if_include", "10.1.1.0/24"]
        run = pair[1].start([*MPIRUN, *options, *hosts, program], **environment)
        eventually(lambda: not run.running(), "the end of mpirun")
        assert run.status == 0 and MPI_PROGRAMS[name] in run.text(), run.describe(200)
    finally:
        for remote in remotes:
            remote.stop()


@in_group("one host")
@pytest.mark.parametrize("name", ["a1", "own"])
def test_a_program_with_two_contexts(world, shared_lab, name):
    """Regions of both are in one page; a child has its own."""
    program = shared_lab.directory / "contexts"
    words = ["cc", "-O2", "-o", program, REPOSITORY / "tests/vm/contexts.c", "-libverbs"]
    subprocess.run(words, check=True)
    [side] = world.need(name)
    run = side.start([program])
    assert run.wait() == 0, run.describe()
    world.expect_clean()


# While a program of each side uses it: who ends, and how.


BUSY = ["ib_write_bw", "-d", "DEVICE", "-x", "1", "-F", "-s", "65536", "-D", "900"]


class Busy:
    """A long run of perftest between two guests that has begun; its memory is in windows."""

    def __init__(self, world, server, client):
        self.world = world
        self.meeting = Meeting(*world.need(server, client), BUSY)
        rows = lambda: [row for row in self.queue_pairs(client) if row["state"] == "RTS"]
        eventually(lambda: rows() or not self.running(), f"a queue pair of {client}")
        assert self.running(), self.meeting.describe()

    def queue_pairs(self, guest):
        return self.world.host_of(guest).viaduct("rdma", "qp", "--device", guest)

    def running(self):
        return all(one.running() for one in self.meeting.both)

    def __enter__(self):
        return self.meeting

    def __exit__(self, *_):
        for one in self.meeting.both:
            one.stop(signal.SIGKILL)


@pytest.mark.parametrize("victim", ["server", "client"])
@pytest.mark.parametrize("pair", [*map(only, ["common window", "own windows", "VM and container"])], indirect=True)
def test_a_program_is_killed(world, pair, victim):
    server, client = (next(name for name in world.sides if world.sides[name] is side) for side in pair)
    with Busy(world, server, client) as meeting:
        assert not world.is_clean()
        getattr(meeting, victim).stop(signal.SIGKILL)


@with_most_machines
@pytest.mark.parametrize("way", ["killed", "replaced"])
def test_the_daemon_ends(world, way):
    """Programs learn of the daemon's end, and others can use the devices afterwards."""
    world.need("a1", "a2", "own", "b1")
    with Busy(world, "a1", "a2") as meeting:
        if way == "killed":
            world.a.kill()
            world.a.start()
        else:
            world.a.replace()
        eventually(lambda: not meeting.client.running(), f"the client's end: {meeting.describe()}")
    # Another program of a machine tells that those have ended which had no daemon any more.
    for name in ("a1", "a2"):
        assert world.sides[name].start(["ibv_devinfo"]).wait() == 0
    world.expect_clean()
    eventually(lambda: not any(row["left_bytes"] for row in world.windows()), f"nothing is left: {world.windows()}")
    world.vms["a1"].expect_ping(world.sides["a2"].address, 1)
    for name in ("common window", "own windows", "two hosts"):
        meet(*(world.sides[side] for side in PAIRS[name][:2]), *perftest("ib_write_bw -s 65536"))
    world.expect_clean()


@in_group("one host")
@pytest.mark.nightly
@pytest.mark.parametrize("way", ["kill", "replace"])
@pytest.mark.parametrize("names", [("a1", "near"), ("near", "a1"), ("own", "far")], ids=" serves ".join)
def test_a_server_outlives_the_daemon(world, names, way):
    """A server of sockets listens again by itself."""
    server, client = world.need(*names)
    serving = server.start(["iperf3", "-s"], LD_PRELOAD=PRELOAD)
    try:
        for ends in (False, True):
            if ends:
                # A listener that iperf3 makes while there is no device would be TCP's.
                eventually(server.answers, f"the next listener: {serving.describe()}")
                getattr(world.a, way)()
                if way == "kill":
                    world.a.start()
            eventually(server.answers, f"a listener: {serving.describe()}")
            asking = client.start(["iperf3", "-c", server.address, "-n", "1M"], LD_PRELOAD=PRELOAD)
            eventually(lambda asking=asking: not asking.running(), "the client's end")
            assert asking.status == 0, f"{asking.describe()}\n{serving.describe()}"
        assert serving.running(), serving.describe()
    finally:
        serving.stop(signal.SIGKILL)


@with_most_machines
@pytest.mark.parametrize("way", ["reboot", pytest.param("kill", marks=pytest.mark.nightly)])
def test_a_machine_ends(world, way):
    """The things of its programs are free, and programs of others see an error; it can boot again."""
    world.need("a1", "a2", "own")
    vm = world.vms["a2"]
    with Busy(world, "a1", "a2"), Busy(world, "a2", "own"):
        if way == "reboot":
            vm.reboot()
        else:
            vm.kill()
            vm.start()
        vm.boot()
    # Only a program of the new kernel shows that those of the one before are gone.
    assert vm.programs.start(["ibv_devinfo"]).wait() == 0
    world.expect_clean()
    meet(world.sides["a1"], world.sides["a2"], *perftest("ib_write_bw -s 65536"))
    world.expect_clean()


# Writes all over the window, and says all kinds of things to the daemon, for some seconds.
HOSTILE = """
import json, mmap, os, random, socket, struct, threading, time
end = time.monotonic() + 8
size = int(open("/sys/bus/dax/devices/dax0.0/size").read())
window = mmap.mmap(os.open("/dev/dax0.0", os.O_RDWR), size)
def scribble():
    while time.monotonic() < end:
        for _ in range(1000):
            at = random.randrange(size // 4096) * 4096 + random.choice((0, 64, 128, random.randrange(4096 - 64)))
            window[at:at + 64] = random.choice((bytes(64), b"\\xff" * 64, os.urandom(64)))
def speak():
    bodies = ({"ticket": {"ticket": 1}}, {"program": {}}, {"proof": {"nonce": [0] * 32}}, 1, None, [[]] * 1000)
    texts = [json.dumps({"body": body, "along": along}).encode() for body in bodies for along in ([], [1], None)]
    said = [b"", os.urandom(100), struct.pack("<I", 1 << 31)]
    said += [struct.pack("<I", 10) + b"{}", struct.pack("<I", 2) + b"{}"]
    said += [struct.pack("<I", len(text)) + text for text in texts]
    while time.monotonic() < end:
        sockets = [socket.socket(socket.AF_VSOCK) for _ in range(random.randrange(1, 100))]
        for one in sockets:
            try:
                one.settimeout(1)
                one.connect((2, 4791))
                one.sendall(random.choice(said))
            except OSError:
                pass
        for one in sockets:
            one.close()
threads = [threading.Thread(target=each) for each in (scribble, speak)]
for each in threads: each.start()
for each in threads: each.join()
"""


@with_most_machines
def test_a_hostile_machine(world):
    """A hostile machine loses its own data only."""
    world.need("a1", "a2", "own", "b1")
    meeting = Meeting(world.sides["a1"], world.sides["own"], BUSY)
    mean = world.sides["own"].start(["python3", "-c", HOSTILE])
    while mean.running():
        for names in (PAIRS["common window"], PAIRS["two hosts"]):
            meet(*(world.sides[name] for name in names[:2]), *perftest("ib_send_bw -s 4096"))
    assert mean.status == 0, mean.describe()
    for one in meeting.both:
        one.stop(signal.SIGKILL)
    world.expect_clean()
    # A machine that starts anew finds all as it must be.
    world.vms["own"].kill()
    world.vms["own"].start().boot()
    meet(world.sides["a1"], world.sides["own"], *perftest("ib_write_bw -s 65536"))
    world.expect_clean()


@with_most_machines
def test_users_in_a_machine_need_only_the_package(world):
    """They need a rule, libraries and a group: what `make package` packs, installed into the machine's own files. A
    window is for one user."""
    world.need("a1", "b1")
    vm = world.vms["b1"]
    inside = lambda *words: vm.run(["chroot", "/system", *words])
    inside("env", f"VIADUCT_BIN={binaries()}", REPOSITORY / "dist/install-guest")
    inside("sh", "-c", "systemd-sysusers && /sbin/ldconfig")
    in_udev = lambda line: inside("env", "SYSTEMD_IGNORE_CHROOT=1", "sh", "-c", line)
    trigger = "udevadm trigger --settle --subsystem-match=dax"
    owner = lambda: inside("stat", "-c", "%U %G %a", "/dev/dax0.0").stdout.strip()
    in_udev(f"/lib/systemd/systemd-udevd --daemon && {trigger}")
    assert owner() == "root root 600"
    # A user, and what the user's programs are told of devices.
    user = lambda name: ["setpriv", f"--reuid={name}", f"--regid={name}", "--init-groups"]

    def told(name):
        run = Inside(vm, {}, user(name)).start(["ibv_devices"])
        run.wait()
        return run.text()

    for name in ("alice", "bob"):
        inside("/usr/sbin/useradd", "--user-group", name)
    inside("/usr/sbin/usermod", "--append", "--groups", "rdma", "alice")
    in_udev(trigger)
    assert (owner(), "viaduct0" in told("alice"), "viaduct0" in told("bob")) == ("alice root 600", True, False)
    with Meeting(Inside(vm, {}, user("alice")), world.sides["a1"], perftest("ib_write_bw -s 65536")) as run:
        run.expect_success()
    world.expect_clean()
    # One more member, who would reach alice's memory: nobody has the window, before they have settled that.
    inside("/usr/sbin/usermod", "--append", "--groups", "rdma", "bob")
    assert "viaduct0" not in told("bob")
    in_udev(trigger)
    assert (owner(), "viaduct0" in told("alice"), "viaduct0" in told("bob")) == ("root root 600", False, False)


@with_most_machines
def test_a_window_is_unplugged(world):
    """QEMU refuses that, and all goes on. If the machine's kernel lets go of the window by itself, its programs end,
    and no others."""
    world.need("a1", "a2", "own", "b1")
    vm = world.vms["b1"]
    pmem = "cd /sys/bus/virtio/drivers/virtio_pmem && for each in /sys/bus/virtio/devices/*; do"
    pmem += " [ $(cat $each/device) != 0x001b ] || echo ${each##*/} >%s; done"
    with Busy(world, "a1", "b1") as meeting, Busy(world, "a1", "a2") as others:
        for name in PLUGS:
            with pytest.raises(Failed, match="unplug"):
                world.vms[name].qmp("device_del", id="window-own")
        assert all(one.running() for one in meeting.both), meeting.describe()
        vm.shell(pmem % "unbind")
        eventually(lambda: not any(one.running() for one in meeting.both), f"their ends: {meeting.describe()}")
        assert meeting.client.status == 128 + signal.SIGBUS, meeting.describe()
        assert all(one.running() for one in others.both), others.describe()
    world.expect_clean()
    vm.shell(f"{pmem % 'bind'}; until ls /dev/dax*; do sleep 0.1; done", timeout=PATIENCE)
    meet(world.sides["a1"], vm.programs, *perftest("ib_write_bw -s 65536"))
    world.expect_clean()


# One installation for two nodes, each a machine with a daemon of its own, as in a cluster.
NODES = {"a2": 1, "b1": 2}
SHARED = "/opt/viaduct"


def installation(directory, world):
    """Puts together all that nodes need: programs, libraries, their configurations."""
    for kind, names in {"bin": ["viaductd", "viaduct"], "lib": ["libibverbs.so.1", "librdmacm.so.1"]}.items():
        (directory / kind).mkdir()
        for name in names:
            built = binaries() / ("verbs" if kind == "lib" else "") / name
            subprocess.run(["strip", "-o", directory / kind / name, built], check=True)
    for name, number in NODES.items():
        own, other = (world.vms[node].entry["addresses"][0] for node in (name, *(NODES.keys() - {name})))
        config = Config(name, tunnel_source=own)
        config.add("wire", name="up0", driver="af-packet", device="eth0", addresses=[f"{own}/24"], mtu=1500)
        config.add("network", name="jobs", vrf=1, gateways=["10.9.0.254/24"])
        keys = {"mac": f"02:00:00:00:09:{number:02x}", "addresses": [f"10.9.0.{number}"], "label": 100 + number}
        config.add("guest", name="job", network="jobs", **verbs(rdma="job", **keys))
        hop = {"tunnel": "mpls-over-udp", "remote": other, "label": 103 - number}
        config.add("route", network="jobs", prefix=f"10.9.0.{3 - number}/32", to=[hop])
        (directory / "etc" / name).mkdir(parents=True)
        (directory / "etc" / name / "host.toml").write_text(config.text())
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o755)
    return directory


@with_most_machines
@pytest.mark.nightly
def test_two_nodes_with_one_installation_on_nfs(world, shared_lab):
    """Nodes run from a read-only installation, with a run-dir and a state-dir on each. The third machine serves it."""
    world.need("a2", "b1", "b2")
    directory = shared_lab.directory / "installation"
    directory.mkdir()
    nfs.serve(world.vms["b2"], installation(directory, world))
    sides, daemons = [], []
    for name in NODES:
        vm = world.vms[name]
        nfs.mount(vm, world.vms["b2"], SHARED)
        vm.shell("mkdir -p /system/run/node /system/var/lib/node")
        assert "Read-only" in vm.run(["touch", f"/system{SHARED}/etc/new"], check=False).stdout
        words = [f"{SHARED}/bin/viaductd", "--config", f"{SHARED}/etc/{name}/host.toml"]
        daemons += [Inside(vm, {}).start([*words, "--run-dir", "/run/node", "--state-dir", "/var/lib/node"])]
        sides += [Inside(vm, {"LD_LIBRARY_PATH": f"{SHARED}/lib", "VIADUCT_RDMA": "/run/node/rdma/job"})]
    try:
        for daemon in daemons:
            eventually(lambda: "ready" in daemon.text().split() or not daemon.running(), daemon.describe())
            assert daemon.running(), daemon.describe()
        for run in ("ib_write_bw -s 65536", "ib_send_lat -c UD -s 512"):
            meet(*sides, *perftest(run))
        told = world.vms["a2"].run(["chroot", "/system", f"{SHARED}/bin/viaduct", "--run-dir", "/run/node", "rdma"])
        assert "job" in told.stdout
    finally:
        for daemon in daemons:
            daemon.stop()
    for name in NODES:
        world.vms[name].shell(f"ls /system/var/lib/node/store.* && umount /system{SHARED}")
