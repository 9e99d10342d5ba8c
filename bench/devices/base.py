"""The base of all devices under test."""

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from .. import machine


@dataclass
class Counters:
    """A device's counts since it started. Cycles are ticks of the TSC."""

    packets: int = 0
    # Sum over all its polling threads.
    busy: int = 0
    # Packets dropped for reasons other than a receiver's full ring.
    refused: int = 0
    # If the device tells: cycles by stage, bursts by size, anything else.
    stages: dict = field(default_factory=dict)
    bursts: list = field(default_factory=list)
    details: dict = field(default_factory=dict)
    threads: int = 1

    def since(self, before):
        """Returns the counts since another reading."""
        return Counters(
            self.packets - before.packets,
            self.busy - before.busy,
            self.refused - before.refused,
            {name: cycles - before.stages[name] for name, cycles in self.stages.items()},
            [now - then for now, then in zip(self.bursts, before.bursts)],
            {name: value - before.details.get(name, 0) for name, value in self.details.items()},
            self.threads,
        )


@dataclass(frozen=True)
class VhostPort:
    """A vhost-user socket on which the device listens, or, with `guest_listens`, the guest."""

    socket: Path
    guest_listens: bool = False

    def vdev(self, number, queue_size, ring):
        """Returns the argument of the generator's --vdev."""
        extra = (f",{ring}" if ring else "") + (",server=1" if self.guest_listens else "")
        return f"net_virtio_user{number},path={self.socket},queues=1,queue_size={queue_size}{extra}"


class Device:
    """A device under test. Its polling thread is on `machine.DEVICE_CPU`, further ones on the CPUs after it."""

    # The name in tables.
    title = ""
    # The configuration, as the report shows it.
    conditions = ""

    def __init__(self, name):
        self.name = name
        self.directory = None
        self.children = []
        self.ports = []
        # Generators at ports without traffic, which stay off the CPU until the end.
        self.idle_guests = []

    def start(self, scenario):
        """Brings the device up for a scenario."""
        self.directory = Path(tempfile.mkdtemp(prefix=f"viaduct-bench-{self.name}-"))
        self._start(scenario)

    def stop(self):
        """Ends whatever `start` has begun."""
        for program in [*self.idle_guests, *reversed(self.children)]:
            program.stop()
        self.children, self.idle_guests = [], []
        self._cleanup()
        if self.directory:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None

    def pause(self):
        """Leaves the CPU to others."""
        for child in self.children:
            child.pause()

    def resume(self):
        for child in self.children:
            child.resume()

    def spread(self):
        """Spreads the threads, for points that measure control rather than forwarding. None has real-time priority,
        and those that do not poll use the generator's CPU and the device's, as the kernel decides."""
        for pid in self.pids:
            for task in Path(f"/proc/{pid}/task").iterdir():
                with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                    name, number = (task / "comm").read_text(), int(task.name)
                    os.sched_setscheduler(number, os.SCHED_OTHER, os.sched_param(0))
                    if not name.startswith(("worker", "pmd")):
                        os.sched_setaffinity(number, {machine.GENERATOR_CPU, machine.DEVICE_CPU})

    def last_words(self):
        """Returns the end of its logs."""
        return "\n".join(line for child in self.children for line in child.log.read_text().splitlines()[-8:])

    @property
    def pids(self):
        return [child.pid for child in self.children]

    def counters(self):
        """Returns the `Counters` of the polling threads, or None if the device has none."""
        return None

    @property
    def wire_mac(self):
        """Returns the MAC address of its end of the wire."""
        raise NotImplementedError

    def forget_flows(self):
        """Forgets what it learned from earlier traffic, if that matters to the next case."""

    def _start(self, scenario):
        raise NotImplementedError

    def _cleanup(self):
        """Removes what is not a child process."""
