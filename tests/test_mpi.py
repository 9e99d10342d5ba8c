"""Open MPI over UCX, unmodified, on verbs devices: ranks of two guests, on one host and on two."""

import contextlib
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab import Beside
from lab.host import REPOSITORY, binary
from lab.marks import at_night
from lab.topology import host_config, tunnel_routes, two_verbs_hosts, verbs, vhost

# UCX before 1.20 aborts when it retransmits a request for a connection whose answer is under way (openucx/ucx#8743),
# which a slow timer prevents where ranks wait for CPUs.
UCX = {"UCX_TLS": "rc_verbs,ud_verbs,self", "UCX_NET_DEVICES": "viaduct0:1", "UCX_UD_VERBS_TIMER_TICK": "10s"}
# IPv6 addresses are the devices' third GIDs. That IPv4 ones are of RoCE v2 UCX wants to read in /sys.
IPV6 = {"UCX_IB_GID_INDEX": "2"}
# Where ranks find in /sys what `viaduct rdma tree` wrote.
MOUNTED = REPOSITORY / "dist/with-rdma-tree"
MPIRUN = [
    "mpirun",
    "--allow-run-as-root",
    "--oversubscribe",
    "--mca",
    "pml",
    "ucx",
    "--mca",
    "btl",
    "^openib,vader,tcp",
]
# UCX looks for it before it tries verbs; nothing is done with it.
DEVICE_FILE = Path("/dev/infiniband/uverbs0")


@pytest.fixture(scope="module", autouse=True)
def device_file():
    DEVICE_FILE.parent.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mknod(DEVICE_FILE, 0o600 | 0o020000, os.makedev(1, 3))


def mpirun(devices, ranks, *words, trees=None, timeout=600):
    """Runs a program with so many ranks, which use the devices by turns, and find the devices' trees; returns what it
    printed."""
    sockets = " ".join(str(device.socket) for device in devices)
    rank = 'all=($SOCKETS); export VIADUCT_RDMA=${all[OMPI_COMM_WORLD_RANK % ${#all[@]}]}; '
    rank += 'exec "$@"' if trees is None else f'exec {MOUNTED} {trees}/${{VIADUCT_RDMA##*/}} "$@"'
    libraries = binary("verbs/libibverbs.so.1").parent
    environment = {
        **os.environ,
        **UCX,
        **(IPV6 if trees is None else {}),
        "LD_LIBRARY_PATH": str(libraries),
        "SOCKETS": sockets,
    }
    command = [*MPIRUN, "-np", str(ranks), "bash", "-c", rank, "rank", *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout + done.stderr


def built(directory, name):
    """Builds a program of tests/mpi."""
    program = directory / name
    subprocess.run(["mpicc", "-O2", "-o", program, REPOSITORY / f"tests/mpi/{name}.c"], check=True)
    return program


@pytest.fixture(scope="module")
def collective(tmp_path_factory):
    return built(tmp_path_factory.mktemp("mpi"), "collective")


ONE_HOST = ["copy", at_night("shared"), at_night("files")]


@pytest.fixture(scope="module", params=ONE_HOST)
def one_host(request, shared_lab):
    """Starts two devices of one host: the daemon copies; memory is shared; and regions are in files."""
    trust = {} if request.param == "copy" else {"rdma_trust": "job"}
    config = host_config(f"mpi-{request.param}", {"a1": verbs(**trust), "a2": verbs(**trust)}, wire=False)
    host = shared_lab.host(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIADUCT_RDMA_SHARE", "1" if request.param == "files" else "0")
        yield [shared_lab.verbs(host, guest) for guest in ("a1", "a2")]


def test_collectives_of_four_ranks(one_host, collective):
    assert "4 ranks, 0 wrong" in mpirun(one_host, 4, collective)


@pytest.mark.nightly
def test_netpipe(one_host, tmp_path):
    printed = mpirun(
        one_host, 2, "NPopenmpi", "-l", 8, "-u", 65536, "-n", 20, "-p", 0, "-i", "-o", tmp_path / "np.out"
    )
    assert printed.count("Integrity check passed") > 20 and "failed" not in printed


@pytest.mark.parametrize("way", ["copy", at_night("shared")])
def test_memory_of_each_kind(lab, way):
    """Programs of virtual machines send from and receive to any memory, also what can't move to a window. They run here
    beside the machines, with the same windows."""
    keys = {"window_mb": 256, **({"rdma_trust": "job"} if way == "shared" else {})}
    guests = {name: vhost(name, rdma=name, **keys) for name in ("a1", "a2")}
    host = lab.host(host_config("a", guests, wire=False))
    places = [Beside(lab.namespace("alone"), host, guest) for guest in guests]
    devices = [SimpleNamespace(socket=place.verbs_device) for place in places]
    printed = mpirun(devices, 2, built(lab.directory, "memory"))
    assert printed.splitlines()[-1] == "0 wrong", printed


@pytest.mark.nightly
def test_between_hosts(lab, collective):
    _, devices = two_verbs_hosts(lab, lambda config, *remotes: tunnel_routes(config, "mpls-over-udp", *remotes))
    assert "4 ranks, 0 wrong" in mpirun(list(devices.values()), 4, collective)


@pytest.mark.nightly
def test_by_ipv4_with_what_is_in_sysfs(lab, collective):
    """Ranks that find in /sys what the kernel has of adapters need not be told which GID to take."""
    devices = list(
        two_verbs_hosts(lab, lambda config, *remotes: tunnel_routes(config, "mpls-over-udp", *remotes))[1].values()
    )
    trees = lab.directory / "trees"
    for device in devices:
        device.host.call("rdma", "tree", trees / device.device, device.device)
    assert "4 ranks, 0 wrong" in mpirun(devices, 4, collective, trees=trees)
