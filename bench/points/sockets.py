"""Sockets at memory speed: unmodified programs between two containers, beside the kernel's TCP and rsockets."""

import csv
import json
import shutil

from . import Case, point
from .netpipe import RSOCKETS, iperf3, netpipe
from .verbs import VerbsPoint, pinned

ORDER = 11
KERNELS = ["tcp-loopback", "tcp-bridge", "tcp-one-host"]
RINGS = "sockets-rings"
# Between two hosts: by the library, and without it.
HOSTS = ["sockets-hosts", "tcp-hosts"]
PORT, ROUNDS = 7300, 50
SIZES = {"64 KiB": 1 << 16, "256 KiB": 1 << 18, "1 MiB": 1 << 20, "4 MiB": 1 << 22}
NGINX = """user root; daemon off; master_process off; pid {dir}/nginx.pid; error_log {dir}/error.log crit;
events {{ worker_connections 512; }}
http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;
  server {{ listen {port} reuseport; location / {{ root {dir}/www; }} }} }}
"""


def prefixes(device, cores=2):
    """Returns the words in front of the client and of the server, with what makes their sockets go the device's way."""
    sides = zip((device.client, device.server), pinned(cores), strict=True)
    return [[*device.words(side), *cpu] for side, cpu in sides]


def streams(session, mode, size, cores=2, seconds=None):
    """Runs both ends of `streams`, and returns what it measured."""
    device, program = session.device, session.programs / "streams"
    own, peers = prefixes(device, cores)
    listening = device.server.background([*peers, program, "serve", PORT, mode, size], "streams")
    try:
        device.wait_for_port(PORT)
        words = [program, "call", device.address, PORT, mode, size, seconds or session.case.seconds]
        return json.loads(device.client.run([*own, *words], timeout=240).stdout)
    finally:
        listening.stop()


class SocketsPoint(VerbsPoint):
    section = "sockets"
    over = "what"


@point
class SocketsLatency(SocketsPoint):
    name = "sockets-latency"
    title = "Sockets: round trip of 16 bytes"
    about = (
        "p50 of a round trip between two programs that sleep in recv or in epoll_wait, with a CPU each or both on one. "
        "rsockets have no epoll. Two hosts: both are this machine, and share its CPUs."
    )
    metric = "latency"

    def cases(self, quick):
        for what, cpus in (("recv", 2), ("epoll", 2), ("recv", 1), ("epoll", 1)):
            others = ["sockets-rsockets"] if what == "recv" and RSOCKETS else []
            yield Case({"what": what, "cpus": cpus}, [RINGS, *KERNELS, *others])
        yield Case({"what": "recv, two hosts", "cpus": 2}, HOSTS)

    def metrics(self, session, device, key):
        what = key["what"].removesuffix(", two hosts")
        return streams(session, {"recv": "block"}.get(what, what), 16, key["cpus"])


@point
class SocketsBandwidth(SocketsPoint):
    name = "sockets-bandwidth"
    title = "Sockets: bandwidth"
    about = (
        "NetPIPE: messages that go back and forth, a CPU for each program. Two hosts, which are both this machine: "
        "iperf3, which writes 64 KiB at a time."
    )
    metric = "gbps"

    def cases(self, quick):
        yield Case({"what": "64 KiB, two hosts"}, HOSTS, seconds=1.0 if quick else 5.0)
        for what in list(SIZES)[: 1 if quick else None]:
            yield Case({"what": what}, [RINGS, *KERNELS, *(["sockets-rsockets"] if RSOCKETS else [])])

    def metrics(self, session, device, key):
        if device.name in HOSTS:
            words = tuple(device.words(side) for side in (device.client, device.server))
            seconds = max(1, int(session.case.seconds))
            return iperf3(device.client, device.server, device.address, seconds, ["-l", "64K"], words)
        size = SIZES[key["what"]]
        words = ["-l", str(size), "-u", str(size), "-n", str(ROUNDS), "-p", "0"]
        wait = lambda: device.wait_for_port(5002)
        return {"gbps": netpipe(device.client, device.server, device.address, words, prefixes(device), wait)["gbps"]}


@point
class SocketsRates(SocketsPoint):
    name = "sockets-rates"
    title = "Sockets: messages, requests and connections a second"
    about = (
        "Messages of 64 bytes on one connection, whose reader never sleeps; redis-benchmark GET with 1 and 50 clients; "
        "wrk with 16 connections to one nginx process, files of 200 bytes; connections with one question and answer "
        "each. A CPU for each program."
    )
    metric = "per_second"
    scale = "log"
    NEEDED = {"redis, 1 client": "redis-server", "redis, 50 clients": "redis-server", "nginx": "wrk"}

    def cases(self, quick):
        for what in ("messages", "redis, 1 client", "redis, 50 clients", "nginx", "connections"):
            if shutil.which(self.NEEDED.get(what, "sh")):
                others = ["sockets-rsockets"] if what == "messages" and RSOCKETS else []
                yield Case({"what": what}, [RINGS, *KERNELS, *others])

    def metrics(self, session, device, key):
        what = key["what"]
        if what == "messages":
            return streams(session, "flood", 64)
        if what == "connections":
            return streams(session, "connect", 16)
        if what == "nginx":
            return {"per_second": nginx(session)}
        return {"per_second": redis(device, int(what.split()[1]))}


def redis(device, clients):
    own, peers = prefixes(device)
    words = ["redis-server", "--port", PORT, "--bind", "0.0.0.0", "--save", "", "--protected-mode", "no"]
    listening = device.server.background([*peers, *words], "redis")
    try:
        device.wait_for_port(PORT)
        words = ["redis-benchmark", "-h", device.address, "-p", PORT, "-c", clients, "-t", "get", "--csv"]
        said = device.client.run([*own, *words, "-n", 20_000 * min(clients, 8)], timeout=240).stdout
    finally:
        listening.stop()
    return float(next(row["rps"] for row in csv.DictReader(said.splitlines()) if row["test"] == "GET"))


def nginx(session):
    device = session.device
    own, peers = prefixes(device)
    directory = device.server.namespace.directory / "nginx"
    (directory / "www").mkdir(parents=True, exist_ok=True)
    (directory / "www" / "small").write_bytes(b"x" * 200)
    (directory / "nginx.conf").write_text(NGINX.format(dir=directory, port=PORT))
    listening = device.server.background([*peers, "nginx", "-c", directory / "nginx.conf"], "nginx")
    try:
        device.wait_for_port(PORT)
        url = f"http://{device.address}:{PORT}/small"
        said = device.client.run([*own, "wrk", "-t", 1, "-c", 16, "-d", 2, url], timeout=60).stdout
    finally:
        listening.stop()
    return float(next(line.split()[1] for line in said.splitlines() if line.startswith("Requests/sec")))


@point
class SocketsIdle(SocketsPoint):
    name = "sockets-idle"
    title = "Sockets: idle connections"
    about = (
        "Memory of both programs for each of the connections, which have all talked, as the kernel counts it for "
        "processes; CPU of both programs while nobody says anything for two seconds."
    )
    metric = "bytes"

    def cases(self, quick):
        for count in (1000,) if quick else (1000, 10_000):
            yield Case({"what": count}, [RINGS, "tcp-loopback", "tcp-one-host"])

    def metrics(self, session, device, key):
        return streams(session, "idle", key["what"], seconds=2)
