"""Verbs, sockets and MPI between two virtual machines."""

import json
import sys
from pathlib import Path

from ..devices.verbs import LAB, urgent
from ..machine import Noise
from ..process import Failed
from . import Case, Point, point
from .netpipe import RSOCKETS, netpipe_curve
from .verbs import LEAST, of_curve

ORDER = 11
REMOTE = Path(__file__).resolve().parents[2] / "tests/mpi/remote"
PORT = 18515
SIZES = {"64 KiB": 1 << 16, "256 KiB": 1 << 18, "1 MiB": 1 << 20}
WAYS = ["vm-common", "vm-own", "vm-rxe", "vm-hosts", "vm-rxe-hosts"]
# Messages of 8 bytes for a latency, by way: a second or two.
MESSAGES = {"vm-common": 20_000, "vm-own": 4000}
# Message sizes of the curves.
CURVE = [8 * 4**step for step in range(9)]
NETPIPE = ["-l", str(CURVE[0]), "-u", str(CURVE[-1]), "-p", "0", "-n", "50"]


def together(server, client, program, *options, timeout=120):
    """Runs a program in both machines, and asks neither anything meanwhile. Returns what the client printed."""
    from lab import eventually

    words = lambda side: [program, "-d", side.device_name, "-x", 1, "-F", "-p", PORT, *options]
    serving = server.start(words(server))
    try:
        eventually(lambda: server.listens(PORT) or not serving.running(), f"a listener: {serving.describe()}", 60)
        output = client.run([*words(client), server.address], timeout=timeout)
        serving.wait()
    finally:
        serving.stop()
    return output


def perftest(device, program, *options):
    """Runs a program of perftest, and returns its rows by size."""
    from lab.perftest import rows

    more = ["--report_gbits"] if program.endswith("_bw") else []
    output = together(device.server, device.client, program, *more, *options)
    return {row.bytes: row for row in rows(program, output)}


def tcp(device, *sizes, server=None, **environment):
    """Returns NetPIPE's curve over sockets, to the other machine or within one."""
    from lab import eventually

    client, server = device.client, server or device.server
    listening = server.start(["NPtcp", *sizes], **environment)
    # A listener of rsockets belongs to the connection manager.
    ready = server.answers if environment.get("LD_PRELOAD") == str(RSOCKETS) else lambda: server.listens(5002)
    try:
        eventually(lambda: ready() or not listening.running(), f"a listener: {listening.describe()}", 60)
        client.run(["NPtcp", "-h", server.address, *sizes, "-o", "netpipe.out"], timeout=240, **environment)
    finally:
        listening.stop()
    return netpipe_curve(client.run(["cat", "netpipe.out"]))


def moved(device, *sizes):
    """Returns NetPIPE's curve over sockets that the library moves to the window of both machines."""
    from lab.host import binary

    before, agents = device.moved(), [side.start([binary("viaduct-agent")]) for side in (device.client, device.server)]
    library = {"LD_PRELOAD": binary("verbs/libviaduct-sockets.so.1"), "VIADUCT_SOCKETS": "/run/viaduct/sockets.sock"}
    try:
        for machine in device.machines:
            machine.shell("until [ -S /system/run/viaduct/sockets.sock ]; do sleep 0.1; done")
        curve = tcp(device, *sizes, **library)
    finally:
        for agent in agents:
            agent.stop()
    if device.moved() == before:
        raise Failed("the connection stayed with TCP")
    return curve


