"""Runs the DPDK generator (bench/generator)."""

import json
import subprocess
from dataclasses import dataclass, field

from . import machine
from .process import Child, Failed
from .scenario import guest_mac

MOST_PORTS = 30  # of one generator: a DPDK process has 32 at most


def option(**keys):
    """Writes keys and values in the generator's syntax; underscores become hyphens."""
    return ",".join(
        f"{key.replace('_', '-')}={int(value) if isinstance(value, bool) else value}" for key, value in keys.items()
    )


@dataclass
class Traffic:
    """The generator's task. The keys of each dictionary are those in `generator/options.c`."""

    streams: list = field(default_factory=list)
    forwards: list = field(default_factory=list)
    probe: dict = None
    neighbours: list = field(default_factory=list)
    # Arguments of the guests' virtio-user device: the kind of ring.
    ring: str = ""
    queue_size: int = 1024
    segmentation: bool = False
    # Megabytes of huge pages.
    memory: int = 512

    def arguments(self):
        """Returns its command line."""
        words = ["--queue-size", self.queue_size]
        words += ["--segmentation"] if self.segmentation else []
        for name, values in (("stream", self.streams), ("forward", self.forwards), ("neighbour", self.neighbours)):
            for value in values:
                words += [f"--{name}", option(**value)]
        return words + (["--probe", option(**self.probe)] if self.probe else [])


class Generator:
    """The generator at the ports of a device."""

    def __init__(self, programs, ports, guests, traffic, log):
        # Telemetry would wait for an answer from a stopped generator.
        words = [
            "-l",
            machine.GENERATOR_CPU,
            "--no-pci",
            "--in-memory",
            "--no-telemetry",
            "--single-file-segments",
            "--log-level=*:4",
        ]
        words += ["-m", traffic.memory, "--file-prefix=viaduct-bench"]
        for number, port in enumerate(ports):
            words += ["--vdev", port.vdev(number, traffic.queue_size, traffic.ring)]
        words += ["--", *traffic.arguments()]
        for number in range(min(guests, len(ports))):
            words += ["--announce", option(port=number, mac=guest_mac(number))]
        self._start(programs / "generator", *words, log=log)

    def _start(self, *command, log):
        self.child = Child(*command, log=log, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self._read("ready")
        except Failed:
            self.stop()
            raise

    @property
    def pid(self):
        return self.child.pid

    def _read(self, event):
        for line in self.child.process.stdout:
            if line.startswith('{"event"'):
                message = json.loads(line)
                if message["event"] == event:
                    return message
        self.child.process.wait()
        self.child.require_alive()
        raise Failed("the generator said nothing")

    def command(self, line):
        """Sends a command to the generator."""
        self.child.process.stdin.write(line + "\n")
        self.child.process.stdin.flush()

    def run(self, seconds, *, share=False):
        """Generates traffic and returns the generator's counters. With `share`, the device's threads on the
        generator's core get a share of it, or all of it while there is nothing to send or to receive: with "turns"
        the threads with real-time priority, with "naps" any."""
        self.command(f"{ {False: 'run', True: 'share'}.get(share, share)} {seconds}")
        return self._read("done")

    def stop(self):
        self.child.stop()


@dataclass
class Replay:
    """Traffic of the ring replayer from guest 0 to guest 1, with at most one flow per descriptor of the sender."""

    size: int = 64
    flows: int = 1
    ring: int = 1024


class Replayer(Generator):
    """Runs the ring replayer (bench/replay) instead of the DPDK generator."""

    def __init__(self, programs, ports, traffic, log):
        words = ["--sender", ports[0].socket, "--receiver", ports[1].socket]
        words += ["--flows", traffic.flows, "--ring", traffic.ring, "--size", traffic.size]
        self._start(programs / "replay", *words, log=log)
