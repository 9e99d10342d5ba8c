"""Goals for Viaduct, as ratios within rounds."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from .results import HIGHER_IS_BETTER, value


@dataclass(frozen=True)
class Goal:
    """A figure of Viaduct, compared with the best of its peers or absolute."""

    title: str
    point: str
    case: dict
    metric: str
    least: float
    aim: float
    # The better of these in each round is the reference; if empty, the figure itself counts, in `unit`.
    peers: tuple = ()
    unit: str = " x"
    # The device of the figure.
    device: str = "viaduct"
    # The case of the same device with which it is compared, instead of peers.
    against: dict = None
    # Computes the reference from the peers' figures, if it is not the best one.
    together: Callable = None

    @property
    def lower_is_better(self):
        return self.metric not in HIGHER_IS_BETTER

    def judge(self, results):
        """Returns the goal with the measured values."""
        own = by_round(results, self.point, self.case, self.device, self.metric)
        best = min if self.lower_is_better else max
        held = [(self.against, self.device)] if self.against else [(self.case, peer) for peer in self.peers]
        peers = [by_round(results, self.point, case, device, self.metric) for case, device in held]
        ratios = []
        for number, figure in own.items():
            others = [peer[number] for peer in peers if peer.get(number)]
            if self.together:
                others = [self.together(*others)] if len(others) == len(peers) else []
            if others or not held:
                ratios.append(figure / best(others) if others else figure)
        sign = "<=" if self.lower_is_better else ">="
        judged = {"title": self.title, "unit": self.unit, "measured": None, "generator_bound": False}
        judged |= {"least_text": f"{sign} {self.least:g}{self.unit}", "aim_text": f"{sign} {self.aim:g}{self.unit}"}
        if ratios:
            measured = median(ratios)
            refused = results.refused(self.point, self.case, self.device)
            met = not refused and (measured <= self.least if self.lower_is_better else measured >= self.least)
            bound = self.metric in ("mpps", "gbps") and results.generator_bound(self.point, self.case, self.device)
            judged |= {"measured": measured, "spread": (min(ratios), max(ratios)), "met": met}
            judged |= {"generator_bound": bound, "refused": refused}
        return judged


def by_round(results, point, case, device, metric):
    """Returns {round: value}."""
    found = {sample["round"]: value(sample, metric) for sample in results.of(point, case, device)}
    return {number: figure for number, figure in found.items() if figure is not None}


OVS = ("ovs-normal", "ovs-port")
BACK_TO_BACK = {"size": 64, "rate": "back to back"}
FLOWS = {1: "1 flow", 10_000: "10 k flows", 100_000: "100 k flows", 1_000_000: "1 M flows"}


def _cycles(title, point, case, least, aim, peers):
    return Goal(f"{title}: cycles", point, case, "cycles", least, aim, peers)


def _wire(direction, title, least, aim):
    for tunnel, name in {"mpls-over-udp": "MPLS over UDP", "vxlan": "VXLAN"}.items():
        for flows in (1, 10_000):
            case = {"tunnel": tunnel, "direction": direction, "size": 64, "flows": flows}
            yield _cycles(
                f"{title}, {name}, 64 B, {FLOWS[flows]}, against OVS VXLAN", "wire", case, least, aim, ("ovs-vxlan",)
            )


def _ovs():
    """Yields goals of Viaduct under Open vSwitch's rules, against that Open vSwitch."""
    port, flows = {"device": "viaduct-ovs-port"}, {"device": "viaduct-ovs-per-flow"}
    for count in (1, 10_000):
        title = f"A rule of OVS, 64 B, {FLOWS[count]}, against OVS: cycles"
        yield Goal(title, "ovs-rules", {"flows": count}, "cycles", 0.8, 0.8, ("ovs-port",), **port)
    for count, least in ((10_000, 0.35), (100_000, 0.25)):
        title = f"Flows of OVS one by one, {FLOWS[count]}, against OVS: cycles"
        yield Goal(title, "ovs-megaflows", {"flows": count}, "cycles", least, least, ("ovs-per-flow",), **flows)
    for count in (1, 10_000):
        title = f"A rule of OVS into VXLAN, 64 B, {FLOWS[count]}, against OVS: cycles"
        case = {"direction": "out", "flows": count}
        yield Goal(title, "ovs-vxlan", case, "cycles", 0.7, 0.7, ("ovs-vxlan",), device="viaduct-ovs-vxlan")
        title = f"A rule of OVS out of VXLAN, 64 B, {FLOWS[count]}, against OVS: cycles"
        case = {"direction": "in", "flows": count}
        yield Goal(title, "ovs-vxlan-in", case, "cycles", 0.6, 0.6, ("ovs-vxlan",), device="viaduct-ovs-tunnel")
    for count in (1, 10_000):
        title = f"Connections that OVS tracks, 64 B, {FLOWS[count]}, against OVS: cycles of its PMD thread"
        device = "viaduct-ovs-conntrack-pmd"
        yield Goal(title, "ovs-ct", {"flows": count}, "cycles", 1.0, 1.0, ("ovs-conntrack",), device=device)
    for length in (1, 4, 7):
        title = f"Chain of {length} under OVS's rules, against OVS: Mpps"
        yield Goal(title, "ovs-chain", {"guests": length}, "mpps", 1.0, 1.0, ("ovs-port",), **port)
    title = "Chain of 7 under OVS's rules, one way at 1000 a second, against OVS: p50"
    yield Goal(title, "ovs-chain-latency", {"guests": 7}, "one_way_p50", 1.0, 0.5, ("ovs-port",), **port)