# Settings of Open MPI. UCX looks in /sys only for the kind of IPv4 GIDs. It may give up while it connects on a
# machine whose processors are shared, which a slow timer prevents.
OVER = {
    "verbs": (
        ["pml", "ucx", "--mca", "btl", "^openib,vader,tcp"],
        {"UCX_TLS": "rc_verbs,ud_verbs,self", "UCX_NET_DEVICES": "viaduct0:1", "UCX_IB_GID_INDEX": "2"}
        | {"UCX_UD_VERBS_TIMER_TICK": "10s"},
    ),
    "TCP": (["pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "10.1.1.0/24"], {}),
}


def mpi(device, over, *sizes):
    """Returns NetPIPE's curve over Open MPI, with a rank in each machine."""
    from lab import eventually

    sides, (how, variables) = (device.client, device.server), OVER[over]
    environment = {**variables, "HOME": "/tmp"}
    remotes = [side.start([REMOTE, "serve"], **environment) for side in sides]
    try:
        eventually(lambda: all(side.listens(2222) for side in sides), "tests/mpi/remote", 60)
        words = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-np", 2, "--mca", *how]
        words += ["--mca", "plm_rsh_agent", REMOTE, "--mca", "oob_tcp_if_include", "10.1.1.0/24"]
        words += ["--host", ",".join(side.address for side in sides), "NPopenmpi", *sizes, "-o", "/tmp/netpipe.out"]
        device.client.run(words, timeout=300, **environment)
    finally:
        for remote in remotes:
            remote.stop()
    return netpipe_curve(device.client.run(["cat", "netpipe.out"]))


class MachinesPoint(Point):
    """Each machine has a CPU of this one, and the daemons run where there is room. All have priority over everything
    else."""

    section = "vm"
    scale = "log"

    def measure(self, session):
        import lab

        try:
            with urgent(), Noise(session.device.pids) as noise:
                metrics = self.metrics(session, session.device, session.case.key)
        except lab.Failed as failed:
            raise Failed(str(failed)) from None
        return metrics | {"others": noise.others, "steal": noise.steal, "contaminated": noise.contaminated}

    def metrics(self, session, device, key):
        raise NotImplementedError


@point
class MachinesLatency(MachinesPoint):
    name = "vm-verbs"
    title = "Verbs between two virtual machines, against Soft-RoCE: latency of 8 bytes"
    about = (
        "Half a round trip of ib_send_lat and ib_write_lat, all of it of ib_read_lat, medians; the same programs in "
        "machines of the same kernel, once by our libraries, once by the kernel's rdma_rxe over virtio-net. Of a send, "
        "the better of two: both programs poll, or both sleep until an event."
    )
    metric = "latency"

    def cases(self, quick):
        for operation in ("send", "write", "read")[: 1 if quick else None]:
            yield Case({"operation": operation}, list(WAYS))

    def metrics(self, session, device, key):
        words = [f"ib_{key['operation']}_lat", "-s", LEAST, "-n", MESSAGES.get(device.name, 500)]
        found = {"polled": perftest(device, *words)[LEAST].latency}
        if key["operation"] == "send":
            found["by_events"] = perftest(device, *words[:-1], 500, "-e")[LEAST].latency
        return {"latency": min(found.values()), **found}


@point
class MachinesBandwidth(MachinesPoint):
    name = "vm-verbs-bandwidth"
    title = "Verbs between two virtual machines, against Soft-RoCE: bandwidth"
    about = "ib_write_bw of the same machines, which polls; ib_send_bw that sleeps until events."
    metric = "gbps"

    def cases(self, quick):
        for title in list(SIZES)[: 1 if quick else None]:
            yield Case({"operation": "write", "size": title}, list(WAYS))
        yield Case({"operation": "send by events", "size": "64 KiB"}, list(WAYS))

    def metrics(self, session, device, key):
        size, events = SIZES[key["size"]], "events" in key["operation"]
        options = ["-n", 2000 if device.name == "vm-common" else 200, "-e"] if events else ["-D", 2]
        return {"gbps": perftest(device, "ib_send_bw" if events else "ib_write_bw", "-s", size, *options)[size].gbps}


def by_size(measure):
    """Makes a curve from `measure`, which returns the microseconds of a message and the Gbit/s for a size."""
    found = {size: measure(size) for size in CURVE}
    return [{"bytes": size, "us": us, "mbps": gbps * 1000} for size, (us, gbps) in found.items()]


def verbs_curve(device):
    """Returns the curve of ib_send_lat and ib_write_bw. Soft-RoCE waits for events, which is better for it if a
    program has one CPU."""
    quick = {"vm-common": 20, "vm-own": 2}.get(device.name, 1)
    rate, more = ("ib_send_bw", ["-e"]) if "rxe" in device.name else ("ib_write_bw", [])

    def measure(size):
        messages = quick * (200 if size <= 1 << 16 else 40)
        latency = perftest(device, "ib_send_lat", "-s", size, "-n", messages, *more)[size].latency
        return latency, perftest(device, rate, "-s", size, "-n", messages, *more)[size].gbps

    return by_size(measure)


def memcpy_curve(session, device):
    def measure(size):
        copied = json.loads(device.client.run([session.programs / "memory", "memcpy", 200, 0, size]))
        return copied["latency"], copied["gbps"]

    return by_size(measure)


@point
class MachinesSizes(MachinesPoint):
    name = "vm-sizes"
    about = (
        "Verbs: latency of ib_send_lat, bandwidth of ib_write_bw, which has many writes under way (Soft-RoCE: of "
        "ib_send_bw, by events). NetPIPE by sockets and by Open MPI: its bandwidth is that of a message that goes back "
        "and forth."
    )
    metric = "gbps"
    # By measurement and device.
    LABELS = {
        ("verbs", "vm-common"): "VM to VM, shared memory: verbs",
        ("MPI over verbs", "vm-common"): "VM to VM, shared memory: MPI",
        ("sockets", "vm-common"): "VM to VM, Ethernet through the switch: sockets",
        ("MPI over TCP", "vm-common"): "VM to VM, Ethernet through the switch: MPI",
        ("verbs", "vm-hosts"): "VM to VM, RDMA between hosts: verbs",
        ("MPI over verbs", "vm-hosts"): "VM to VM, RDMA between hosts: MPI",
        ("sockets", "vm-hosts"): "VM to VM, Ethernet between hosts: sockets",
        ("verbs", "vm-own"): "VM to VM, windows of their own: verbs",
        ("verbs", "vm-rxe"): "VM to VM, Soft-RoCE through the switch: verbs",
        ("rsockets", "vm-rxe"): "VM to VM, Soft-RoCE through the switch: rsockets",
        ("loopback", "vm-rxe"): "limit: sockets within a VM",
        ("memcpy", "vm-rxe"): "limit: memcpy within a VM",
    }

    @property
    def title(self):
        sys.path.insert(0, str(LAB))
        from lab.vm import accelerator

        how = "with KVM" if accelerator() == "kvm" else "translated by QEMU (TCG), not run by KVM"
        return f"Between two virtual machines, {how}"

    def label(self, device, title, case, alone):
        return self.LABELS[case["by"], device]

    def cases(self, quick):
        for by in dict.fromkeys(by for by, _ in self.LABELS):
            devices = [device for other, device in self.LABELS if other == by]
            if by == "rsockets" and not RSOCKETS:
                continue
            if not quick or by in ("verbs", "sockets"):
                yield Case({"by": by}, devices[: 1 if quick else None], rounds=3)

    def metrics(self, session, device, key):
        how = {
            "verbs": lambda: verbs_curve(device),
            "sockets": lambda: tcp(device, *NETPIPE),
            "loopback": lambda: tcp(device, *NETPIPE, server=device.client),
            "rsockets": lambda: tcp(device, *NETPIPE, LD_PRELOAD=str(RSOCKETS)),
            "memcpy": lambda: memcpy_curve(session, device),
            "MPI over verbs": lambda: mpi(device, "verbs", *NETPIPE),
            "MPI over TCP": lambda: mpi(device, "TCP", *NETPIPE),
        }
        return of_curve(how[key["by"]]())
