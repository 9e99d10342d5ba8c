"""Hosts, guests and networks on one machine, for the end-to-end tests and the demo.

A host is a network namespace with a `viaductd` in it; hosts are joined by veth pairs and a Linux bridge. Guests are
containers (namespaces with a tap device), virtual machines (QEMU) and DPDK programs (testpmd over virtio-user).
"""

from .account import Account, Pulse, daemon_pid, expect_back, unharmed
from .capture import Capture, expert, fields, packets, tshark
from .config import Config, toml
from .driver import Driver, spoil
from .echo import echoes
from .guest import Beside, Container, Server
from .host import Host, binary
from .lab import Lab
from .lines import Lines
from .netns import Namespace, cable
from .rawport import RawPort
from .shell import PATIENCE, Background, Failed, eventually, run
from .stream import Stream
from .testpmd import Testpmd
from .verbs import Meeting, Verbs, meet
from .vm import Vm

__all__ = [
    *(
        "PATIENCE",
        "Account",
        "Background",
        "Beside",
        "Capture",
        "Config",
        "Container",
        "Driver",
        "Failed",
        "Host",
        "Lab",
        "Lines",
        "Meeting",
        "Namespace",
    ),
    *("Pulse", "RawPort", "Server", "Stream", "Testpmd", "Verbs", "Vm", "binary", "cable", "daemon_pid", "eventually"),
    *("echoes", "expect_back", "expert", "fields", "meet", "packets", "run", "spoil", "toml", "tshark", "unharmed"),
]