# Verbs devices, by what carries a message between two processes: memory that they share, files of regions, packets.
SHARED, REGIONS = {"device": "verbs-shared"}, {"device": "verbs-regions"}
# Bare limits of memory and kernel.
COPIES, LINE = ("proc-mem", "process-vm"), "cache-line"
SIZES = ("64 KiB", "1 MiB", "4 MiB")


def _verbs_latency():
    """Yields goals of verbs between two processes of a host: 8 bytes."""

    def goal(title, operation, metric, least, aim, peers=(), cpus=2, **more):
        case = {"operation": operation, "cpus": cpus}
        return Goal(title, "verbs-latency", case, metric, least, aim, peers, **more)

    yield goal("Verbs, shared, 8 B: send, in ways of a cache line", "send", "lines", 2.2, 1.6, **SHARED)
    for operation in ("write", "read"):
        title = f"Verbs, shared, 8 B: {operation}, against the better copying system call and 1.5 ways of a cache line"
        limit, bare = lambda mem, vm, line: min(mem, vm) + 1.5 * line, (*COPIES, LINE)
        yield goal(title, operation, "latency", 1.0, 1.0, bare, together=limit, **SHARED)
    for operation in ("write", "read"):
        title = f"Verbs, shared regions, 8 B: {operation}, in ways of a cache line"
        yield goal(title, operation, "lines", 2.0, 2.0, **REGIONS)
    title = "Verbs, shared, 8 B: send, against UCX's shared memory"
    yield goal(title, "send", "latency", 1.3, 1.0, ("ucx-posix",), **SHARED)
    title = "MPI, verbs, 8 B: against Open MPI's shared memory"
    yield goal(title, "send", "latency", 2.0, 1.3, ("mpi-vader",), device="mpi-verbs")
    title = "Verbs, shared, 8 B: send, against TCP loopback"
    yield goal(title, "send", "latency", 0.2, 0.2, ("tcp-loopback",), **SHARED)
    title = "Verbs, shared, 8 B, one CPU: send, against TCP loopback"
    yield goal(title, "send", "latency", 1.0, 1.0, ("tcp-loopback",), cpus=1, **SHARED)


def _verbs_bandwidth():
    """Yields goals of verbs between two processes: long messages, on one host and between two."""
    point = "verbs-bandwidth"
    for size in SIZES:
        title = f"Verbs, shared, {size}: Gbit/s, against the better copying system call"
        yield Goal(title, point, {"size": size}, "gbps", 0.9, 0.95, COPIES, **SHARED)
        title = f"Verbs, shared regions, {size}: Gbit/s, against memcpy"
        yield Goal(title, point, {"size": size}, "gbps", 0.8, 0.95, ("memcpy",), **REGIONS)
    for device, what in (("verbs-roce", ""), ("verbs-roce-regions", ", shared regions")):
        title = f"Verbs, two hosts{what}, 64 KiB: Gbit/s, against TCP without TSO and GRO"
        yield Goal(title, point, {"size": "64 KiB"}, "gbps", 1.0, 2.0, ("tcp-overlay",), device=device)


