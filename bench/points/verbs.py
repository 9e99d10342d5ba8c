"""Verbs: latency and bandwidth, beside those of sockets, MPI and the best that the machine can do."""

import csv
import json
import os
import stat
from pathlib import Path

from ..devices import verbs
from ..machine import DEVICE_CPU, GENERATOR_CPU, Noise
from ..process import Failed, run
from . import Case, Point, point
from .netpipe import RSOCKETS, iperf3, netpipe, netpipe_curve, wait_for_port

ORDER = 10
SIZES = {"64 KiB": 1 << 16, "1 MiB": 1 << 20, "4 MiB": 1 << 22}
LEAST, MOST = 8, 1 << 22
UVERBS = Path("/dev/infiniband/uverbs0")
# Modes of `memory`, by device and operation.
SYSTEM_CALLS = {
    "proc-mem": {"write": "pwrite", "read": "pread"},
    "process-vm": {"write": "process_vm_writev", "read": "process_vm_readv"},
    "memcpy": {"write": "memcpy"},
}
# Messages for a latency: about a second, or less if daemons and programs want the same CPUs.
MESSAGES = {"verbs-shared": 100_000, "verbs-regions": 100_000, "verbs-copy": 10_000, "verbs-roce": 1000}


class VerbsPoint(Point):
    """The programs have a CPU each, and daemons run where there is room. All have priority over everything else on
    the machine."""

    section = "verbs"
    scale = "log"

    def measure(self, session):
        import lab

        device, case = session.device, session.case
        try:
            with verbs.urgent(), Noise(device.pids) as noise:
                metrics = self.metrics(session, device, case.key)
        except lab.Failed as failed:
            raise Failed(str(failed)) from None
        return metrics | {"others": noise.others, "steal": noise.steal, "contaminated": noise.contaminated}

    def metrics(self, session, device, key):
        raise NotImplementedError


def pinned(cores=2):
    """Returns the words in front of the two programs, for a CPU each or one for both."""
    return ["taskset", "-c", str(GENERATOR_CPU if cores == 2 else DEVICE_CPU)], ["taskset", "-c", str(DEVICE_CPU)]


def perftest(device, program, *options, cores=2):
    """Runs a program of perftest, and returns its rows by size."""
    from lab.perftest import perftest

    prefixes = [[*(["env"] if device.environment else []), *device.environment, *cpu] for cpu in pinned(cores)]
    rows = perftest(program, device.client, device.server, device.address, *options, prefixes=prefixes)
    return {row.bytes: row for row in rows}


def memory(session, *words):
    return json.loads(run(session.programs / "memory", *words))


def cache_line(session, repeats=500):
    """Returns the microseconds that a cache line takes from one of the two CPUs to the other."""
    return memory(session, "ping-pong", repeats, GENERATOR_CPU, DEVICE_CPU)["latency"]


def beside_cache_line(session, measure):
    """Measures a latency, also as a multiple of a cache line's way. Measures again if that way changed meanwhile: a
    hypervisor may make two CPUs now two cores, now two threads of one."""
    for _ in range(8):
        before, latency, after = cache_line(session, 200), measure(), cache_line(session, 200)
        if max(before, after) < 1.3 * min(before, after):
            break
    line = (before + after) / 2
    return {"latency": latency, "line": line, "lines": latency / line}


def mpi(device, least, most, repeats):
    """Returns NetPIPE's curve over Open MPI, over shared memory or the guests' devices."""
    file = device.client.namespace.directory / f"netpipe-{device.name}.out"
    words = ["mpirun", "--allow-run-as-root", "--bind-to", "core", "-np", 2, "--mca"]
    words += ["pml", "ob1", "--mca", "btl", "vader,self"] if device.name == "mpi-vader" else over_verbs(device)
    words += ["NPopenmpi", "-l", least, "-u", most, "-n", repeats, "-p", 0, "-o", file]
    device.client.run(words, timeout=240)
    return netpipe_curve(file.read_text())


