"""Network namespaces and the cables between them."""

import ctypes
import os
import socket
from contextlib import contextmanager
from pathlib import Path

from .shell import Background, Failed, run

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """One network namespace, with its loopback up and without the kernel's own IPv6 chatter."""

    def __init__(self, name, directory: Path):
        self.name = name
        self.directory = directory
        run(["ip", "netns", "add", name])
        self.run(["ip", "link", "set", "lo", "up"])
        for where in ("all", "default"):
            self.sysctl(f"net.ipv6.conf.{where}.accept_dad", 0)
            self.sysctl(f"net.ipv6.conf.{where}.router_solicitations", 0)

    def words(self, command):
        """Returns the command line to run the command from outside."""
        return ["ip", "netns", "exec", self.name, *command]

    def run(self, command, **options):
        return run(self.words(command), **options)

    def background(self, command, label=None, **options):
        """Starts a program inside; its output goes to a file named after it."""
        log = self.directory / f"{self.name}-{label or command[0]}.log"
        return Background(self.words(command), log, **options)

    def ip(self, *words):
        """Runs `ip` with the given words, each of which may hold several."""
        run(["ip", "-n", self.name, *" ".join(str(word) for word in words).split()])

    def sysctl(self, key, value):
        path = "/proc/sys/" + key.replace(".", "/")
        self.run(["sh", "-c", f"[ ! -e {path} ] || echo '{value}' > {path}"])

    @contextmanager
    def entered(self):
        """Puts the calling thread inside for the duration; sockets opened meanwhile stay there."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        try:
            _setns(there)
            yield
        finally:
            _setns(home)
            os.close(home)
            os.close(there)

    def socket(self, *arguments):
        """Opens a socket of this namespace for use from this process."""
        with self.entered():
            return socket.socket(*arguments)

    def counter(self, device, name):
        """Reads one of the kernel's interface counters, such as rx_packets."""
        return int(self.run(["cat", f"/sys/class/net/{device}/statistics/{name}"]).stdout)

    def delete(self):
        pids = run(["ip", "netns", "pids", self.name], check=False).stdout.split()
        if pids:
            run(["kill", "-9", *pids], check=False)
        run(["ip", "netns", "del", self.name], check=False)


def _setns(descriptor):
    if _libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise Failed(f"setns: {os.strerror(ctypes.get_errno())}")


def cable(left: Namespace, left_device, right: Namespace, right_device, mtu=9000, mac=None):
    """Joins two namespaces by a veth pair, both ends up; `mac` is that of the left one."""
    run(
        ["ip", "link", "add", left_device, *(["address", mac] if mac else []), "mtu", mtu, "netns", left.name]
        + ["type", "veth", "peer", "name", right_device, "mtu", mtu, "netns", right.name]
    )
    left.ip("link set", left_device, "up")
    right.ip("link set", right_device, "up")
