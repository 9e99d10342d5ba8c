"""Ways between programs of one machine and of two, as curves: verbs, sockets and MPI."""

from ..devices.verbs import installed
from ..machine import GENERATOR_CPU
from . import Case, point
from .netpipe import RSOCKETS, netpipe_mpi
from .verbs import LEAST, MOST, VerbsPoint, memory, mpi, of_curve, rsockets, tcp, verbs_curve

ORDER = 12


@point
class VerbsCases(VerbsPoint):
    name = "verbs-cases"
    title = "Between programs on the host"
    about = (
        "Verbs: latency of ib_send_lat, bandwidth of ib_write_bw, which has many writes under way. NetPIPE by sockets "
        "(over RoCE and shared memory: by rsockets) and by Open MPI: its bandwidth is that of a message that goes back "
        "and forth. Windows are mapped by two processes as by programs in two virtual machines. memcpy: from one "
        "buffer to another."
    )
    metric = "gbps"
    # By measurement and device.
    LABELS = {
        ("verbs", "verbs-common"): "in the form of VM to VM, shared memory: verbs",
        ("MPI", "verbs-common"): "in the form of VM to VM, shared memory: MPI",
        ("verbs", "verbs-own"): "in the form of VM to VM, windows of their own: verbs",
        ("verbs", "verbs-own-hosts"): "in the form of VM to VM, RDMA between hosts: verbs",
        ("MPI", "verbs-own-hosts"): "in the form of VM to VM, RDMA between hosts: MPI",
        ("verbs", "verbs-roce"): "host to host, verbs",
        ("MPI", "verbs-roce"): "host to host, MPI over verbs",
        ("rsockets", "verbs-roce"): "host sockets over RoCE: sockets",
        ("rsockets", "verbs-shared"): "containers, sockets over shared memory: sockets",
        ("sockets", "tcp-bridge"): "host sockets over Ethernet: sockets",
        ("MPI over TCP", "tcp-bridge"): "host sockets over Ethernet: MPI",
        ("sockets", "tcp-one-host"): "containers, Ethernet through the switch: sockets",
        ("sockets", "tcp-loopback"): "limit: sockets over loopback",
        ("memcpy", "memcpy"): "limit: memcpy",
    }

    def label(self, device, title, case, alone):
        return self.LABELS[case["by"], device]

    def cases(self, quick):
        for by in dict.fromkeys(by for by, _ in self.LABELS):
            devices = [device for other, device in self.LABELS if other == by]
            if by == "rsockets" and not RSOCKETS:
                continue
            if not quick or by == "verbs":
                yield Case({"by": by}, installed(devices), rounds=3)

    def metrics(self, session, device, key):
        how = {
            "verbs": lambda: verbs_curve(device),
            "MPI": lambda: mpi(device, LEAST, MOST, 50),
            "sockets": lambda: tcp(device, LEAST, MOST, 10 if device.name == "tcp-one-host" else 50),
            "rsockets": lambda: rsockets(device, LEAST, MOST, 50),
            "MPI over TCP": lambda: netpipe_mpi(device.client, device.server, device.address)["curve"],
            "memcpy": lambda: self.copies(session),
        }
        return of_curve(how[key["by"]]())

    def copies(self, session):
        sizes = [LEAST << step for step in range((MOST // LEAST).bit_length())]
        copied = {size: memory(session, "memcpy", 200, GENERATOR_CPU, size) for size in sizes}
        return [{"bytes": size, "us": one["latency"], "mbps": one["gbps"] * 1000} for size, one in copied.items()]