def over_verbs(device):
    """Returns the settings of Open MPI for UCX on the guests' devices, with a rank each. UCX does not look in /sys
    for the kind of IPv6 addresses."""
    from lab.perftest import libraries

    # UCX looks for this file before it tries verbs.
    UVERBS.parent.mkdir(exist_ok=True)
    if not UVERBS.exists():
        os.mknod(UVERBS, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    variables = {"UCX_TLS": "rc_verbs,ud_verbs,self", "UCX_NET_DEVICES": "viaduct0:1", "UCX_IB_GID_INDEX": "2"}
    # Huge pages can't move to a window, so UCX must do without.
    variables |= {"LD_LIBRARY_PATH": libraries(), "UCX_IB_ALLOC": "thp,md,mmap,heap"}
    options = [
        "pml",
        "ucx",
        "--mca",
        "btl",
        "^openib,vader,tcp",
        *(word for item in variables.items() for word in ("-x", "=".join(map(str, item)))),
    ]
    of_ranks = " ".join(f'"{place.verbs_device}"' for place in (device.client, device.server))
    rank = f'all=({of_ranks}); VIADUCT_RDMA=${{all[OMPI_COMM_WORLD_RANK]}} exec "$@"'
    return [*options, "bash", "-c", rank, "rank"]


def ucx(device):
    """Returns the median of ucx_perftest, in microseconds."""
    own, others = pinned()
    words = ["ucx_perftest", "-d", "memory", "-x", "posix"]
    listening = device.server.background([*others, *words], "ucx")
    try:
        wait_for_port(device.server, 13337)
        asked = [*own, *words, device.address, "-t", "am_lat", "-D", "short", "-s", LEAST, "-n", 200_000, "-f", "-v"]
        output = device.client.run(asked).stdout
    finally:
        listening.stop()
    return float(list(csv.DictReader(output.splitlines()))[-1]["50.0_percentile_lat"])


def tcp(device, least, most, repeats, cores=2):
    sizes = ["-l", str(least), "-u", str(most), "-n", str(repeats), "-p", "0"]
    return netpipe(device.client, device.server, device.address, sizes, pinned(cores))["curve"]


def rsockets(device, least, most, repeats):
    """Returns NetPIPE's curve over sockets that are RDMA, for which it needs no change."""
    from lab import eventually
    from lab.perftest import with_device

    sizes = ["-l", str(least), "-u", str(most), "-n", str(repeats), "-p", "0"]
    sides, preload = (device.client, device.server), f"LD_PRELOAD={RSOCKETS}"
    prefixes = [with_device(side, [preload, *cpu]) for side, cpu in zip(sides, pinned())]
    listens = lambda: "listen" in device.server.host.call("rdma", "cm").stdout.split()
    wait = lambda: eventually(listens, "a listener")
    return netpipe(*sides, device.address, sizes, prefixes, wait)["curve"]


@point
class VerbsLatency(VerbsPoint):
    name = "verbs-latency"
    title = "Verbs: latency of 8 bytes"
    about = (
        "Half a round trip; of a read, and of a system call that copies, all of it. perftest, UCX and the bare "
        "figures are medians of single messages or small batches, NetPIPE's are means, the best of a few. Polled: "
        "both programs wait for messages without sleeping, with a CPU each or both on one. `lines`: the same in ways "
        "of a cache line between these CPUs, measured right before and after. On two hosts, or with copies by the "
        "daemon, the daemons want CPUs too, which a machine with two doesn't have."
    )
    metric = "latency"

    def cases(self, quick):
        bare = ["cache-line", "proc-mem", "process-vm"]
        own, peers = ["verbs-shared", "verbs-copy", "verbs-roce"], [
            "tcp-loopback",
            "tcp-overlay",
            "mpi-verbs",
            "mpi-vader",
        ]
        # Cases that are compared with each other come right after each other.
        for operation, cpus, devices in (
            ("send", 2, ["verbs-shared", "ucx-posix", "cache-line", *own[1:], *peers]),
            ("write", 2, ["verbs-shared", *bare, "verbs-regions", "verbs-copy"]),
            ("read", 2, ["verbs-shared", *bare, "verbs-regions", "verbs-copy"]),
            ("atomic", 2, ["verbs-shared", "verbs-regions"]),
            ("send by events", 2, own),
            ("send", 1, ["verbs-shared", "tcp-loopback"]),
        ):
            yield Case({"operation": operation, "cpus": cpus}, verbs.installed(devices))

    def metrics(self, session, device, key):
        operation, name = key["operation"].split()[0], device.name
        if name == "cache-line":
            return {"latency": cache_line(session)}
        if name in SYSTEM_CALLS:
            return {"latency": memory(session, SYSTEM_CALLS[name][operation], 500, GENERATOR_CPU, LEAST)["latency"]}
        if name == "ucx-posix":
            return {"latency": ucx(device)}
        if name.startswith("mpi-"):
            return {"latency": mpi(device, LEAST, LEAST, 50_000)[0]["us"]}
        if name.startswith("tcp-"):
            return {"latency": tcp(device, LEAST, LEAST, 2000, key["cpus"])[0]["us"]}
        # On one CPU, each way may take a slice of its time.
        messages = MESSAGES[name] // (1 if key["cpus"] == 2 else 50)
        options = ["-s", LEAST, "-n", int(messages * session.case.seconds)]
        options += ["-e"] if "events" in key["operation"] else []
        measure = lambda: perftest(device, f"ib_{operation}_lat", *options, cores=key["cpus"])[
            LEAST
        ].latency
        if name in ("verbs-shared", "verbs-regions") and key["cpus"] == 2 and "events" not in key["operation"]:
            return beside_cache_line(session, measure)
        return {"latency": measure()}


@point
class VerbsBandwidth(VerbsPoint):
    name = "verbs-bandwidth"
    title = "Verbs: bandwidth"
    about = (
        "Writes (ib_write_bw, a second each) from one heap to another one, or to a region that is mapped; copies "
        "from one buffer to another, the same two all the time as perftest has them; iperf3 with writes of this "
        "size, 1 MiB at most."
    )
    metric = "gbps"

    def cases(self, quick):
        for title, size in list(SIZES.items())[: 1 if quick else None]:
            devices = ["verbs-shared", "proc-mem", "process-vm", "verbs-regions", "memcpy", "verbs-copy"]
            sockets = ["tcp-loopback", "tcp-overlay"] if size <= 1 << 20 else []
            yield Case({"size": title}, [*devices, "verbs-roce-xdp", *sockets, "verbs-roce", "verbs-roce-regions"])

    def metrics(self, session, device, key):
        size = SIZES[key["size"]]
        if device.name in SYSTEM_CALLS:
            call = SYSTEM_CALLS[device.name]["write"]
            return {"gbps": memory(session, call, int(1000 * session.case.seconds), GENERATOR_CPU, size)["gbps"]}
        if device.name.startswith("tcp-"):
            return iperf3(device.client, device.server, device.address, 1, ["-l", str(size)], pinned())
        return {"gbps": perftest(device, "ib_write_bw", "-s", size, "-D", 1)[size].gbps}


WINDOWS = ["verbs-regions", "verbs-common", "verbs-own", "verbs-copy"]
# Messages of a latency that the daemon copies.
COPIED = 10_000


@point
class VerbsWindows(VerbsPoint):
    name = "verbs-windows"
    title = "Verbs by windows, as in virtual machines: latency of 8 bytes"
    about = (
        "Programs on this machine that map windows as those in two virtual machines do, beside those of containers, "
        "which share regions in files or have the daemon copy: half a round trip of ib_send_lat and ib_write_lat, all "
        "of it of ib_read_lat."
    )
    metric = "latency"

    def cases(self, quick):
        for operation in ("send", "write", "read")[: 1 if quick else None]:
            yield Case({"operation": operation}, WINDOWS)

    def metrics(self, session, device, key):
        is_copied = device.name in ("verbs-own", "verbs-copy")
        messages = COPIED if is_copied else 10 * COPIED
        options = ["-s", LEAST, "-n", int(messages * session.case.seconds)]
        measure = lambda: perftest(device, f"ib_{key['operation']}_lat", *options)[LEAST].latency
        return {"latency": measure()} if is_copied else beside_cache_line(session, measure)


@point
class VerbsWindowsPolled(VerbsPoint):
    name = "verbs-windows-polled"
    title = "Verbs by windows of their own, where the daemon has a CPU to poll: latency of 8 bytes"
    about = (
        "One thread plays both programs, with a window or a container's device each, so that the daemon has the other "
        "of two CPUs: half a round trip of sends and writes, all of it of reads. Shared regions, which need no daemon, "
        "then stay in the caches of one CPU: nothing comes from another one. Beside them the same regions between two "
        "programs that poll, with a CPU each (perftest), as any two programs are that don't share one."
    )
    metric = "latency"

    def cases(self, quick):
        for operation in ("send", "write", "read")[: 1 if quick else None]:
            yield Case({"operation": operation}, ["verbs-regions", "verbs-regions-apart", "verbs-own"])

    def metrics(self, session, device, key):
        from lab.perftest import libraries

        if device.name == "verbs-regions-apart":
            options = ["-s", LEAST, "-n", int(MESSAGES["verbs-regions"] * session.case.seconds)]
            apart = lambda: perftest(device, f"ib_{key['operation']}_lat", *options)[LEAST].latency
            return beside_cache_line(session, apart)
        both = f"VIADUCT_RDMA={device.client.verbs_device}:{device.server.verbs_device}"
        milliseconds = round(400 * session.case.seconds)
        words = [session.programs / "ends", key["operation"], milliseconds, GENERATOR_CPU]
        command = ["env", f"LD_LIBRARY_PATH={libraries()}", both, *device.environment, *map(str, words)]
        return beside_cache_line(session, lambda: json.loads(device.client.run(command).stdout)["latency"])


@point
class VerbsWindowsBandwidth(VerbsPoint):
    name = "verbs-windows-bandwidth"
    title = "Verbs by windows, as in virtual machines: bandwidth"
    about = "ib_write_bw of the same programs, beside copies from one buffer to another."
    metric = "gbps"

    def cases(self, quick):
        for title in list(SIZES)[: 1 if quick else None]:
            yield Case({"size": title}, [*WINDOWS, "memcpy"])

    def metrics(self, session, device, key):
        size = SIZES[key["size"]]
        if device.name == "memcpy":
            words = ("memcpy", int(1000 * session.case.seconds), GENERATOR_CPU, size)
            return {"gbps": memory(session, *words)["gbps"]}
        return {"gbps": perftest(device, "ib_write_bw", "-s", size, "-D", 1)[size].gbps}


@point
class VerbsRegions(VerbsPoint):
    name = "verbs-deregister"
    title = "Verbs: deregistration of memory"
    about = (
        "ibv_dereg_mr of a region of 64 KiB, while peers in processes of their own are connected that wrote to "
        "another region before: it returns when none of them can write any more. `register`: ibv_reg_mr of the same."
    )
    metric = "deregister"

    def cases(self, quick):
        for peers in (1, 8):
            yield Case({"peers": peers}, ["verbs-shared", "verbs-regions"])

    def metrics(self, session, device, key):
        from lab import eventually
        from lab.perftest import with_device

        program, own = session.programs / "regions", ["env", *device.environment]
        words = [program, "listen", key["peers"], 1 << 16, round(2000 * session.case.seconds)]
        listening = device.server.background(with_device(device.server, map(str, words), prefix=own), "regions")
        peers = []
        try:
            eventually(lambda: "listening" in listening.text() or not listening.running(), "a program that listens")
            for number in range(key["peers"]):
                command = with_device(device.client, [str(program), "connect", device.address], prefix=own)
                peers.append(device.client.background(command, f"peer{number}"))
            eventually(lambda: not listening.running(), f"the end of regions\n{listening.describe()}", 60)
            return json.loads(listening.text().splitlines()[-1])
        finally:
            for each in [*peers, listening]:
                each.stop()


@point
class VerbsLoss(VerbsPoint):
    name = "verbs-loss"
    title = "Verbs: bandwidth where packets are lost"
    about = (
        "Writes of 64 KiB between two hosts, over an underlay that loses nothing, and over one that loses one packet "
        "in a thousand."
    )
    metric = "gbps"

    def cases(self, quick):
        yield Case({"size": "64 KiB"}, verbs.installed(["verbs-roce", "verbs-lossy"]), seconds=3.0)

    def metrics(self, session, device, key):
        size, before = SIZES[key["size"]], self.told(device)
        rows = perftest(device, "ib_write_bw", "-s", size, "-D", max(1, round(session.case.seconds)))
        return {"gbps": rows[size].gbps, "told": self.told(device) - before}

    def told(self, device):
        """Returns how often the receiver told the sender that a packet is missing."""
        return device.client.host.viaduct("rdma", "show", "a1")["counters"]["packet_seq_err"]


@point
class VerbsSizes(VerbsPoint):
    name = "verbs-sizes"
    title = "Verbs: 8 bytes to 4 MiB"
    about = (
        "Latency of ib_send_lat, bandwidth of ib_write_bw, which has many writes under way; NetPIPE for the others, "
        "whose bandwidth is that of a message that goes back and forth. The table has the best bandwidth."
    )
    metric = "gbps"

    def cases(self, quick):
        own = ["verbs-shared", "verbs-regions", "verbs-copy", "verbs-roce"]
        sockets = ["tcp-loopback", "tcp-veth", "tcp-bridge", "tcp-one-host", "tcp-overlay"]
        devices = own[:1] if quick else [*own, *sockets, "mpi-vader"]
        yield Case({"message": "8 B to 4 MiB"}, verbs.installed(devices), rounds=3)

    def metrics(self, session, device, key):
        if device.name == "mpi-vader":
            curve = mpi(device, LEAST, MOST, 100)
        elif device.name.startswith("tcp-"):
            curve = tcp(device, LEAST, MOST, 10 if device.name in ("tcp-one-host", "tcp-overlay") else 50)
        else:
            curve = verbs_curve(device)
        return of_curve(curve)


# How often each size is measured: latency, bandwidth.
OFTEN = dict.fromkeys(("verbs-shared", "verbs-regions", "verbs-common"), (1000, 400))
OFTEN |= dict.fromkeys(("verbs-copy", "verbs-own"), (200, 100))


def verbs_curve(device):
    """Returns the curve of ib_send_lat and ib_write_bw."""
    messages, writes = OFTEN.get(device.name, (20, 10))
    latencies = perftest(device, "ib_send_lat", "-a", "-n", messages)
    rates = perftest(device, "ib_write_bw", "-a", "-n", writes)
    sizes = sorted(size for size in latencies.keys() & rates.keys() if LEAST <= size <= MOST)
    return [{"bytes": size, "mbps": rates[size].gbps * 1000, "us": latencies[size].latency} for size in sizes]


def of_curve(curve):
    """Makes the sample of a curve."""
    return {"gbps": max(row["mbps"] for row in curve) / 1000, "latency": curve[0]["us"], "curve": curve}
