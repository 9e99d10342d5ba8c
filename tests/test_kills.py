"""viaductd is killed many times, at any instant, and started again: guests notice gaps, and nothing else."""

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest
from lab import Lines, eventually
from lab.marks import at_night, machines
from lab.topology import SEATS, host_config, one_host, tap, vhost

KILLS = [20, at_night(100)]
# After so many, everything has to go on before the next one.
ROUND = 10
# Packets that the daemon may have taken and not returned when it dies: they are sent again.
BURST = 64

SPLIT, PACKED, CONTAINER = SEATS["a1"], SEATS["a2"], SEATS["b1"]


def link(container):
    """Returns the container's interface and its addresses, without counters and lifetimes."""
    return container.run(["ip", "-o", "addr", "show", "dev", container.device]).stdout


def crash(host, chance):
    """Kills the daemon some time after its start, which takes a tenth of a second or two, and starts another."""
    time.sleep(chance.uniform(0, 0.5))
    host.kill()
    host.launch()


def seeded():
    """Makes a source of chance that can be repeated."""
    seed = int(os.environ.get("VIADUCT_SEED", random.randrange(1 << 32)))
    print(f"VIADUCT_SEED={seed}")
    return random.Random(seed)


def kill_as_the_helper_starts(host, chance):
    """Kills the daemon when its helper is there, which asks for the taps some milliseconds later."""
    helper = Path(f"/proc/{host.daemon.process.pid}/task/{host.daemon.process.pid}/children")
    eventually(helper.read_text, "the helper", interval=0)
    time.sleep(chance.choice([0, chance.uniform(0, 0.01)]))
    host.kill()


def test_helpers_that_start_after_the_end_of_their_daemons(lab):
    """Whichever helper asks first for the taps, they come to the daemon that runs."""
    chance = seeded()
    host, (a1, _) = one_host(lab, "a1", "a2")
    before = link(a1)
    for _ in range(10):
        host.kill()
        for _ in range(2):
            host.launch()
            kill_as_the_helper_starts(host, chance)
        host.start()
        a1.expect_ping(SEATS["a2"].address, 1)
        assert link(a1) == before


def test_starts_while_the_daemon_before_still_ends(lab):
    """Containers keep their interfaces though nobody waits between `kill -9` and the next start."""
    host, (a1, _) = one_host(lab, "a1", "a2")
    before = link(a1)
    for _ in range(20):
        ending = host.daemon
        os.kill(ending.process.pid, signal.SIGKILL)
        host.start()
        ending.stop(signal.SIGKILL)
        a1.expect_ping(SEATS["a2"].address, 1)
        assert link(a1) == before


@machines
@pytest.mark.parametrize("kills", KILLS)
def test_kills_at_any_instant(lab, kills):
    chance = seeded()
    # QEMU listens: a client of it would wait a second before each connection.
    guests = {"a1": vhost("a1", role="client"), "a2": vhost("a2", role="client"), "b1": tap("b1")}
    host = lab.host(host_config("a", guests, wire=False))
    container = lab.container(host, "b1")
    vms = [lab.vm(host, "a1"), lab.vm(host, "a2", options="packed=on")]
    for vm in vms:
        vm.boot()
    before = link(container)
    streams = [Lines(container, vm, seat.address) for vm, seat in zip(vms, (SPLIT, PACKED))]
    echoes = [
        container.background(["ping", "-n", "-i", "0.02", seat.address], f"echoes-{seat.name}")
        for seat in (SPLIT, PACKED)
    ]
    began = time.monotonic()
    for done in range(0, kills, ROUND):
        for _ in range(ROUND):
            crash(host, chance)
        for stream in streams:
            stream.more(100)
        print(f"{done + ROUND} kills after {time.monotonic() - began:.1f} s")
    host.kill()
    host.start()
    # Rings of a guest that has no time may be full.
    assert all(vm.reaches(CONTAINER.address) for vm in vms)
    assert vms[0].reaches(PACKED.address)
    for stream in streams:
        stream.more()
    for echo in echoes:
        echo.stop(signal.SIGINT)
        numbers = [int(number) for number in re.findall(r"icmp_seq=(\d+) ttl", echo.text())]
        twice = len(numbers) - len(set(numbers))
        print(f"{len(set(numbers))} of {max(numbers)} echoes, {twice} of them more than once")
        assert twice <= BURST * kills
    assert link(container) == before
