"""Multicast of verbs: unmodified mckey, on one host and on two, beside sockets in the same group."""

import signal

import pytest

from lab import eventually
from lab.shell import Failed
from lab.topology import SEATS, bridge_entries, host_config, tap, two_verbs_hosts, verbs

GROUPS = {4: ("239.1.2.3", "address"), 6: ("ff0e::1:2", "address6")}
MESSAGES = 10


def mckey(device, seat, version, *more):
    """mckey of a guest, in a group of an IP version."""
    group, own = GROUPS[version]
    return device.start(["mckey", "-m", group, "-b", getattr(SEATS[seat], own), "-C", MESSAGES, *more])


def joined(device, count=1):
    """Whether so many queue pairs of a device receive."""
    return len([qp for qp in device.queue_pairs() if qp["state"] == "RTS"]) >= count


def meet(receivers, sender, version=4, *more):
    """Has all of `receivers`, (seat, device) each, get what the last one sends, and all of them end well."""
    programs = [mckey(device, seat, version) for seat, device in receivers]
    try:
        for _, device in receivers:
            count = [other for _, other in receivers].count(device)
            eventually(lambda device=device, count=count: attached(device) >= count, "members", 20)
        programs.append(mckey(sender[1], sender[0], version, "-s", *more))
        eventually(lambda: not any(program.running() for program in programs), "the end of mckey", 30)
        assert [program.process.returncode for program in programs] == [0] * len(programs)
        assert all("data transfer complete" in program.text() for program in programs)
    except (Failed, AssertionError) as why:
        raise Failed("\n".join([str(why), *(program.describe() for program in programs)])) from None
    finally:
        for program in programs:
            program.stop(signal.SIGKILL)
    for _, device in [*receivers, sender]:
        device.expect_free()
