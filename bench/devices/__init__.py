"""Devices under test."""

from . import machines, verbs
from .base import Counters, Device
from .bridge import LinuxBridge
from .offload import OFFLOADED, PREFIX, SOFTWARE, ViaductConntrack, ViaductOvs
from .ovs import MODES, OvsDpdk
from .testpmd import Testpmd
from .viaduct import Viaduct

NAMES = ["viaduct", "testpmd", "bridge", *(f"ovs-{mode}" for mode in MODES), *verbs.NAMES, *machines.NAMES]
NAMES += [f"{PREFIX}{mode}" for mode in OFFLOADED + SOFTWARE]

__all__ = ["NAMES", "Counters", "Device", "make"]


def make(name, viaduct_bin):
    """Makes the device of this name."""
    if name == "viaduct":
        return Viaduct(name, viaduct_bin)
    if name.removeprefix(PREFIX) in SOFTWARE:
        return ViaductConntrack(name, viaduct_bin)
    if name.startswith(PREFIX):
        return ViaductOvs(name, viaduct_bin)
    if name == "testpmd":
        return Testpmd(name)
    if name == "bridge":
        return LinuxBridge(name)
    if name in machines.NAMES:
        return machines.make(name, viaduct_bin)
    if name in verbs.NAMES:
        return verbs.make(name, viaduct_bin)
    return OvsDpdk(name, name.removeprefix("ovs-"))
