"""viaductd is killed a hundred times, at any instant, and started again: guests notice gaps, and nothing else."""

import os
import random
import re
import signal
import time

import pytest
from lab import Lines
from lab.topology import SEATS, host_config, tap, vhost

KILLS = 100
# After so many, everything has to go on before the next one.
ROUND = 10
# What the daemon may have taken and not returned when it dies: it does that again.
BURST = 64

SPLIT, PACKED, CONTAINER = SEATS["a1"], SEATS["a2"], SEATS["b1"]


def link(container):
    """The container's interface and its addresses, without counters and lifetimes."""
    return container.run(["ip", "-o", "addr", "show", "dev", container.device]).stdout


def crash(host, chance):
    """Kills the daemon some time after its start, which takes a tenth of a second or two, and starts another."""
    time.sleep(chance.uniform(0, 0.5))
    host.kill()
    host.launch()


# On a busy machine, the container's traffic may stand for longer than the test waits (docs/roadmap.md).
@pytest.mark.alone
def test_a_hundred_kills_at_any_instant(lab):
    seed = int(os.environ.get("VIADUCT_SEED", random.randrange(1 << 32)))
    print(f"VIADUCT_SEED={seed}")
    chance = random.Random(seed)
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
    for done in range(0, KILLS, ROUND):
        for _ in range(ROUND):
            crash(host, chance)
        for stream in streams:
            stream.more(100)
        print(f"{done + ROUND} kills after {time.monotonic() - began:.1f} s")
    host.kill()
    host.start()
    for vm in vms:
        vm.expect_ping(CONTAINER.address)
    vms[0].expect_ping(PACKED.address)
    for stream in streams:
        stream.more()
    for echo in echoes:
        echo.stop(signal.SIGINT)
        numbers = [int(number) for number in re.findall(r"icmp_seq=(\d+) ttl", echo.text())]
        twice = len(numbers) - len(set(numbers))
        print(f"{len(set(numbers))} of {max(numbers)} echoes, {twice} of them more than once")
        assert twice <= BURST * KILLS
    assert link(container) == before