def _windows():
    """Yields goals of verbs between processes that have windows, as programs in VMs do."""
    against = ("verbs-regions",)
    for operation in ("send", "write", "read"):
        case = {"operation": operation}
        title = f"Verbs, window in common, 8 B: {operation}, against shared regions"
        yield Goal(title, "verbs-windows", case, "latency", 1.1, 1.0, against, device="verbs-common")
        title = f"Verbs, windows of their own, 8 B: {operation}, against shared regions"
        yield Goal(title, "verbs-windows", case, "latency", 3.0, 2.0, against, device="verbs-own")
        title = f"Verbs, windows of their own, the daemon polls, 8 B: {operation}, against shared regions"
        for peer, where in (("verbs-regions-apart", "of two CPUs"), ("verbs-regions", "in the caches of one CPU")):
            whole = f"{title} {where}"
            yield Goal(whole, "verbs-windows-polled", case, "latency", 3.0, 2.0, (peer,), device="verbs-own")
    for size in SIZES:
        title = f"Verbs, window in common, {size}: Gbit/s, against memcpy"
        case, peers = {"size": size}, ("memcpy",)
        yield Goal(title, "verbs-windows-bandwidth", case, "gbps", 0.8, 0.95, peers, device="verbs-common")


def _virtual_machines():
    """Yields goals of verbs between two VMs."""
    for device, peer, what in (
        ("vm-common", "vm-rxe", "window in common"),
        ("vm-own", "vm-rxe", "windows of their own"),
        ("vm-hosts", "vm-rxe-hosts", "two hosts"),
    ):
        for operation in ("send", "write", "read"):
            title, case = f"Verbs in VMs, {what}, 8 B: {operation}, against Soft-RoCE", {"operation": operation}
            yield Goal(title, "vm-verbs", case, "latency", 0.2, 0.1, (peer,), device=device)
        for size in ("64 KiB", "256 KiB", "1 MiB"):
            title = f"Verbs in VMs, {what}, {size}: Gbit/s, against Soft-RoCE"
            case = {"operation": "write", "size": size}
            yield Goal(title, "vm-verbs-bandwidth", case, "gbps", 5.0, 10.0, (peer,), device=device)


def _verbs():
    """Yields goals of verbs devices."""
    yield from _verbs_latency()
    yield from _verbs_bandwidth()
    yield from _windows()
    yield from _virtual_machines()
    title, peers = "Verbs, shared regions, eight peers: deregistration", {"peers": 8}
    yield Goal(title, "verbs-deregister", peers, "deregister", 20.0, 20.0, unit=" us", **REGIONS)
    title = "Verbs, two hosts, 64 KiB, one packet in a thousand lost: Gbit/s, against none lost"
    yield Goal(title, "verbs-loss", {"size": "64 KiB"}, "gbps", 0.7, 0.7, ("verbs-roce",), device="verbs-lossy")


def _sockets():
    """Yields goals of sockets in shared memory between two containers."""
    rings = {"device": "sockets-rings"}

    def goal(title, point, what, metric, least, aim, peer="tcp-loopback", **more):
        against = {"tcp-loopback": "TCP loopback", "tcp-bridge": "the Linux bridge"}[peer]
        return Goal(f"Sockets, {title}, against {against}", point, {"what": what, **more}, metric, least, aim, (peer,), **rings)

    for what, cpus, least, aim in (("recv", 2, 0.1, 0.05), ("epoll", 2, 0.2, 0.1), ("recv", 1, 1.0, 0.5), ("epoll", 1, 1.0, 0.5)):
        title = f"16 B by {what}, {'a CPU each' if cpus == 2 else 'one CPU'}: round trip"
        yield goal(title, "sockets-latency", what, "latency", least, aim, cpus=cpus)
    for size in ("64 KiB", "256 KiB", "1 MiB", "4 MiB"):
        yield goal(f"{size}: Gbit/s", "sockets-bandwidth", size, "gbps", 1.5, 3.0, "tcp-bridge")
    hosts = {"device": "sockets-hosts"}
    for title, point, what, metric, least, aim in (
        ("64 KiB: Gbit/s", "sockets-bandwidth", {"what": "64 KiB, two hosts"}, "gbps", 1.0, 1.5),
        ("16 B: round trip", "sockets-latency", {"what": "recv, two hosts", "cpus": 2}, "latency", 1.0, 0.5),
    ):
        title = f"Sockets, two hosts, {title}, against TCP with TSO"
        yield Goal(title, point, what, metric, least, aim, ("tcp-hosts",), **hosts)
    for what, least, aim in (
        ("messages", 3.0, 10.0),
        ("redis, 1 client", 3.0, 6.0),
        ("redis, 50 clients", 1.3, 2.0),
        ("nginx", 1.2, 2.0),
        ("connections", 0.7, 1.0),
    ):
        yield goal(f"{what}: a second", "sockets-rates", what, "per_second", least, aim)
    for metric, least, aim, unit in (("bytes", 16384, 4096, " B"), ("percent", 0.1, 0.0, " %")):
        title = f"Sockets, 10 k idle connections: {'memory of each' if metric == 'bytes' else 'CPU'}"
        yield Goal(title, "sockets-idle", {"what": 10_000}, metric, least, aim, unit=unit, **rings)


