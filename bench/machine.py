"""The machine: its huge pages, its other load, and its description."""

import os
import platform
import resource
import subprocess
from contextlib import contextmanager
from pathlib import Path

GENERATOR_CPU = 0
DEVICE_CPU = 1
HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")
# Gives the kernel contiguous memory: drops the page cache, then compacts the rest.
MAKE_ROOM = {Path("/proc/sys/vm/drop_caches"): "1", Path("/proc/sys/vm/compact_memory"): "1"}
REAL_TIME_LIMIT = Path("/proc/sys/kernel/sched_rt_runtime_us")
TICKS = os.sysconf("SC_CLK_TCK")


class Unfit(Exception):
    """The machine lacks something that cannot be provided here."""


@contextmanager
def huge_pages(megabytes):
    """Provides that many megabytes of free 2 MB pages, and returns what it had to take for them."""
    before = int(HUGE_PAGES.read_text())
    free = next(
        int(line.split()[1])
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("HugePages_Free")
    )
    wanted = before + max(0, megabytes // 2 - free)
    try:
        HUGE_PAGES.write_text(str(wanted))
        if int(HUGE_PAGES.read_text()) < wanted:
            for setting, value in MAKE_ROOM.items():
                setting.write_text(value)
            HUGE_PAGES.write_text(str(wanted))
        if int(HUGE_PAGES.read_text()) < wanted:
            raise Unfit(f"needs {megabytes} MB of huge pages; the kernel has no such room left")
        yield
    finally:
        HUGE_PAGES.write_text(str(before))


@contextmanager
def unlimited_real_time():
    """Lets threads of real-time priority poll without a break. Otherwise the kernel stops each of them for 50 ms of a
    second, and these 50 ms count as work if the thread has packets at that moment."""
    before = REAL_TIME_LIMIT.read_text()
    try:
        REAL_TIME_LIMIT.write_text("-1")
        yield
    finally:
        REAL_TIME_LIMIT.write_text(before)


def allow_open_files():
    """Raises the limit of open files to what the machine allows: a switch needs a dozen for each guest."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def check():
    """Raises `Unfit` if nothing can be measured."""
    if os.geteuid() != 0:
        raise Unfit("needs root: huge pages, real-time priorities, network devices")
    if os.cpu_count() < 2:
        raise Unfit("needs two CPUs: one for the generator, one for the device under test")
    if not HUGE_PAGES.exists():
        raise Unfit("needs a kernel with huge pages")


def cpu_seconds(pid):
    """Returns the CPU time that a process has used; 0 if it no longer exists."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


class Noise:
    """How much of the machine others used during a measurement.

    `others` is their processor time as a share of one CPU; `steal` is what the hypervisor took.
    """

    def __init__(self, own_pids):
        self.pids = [os.getpid(), *own_pids]

    def __enter__(self):
        self.start = self._read()
        return self

    def __exit__(self, *_):
        wall, busy, steal, own = (now - then for now, then in zip(self._read(), self.start))
        self.others = max(0.0, round((busy - own) / wall, 3))
        self.steal = round(steal / wall, 3)

    def _read(self):
        first = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) / TICKS for field in first[:8])
        ended = os.times()  # times of our programs
        own = sum(cpu_seconds(pid) for pid in self.pids) + ended.children_user + ended.children_system
        return _monotonic(), user + nice + system + irq + softirq, steal, own

    @property
    def contaminated(self):
        """Returns whether the measurement is unreliable."""
        return self.others > 0.2 or self.steal > 0.05


def _monotonic():
    return float(Path("/proc/uptime").read_text().split()[0])


def _first_line(*command):
    try:
        done = subprocess.run(command, text=True, capture_output=True, check=False)
    except OSError:
        return "not installed"
    return (done.stdout or done.stderr).strip().split("\n")[0]


def describe(viaduct_bin):
    """Describes machine and versions, for the report."""
    cpus = Path("/proc/cpuinfo").read_text()
    model = next(
        (line.split(":", 1)[1].strip() for line in cpus.splitlines() if line.startswith("model name")), "unknown"
    )
    memory = int(Path("/proc/meminfo").read_text().split()[1]) // 2**20
    system = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    virtual = "hypervisor" in cpus
    return {
        "cpu": model,
        "cpus": os.cpu_count(),
        "virtual machine": virtual,
        "memory": f"{memory} GB",
        "kernel": platform.release(),
        "system": system.get("PRETTY_NAME", "unknown").strip('"'),
        "viaduct": _first_line(viaduct_bin / "viaductd", "--version"),
        "commit": _first_line("git", "describe", "--always", "--dirty"),
        "dpdk": _first_line("pkg-config", "--modversion", "libdpdk"),
        "open vswitch": _first_line("ovs-vswitchd", "--version"),
        "compiler": _first_line("rustc", "--version"),
    }
