"""The cases of table 1 of MIKELANGELO's report on vRDMA, under its names."""

from . import Case, machines, point
from .netpipe import RSOCKETS
from .verbs import LEAST, MOST, mpi, of_curve, rsockets, tcp

ORDER = 13


@point
class Vrdma(machines.MachinesPoint):
    name = "vrdma"
    title = "The cases of the vRDMA report"
    about = (
        "NetPIPE by sockets (over RoCE by rsockets), by Open MPI for h2h-verb-roce: half a round trip, and the "
        "bandwidth of a message that goes back and forth. Two hosts, but for vm2vm-vhost-shm and vm2vm-rdma-p3: two VMs of one. "
        "Prototype I is virtio-net and Viaduct's switch, prototype II verbs in the guest (ib_send_lat, ib_write_bw). "
        "Prototype III is sockets that a library moves to rings in the window, here of two VMs of one host. "
        "The report's hosts have NICs of 40 Gbit/s; here a bridge stands for the cable."
    )
    metric = "latency"
    # Sizes of messages, in bytes, of the third figure.
    small = 1024
    # Of each case: the device, and how it is measured.
    CASES = {
        "vm2vm-vhost-shm": ("vm-common", "sockets in VMs"),
        "vm2vm-virtio-eth": ("vm-bridged", "sockets in VMs"),
        "vm2vm-rdma-p1": ("vm-hosts", "sockets in VMs"),
        "vm2vm-rdma-p2": ("vm-hosts", "verbs in VMs"),
        "vm2vm-rdma-p3": ("vm-common", "moved sockets in VMs"),
        "h2h-verb-roce": ("verbs-roce", "MPI"),
        "h2h-sock-roce": ("verbs-roce", "rsockets"),
        "h2h-sock-eth": ("tcp-bridge", "sockets"),
    }

    def label(self, device, title, case, alone):
        return case["case"]

    def cases(self, quick):
        for case, (device, by) in self.CASES.items():
            if not quick and (by != "rsockets" or RSOCKETS):
                yield Case({"case": case}, [device], rounds=3)

    def metrics(self, session, device, key):
        how = {
            "sockets in VMs": lambda: machines.tcp(device, *machines.NETPIPE),
            "moved sockets in VMs": lambda: machines.moved(device, *machines.NETPIPE),
            "verbs in VMs": lambda: machines.verbs_curve(device),
            "MPI": lambda: mpi(device, LEAST, MOST, 50),
            "rsockets": lambda: rsockets(device, LEAST, MOST, 50),
            "sockets": lambda: tcp(device, LEAST, MOST, 50),
        }
        return of_curve(how[self.CASES[key["case"]][1]]())