def _flows():
    """Yields goals of forwarding between two guests, by rules and number of flows."""
    for count in (1, 10_000):
        title = f"No rules, 64 B, {FLOWS[count]}, against OVS"
        yield _cycles(title, "flows", {"flows": count}, 0.7, 0.5, OVS)
    for count in (1, 10_000):
        title, case = f"No rules, 64 B, {FLOWS[count]}, replayer, against testpmd: Mpps", {"size": 64, "flows": count}
        yield Goal(title, "replay", case, "mpps", 1.0, 1.3, ("testpmd",))
    for count in FLOWS:
        title = f"Stateful rules, 64 B, {FLOWS[count]}, against OVS conntrack"
        yield _cycles(title, "stateful", {"flows": count}, 0.35, 0.2, ("ovs-conntrack",))
    title, case = "Flows one by one, 10 k, against OVS", {"flows": 10_000}
    yield _cycles(title, "one-by-one", case, 0.2, 0.12, ("ovs-per-flow",))
    title, case = "Flows one by one, 100 k, against OVS", {"flows": 100_000}
    yield _cycles(title, "one-by-one", case, 0.15, 0.1, ("ovs-per-flow", "ovs-per-flow-smc"))


def _neighbour():
    """Returns the goal of a guest beside a hostile one."""
    title = "Round trip beside a hostile guest, against undisturbed: p99"
    hostile, undisturbed = {"neighbour": "hostile"}, {"neighbour": "undisturbed"}
    return Goal(title, "neighbour", hostile, "p99", 3.0, 1.5, against=undisturbed)


def _churn():
    """Returns the goal of a host whose tables change."""
    title = "Table changes, 10 k a second at 80 % load: sent per delivered"
    return Goal(title, "churn", {"changes": 10_000}, "sent_per_delivered", 1.0, 1.0)


GOALS = [
    *_flows(),
    Goal("1518 B, against testpmd and OVS: Mpps", "throughput", {"size": 1518}, "mpps", 1.4, 1.8, ("testpmd", *OVS)),
    *_wire("out", "Guest to wire", 0.5, 0.3),
    *_wire("in", "Wire to guest", 0.4, 0.25),
    Goal("New flows, stateful rules: million a second", "new-flows", {}, "mpps", 0.5, 1.0, unit=" M/s"),
    Goal("Round trip idle, 64 B, against testpmd: p50", "ping-pong", BACK_TO_BACK, "p50", 1.0, 0.8, ("testpmd",)),
    Goal("Round trip under load, 64 B, against OVS: p99", "ping-pong-loaded", {"size": 64}, "p99", 0.5, 0.3, OVS),
    _neighbour(),
    Goal("TCP frames of 64 KB, against OVS: Gbit/s", "segmentation", {}, "gbps", 1.5, 1.5, ("ovs-normal",)),
    _churn(),
    Goal("Memory of a flow, 1 M flows", "memory", {"of": "flow", "count": 1_000_000}, "bytes", 128, 96, unit=" B"),
    Goal("Idle host, 16 guests: share of a core", "idle", {}, "percent", 1.0, 0.1, unit=" %"),
    *_ovs(),
    *_verbs(),
    *_sockets(),
]


def judge(results):
    """Returns all goals whose cases were measured, with the measured values."""
    return [goal.judge(results) for goal in GOALS if results.of(goal.point, goal.case, goal.device)]
