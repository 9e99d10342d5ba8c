#!/usr/bin/python3
"""Viaduct on one machine: two hosts, seven guests, and the paths between them.

      web (container)  db (VM)           app (VM)  ops (container)
       blue 10.1.1.1   blue 10.1.1.2      blue 10.1.1.11   red 10.2.2.1
              |          |                     |             |
           [ host a: viaductd ]             [ host b: viaductd ]         [ host c: plain Linux ]
              |      192.0.2.1                  192.0.2.2                 192.0.2.3    |
              |          +------------- underlay ---+------------------------+         |
              +------------------------- outside, 203.0.113.0/24 ----------------------+

Not drawn: containers sim1 and sim2 on host a and sim3 on host b (blue, 10.1.1.3, .4 and .13) each have a tap and a
verbs device; so has the virtual machine node on host a (10.1.1.5), which runs for one step. Host d is connected to no
other host; its containers left and right (green, 10.3.3.1 and .2) are behind an FPGA card, which is simulated clock by
clock. Hosts e, f and g have a container each, and find each other by BGP.

Hosts and containers are network namespaces; the virtual machines run in QEMU. The configurations are a.toml, b.toml,
d.toml and, for e, f and g, leaf.toml. `make demo` runs the demo; `make demo QEMU=no` uses containers instead of virtual
machines.
"""

import argparse
import csv
import json
import os
import re
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests/lib"))

from lab import Config, Failed, Lab, Lines, Meeting, Verbs, binary, eventually, meet, run, vm
from lab.bgp import Frr
from lab.traffic import round_trip, tcp_rate
from lab.perftest import perftest, rows
from lab.verbs_vm import VerbsVm

WEB, DB, APP, APP6, OPS = "10.1.1.1", "10.1.1.2", "10.1.1.11", "fd00:1::b", "10.2.2.1"
SIM1, SIM2, SIM3, RIGHT = "10.1.1.3", "10.1.1.4", "10.1.1.13", "10.3.3.2"
REFLECTOR = "192.0.2.9"
# Address on the underlay, and MAC and addresses of the container.
LEAVES = {
    name: (f"192.0.2.1{n}", f"02:00:00:00:05:0{n}", f"10.5.5.{n}", f"fd00:5::{n}") for n, name in enumerate("efg", 1)
}
LAN_A, LAN_C = "198.51.100.1", "198.51.100.2"
LINUX, LINUX_MAC, FLOATING, OUTSIDE = "10.1.1.99", "02:00:00:00:01:63", "203.0.113.7", "203.0.113.1"
MEMORY = f"{192 * 1024 + 8}K"  # of virtual machines: see tests/test_save.py


class Demo:
    def __init__(self, lab, machines):
        self.lab = lab
        self.machines = machines
        self.started = time.monotonic()
        self.at = "the start"
        self.guests = {}
        self.table = []
        self.translated = set()

    @contextmanager
    def step(self, title):
        """One step of the demo; the report of a failure inside it names its title."""
        self.at = title
        print(f"\n[{time.monotonic() - self.started:5.1f} s] {title}", flush=True)
        yield

    def say(self, text):
        for line in text.rstrip().splitlines():
            print(f"          {line}", flush=True)

    # Setting up

    def set_up(self):
        with self.step("two hosts with a viaductd each, and a plain Linux host with a VXLAN device"):
            self.lab.plug("a"), self.lab.plug("b")
            self.lab.plug("a", "ext0", mtu=1500, fabric="outside")
            self.linux = self.plain_linux()
            self.a, self.b = (self.lab.host(self.config(name)) for name in ("a", "b"))
            self.say("a: ready\nb: ready\nc: vxlan id 5001, no Viaduct")
        with self.step("seven guests"):
            places = {
                "web": self.a,
                "db": self.a,
                "app": self.b,
                "ops": self.b,
                "sim1": self.a,
                "sim2": self.a,
                "sim3": self.b,
            }
            machines = {
                name: self.lab.vm(host, name, memory=MEMORY)
                for name, host in places.items()
                if self.kind(host, name) == "vhost"
            }
            if machines and vm.accelerator() != "kvm":
                self.translated = set(machines)
            for name, host in places.items():
                if name not in machines:
                    self.guests[name] = self.lab.container(host, name)
                    self.say(f"{name}: container on host {host.name}")
            for name, machine in machines.items():
                begun = time.monotonic()
                self.guests[name] = machine.boot()
                self.say(f"{name}: virtual machine on host {places[name].name} ({vm.accelerator().split(',')[0]}), "
                         f"up after {time.monotonic() - begun:.1f} s more")

    def config(self, name):
        """Reads the host's configuration; without virtual machines, their guests are containers."""
        config = Config.read(HERE / f"{name}.toml")
        if not self.machines:
            config = config.without("guest", name="node")
        for table, keys in config.tables:
            if table == "guest" and keys["kind"] == "vhost" and not self.machines:
                del keys["socket"]
                keys.update(kind="tap", device=keys["name"])
        return config

    @staticmethod
    def kind(host, guest):
        return host.config.entry("guest", guest)["kind"]

    def plain_linux(self):
        linux = self.lab.server("c", "192.0.2.3/24")
        ip = linux.namespace.ip
        ip("link add vx0 address", LINUX_MAC, "type vxlan id 5001 dstport 4789 local 192.0.2.3 dev up0")
        ip("link set vx0 mtu 1450 up")
        ip("addr add", f"{LINUX}/24 dev vx0")
        for remote in ("192.0.2.1", "192.0.2.2"):
            linux.run(["bridge", "fdb", "append", "00:00:00:00:00:00", "dev", "vx0", "dst", remote])
        self.lab.plug("c", "ext0", mtu=1500, fabric="outside")
        ip("addr add", f"{OUTSIDE}/24 dev ext0")
        return linux

    # What is shown

    def inside_a_host(self):
        with self.step("inside a host: web -> db"):
            self.ping("web", "db", DB, "same host")
            self.ping("web", "db", "fd00:1::2")

    def across_by_mpls(self):
        with self.step("across hosts, MPLS over UDP: web -> app, db -> app"):
            with self.lab.capture("fabric", "b-up0", "udp port 6635") as seen:
                self.ping("web", "app", APP, "MPLS over UDP")
                self.ping("db", "app", APP)
            labels = {label for (label,) in seen.fields("icmp.type == 8", "mpls.label")}
            self.say(f"on the cable: MPLS label {', '.join(sorted(labels))} in UDP, the label of host b's guest app")
            if labels != {"111"}:
                raise Failed(f"labels {labels} instead of 111")

    def across_by_vxlan(self):
        with self.step("across hosts, VXLAN: web -> app by IPv6, web and app -> the plain Linux host"):
            with self.lab.capture("fabric", "b-up0", "udp port 4789") as seen:
                self.ping("web", "app", APP6, "VXLAN")
                self.ping("web", "plain Linux", LINUX, "VXLAN to Linux")
                self.ping("app", "plain Linux", LINUX)
                self.ping_from(self.linux, "plain Linux", "app", APP)
            if not seen.fields("vxlan.vni == 5001 && icmpv6.type == 128", "frame.number"):
                raise Failed("no VXLAN packets on the cable")

    def between_networks(self):
        with self.step("a route between networks: web (blue, host a) -> ops (red, host b)"):
            self.ping("web", "ops", OPS, "routed, MPLS over UDP")

    def rule(self):
        with self.step("a rule that drops: no ping from web to db"):
            strict = self.a.config.copy().rule(
                "blue", 100, "drop", source={"guest": "web"}, to={"guest": "db"}, protocol="icmp"
            )
            free = self.a.config
            self.a.apply(strict)
            self.guests["web"].expect_no_ping(DB, 2)
            drops = self.a.drops().get("rule_drop", 0)
            self.say(f"0 of 2 echoes; viaduct dropstats: rule_drop {drops}")
            if drops < 2:
                raise Failed(f"dropstats counts {drops} packets as rule_drop")
            self.a.apply(free)
            self.ping("web", "db", DB, note="after `viaduct apply` without the rule: ")

    def floating_address(self):
        with self.step(f"a floating address: web is {FLOATING} outside"):
            self.ping_from(self.linux, "outside", "web", FLOATING)
            with self.lab.capture("c", "ext0", "icmp") as seen:
                self.ping("web", "outside", OUTSIDE, "floating address")
            sources = {source for (source,) in seen.fields("icmp.type == 8", "ip.src")}
            self.say(f"seen outside from {', '.join(sources)}")
            if sources != {FLOATING}:
                raise Failed(f"web is seen as {sources}")

    def services(self):
        with self.step("a guest with nothing: fresh gets an address, names, its metadata, and a way out by the host"):
            for host, address in (("a", LAN_A), ("c", LAN_C)):
                self.lab.plug(host, "lan0", mtu=1500, fabric="lan").ip("addr add", f"{address}/24 dev lan0")
            self.a.namespace.sysctl("net.ipv4.ip_forward", 1)
            fresh = self.lab.container(self.a, "fresh")
            fresh.run(["ip", "address", "flush", "dev", fresh.device])
            leased = HERE.parent / "examples/leased"
            fresh.run(["busybox", "udhcpc", "-n", "-q", "-i", fresh.device, "-s", leased])
            (lease,) = self.a.viaduct("lease")
            self.say(f"DHCP: {', '.join(lease['addresses'])}")
            said = fresh.run(["busybox", "nslookup", "fresh.home.internal", "10.4.4.254"]).stdout
            metadata = fresh.run(["curl", "-sf", "-m", "10", "http://169.254.169.254/latest/meta-data/hostname"]).stdout
            self.say(f"metadata: it is {metadata}")
            with self.lab.capture("c", "lan0", "icmp") as seen:
                fresh.expect_ping(LAN_C, 3)
            sources = {source for (source,) in seen.fields("icmp.type == 8", "ip.src")}
            self.say(f"outside it is seen from {', '.join(sources)}, the host's own address")
            if lease["addresses"][0] not in said or sources != {LAN_A}:
                raise Failed(f"{said}\nseen from {sources}")

    def throughput(self):
        with self.step("iperf3, two seconds each, one connection"):
            for server, address in (("db", DB), ("app", APP), ("app", APP6), ("ops", OPS)):
                rate = tcp_rate(self.guests["web"], self.guests[server], address)
                self.say(f"web -> {server} ({address}): {rate:,.0f} Mbit/s")
                next(row for row in self.table if row["address"] == address)["rate"] = f"{rate:,.0f} Mbit/s"

    def verbs(self):
        with self.step(
            "verbs and sockets at the same addresses: sim1 -> sim2, both on host a, and sim1 -> sim3, on host b"
        ):
            trusting = self.a.config
            wary = trusting.copy()
            del wary.entry("guest", "sim2")["rdma_trust"]
            self.a.apply(wary)
            rows = [self.verbs_row("one host, by the daemon", "copy", "sim2", SIM2)]
            self.a.apply(trusting)
            rows += [self.verbs_row("one host, shared memory", "shared", "sim2", SIM2)]
            rows += [self.verbs_row("two hosts, RoCEv2 in MPLS over UDP", "roce", "sim3", SIM3)]
            head = ("", "ib_send_lat 8 B", "ib_write_bw 64 KiB", "ping, half", "iperf3")
            self.say("")
            for title, *figures in (head, *rows):
                self.say(f"{title:<36}" + "".join(f"{figure:>21}" for figure in figures))
            if (cpus := os.cpu_count()) < 6:
                self.say(
                    f"Programs that poll, workers and devices' threads share {cpus} CPUs here, "
                    "which slows the daemons down."
                )

    def verbs_row(self, title, transport, server, address):
        """Measures latency and bandwidth over verbs and over sockets; shows the queue pair."""
        client, server = self.guests["sim1"], self.guests[server]
        patient = ("-u", 18)  # a long timeout: nothing is lost, but others may use the CPU for a while
        echoes = round_trip(client.expect_ping(address, 10, interval=0.02))
        latency = perftest("ib_send_lat", client, server, address, "-s", 8, "-n", 300, *patient)[0].latency
        show = lambda: self.queue_pair(transport)
        rate = perftest("ib_write_bw", client, server, address, "-s", 1 << 16, "-D", 1, *patient, meanwhile=show)[
            0
        ].gbps
        sockets = tcp_rate(client, server, address, seconds=1)
        return (
            title,
            f"{latency:.1f} us",
            f"{rate:.2f} Gbit/s",
            f"{echoes * 500:.0f} us",
            f"{sockets / 1000:.2f} Gbit/s",
        )

    def queue_pair(self, transport):
        """Prints what `viaduct rdma qp` says about sim1's queue pair as soon as it uses this transport."""

        def lines():
            head, *rest = self.a.call("rdma", "qp", "--device", "sim1").stdout.splitlines()
            return next(([head, line] for line in rest if transport in line.split()), None)

        self.say("\n".join(eventually(lines, f"a queue pair with transport {transport}")))

    def sockets(self):
        with self.step("unmodified programs without the kernel's TCP between them: sim1 -> sim2, `viaduct run`"):
            rows = [("", "iperf3", "redis GET, 1 client", "redis GET, 20 clients")]
            for title, with_library in (("by TCP", False), ("by rings in shared memory", True)):
                client, server = (self.programs(guest, with_library)[at] for at, guest in enumerate(("sim1", "sim2")))
                before = self.a.viaduct("sockets")["matched"]
                rate = self.iperf3(client, server)
                rows.append((title, f"{rate / 1e9:.2f} Gbit/s", *self.redis(client, server)))
                moved = self.a.viaduct("sockets")["matched"] - before
                # Of each program one connection at least; iperf3 also has one that says little.
                if (moved > 20) != with_library:
                    raise Failed(f"{title}: {moved} connections were moved")
            self.say(f"viaduct sockets: {moved} connections were moved to rings")
            for title, *figures in rows:
                self.say(f"{title:<30}" + "".join(f"{figure:>24}" for figure in figures))

    def programs(self, guest, with_library):
        """Returns functions that run a command of a guest to its end, and in the background."""
        run = [binary("viaduct"), "--run-dir", self.a.run_dir, "run", "--guest", guest, "--"] if with_library else []
        label = "rings" if with_library else "tcp"
        start = lambda *words: self.guests[guest].background([*run, *words], f"{guest}-{words[0]}-{label}")
        return lambda *words: self.guests[guest].run([*run, *words]).stdout, start

    def iperf3(self, client, server, port=5203):
        """Returns the rate of one connection in bit/s."""
        listener = server("iperf3", "-s", "-1", "-p", port, "--forceflush")
        listener.wait_for("listening")
        said = client("iperf3", "-c", SIM2, "-p", port, "-J", "-t", 1)
        listener.stop()
        return json.loads(said)["end"]["sum_received"]["bits_per_second"]

    def redis(self, client, server, port=6379):
        """Returns the GET requests a second, with one client and with many."""
        words = ["redis-server", "--port", port, "--bind", SIM2, "--save", "", "--protected-mode", "no"]
        listener = server(*words)
        listener.wait_for("eady to accept")
        ask = ["redis-benchmark", "-h", SIM2, "-p", port, "-t", "get", "--csv"]
        answers = [client(*ask, "-c", clients, "-n", 2500 * (clients + 1)) for clients in (1, 20)]
        listener.stop()
        rates = (next(row["rps"] for row in csv.DictReader(said.splitlines())) for said in answers)
        return [f"{float(rate):,.0f}/s" for rate in rates]

    def verbs_in_a_machine(self):
        with self.step("verbs inside a virtual machine, node, by windows of memory: with the container sim1"):
            if not self.machines:
                self.say("skipped: without QEMU there is no virtual machine")
                return
            wary = self.a.config
            trusting = wary.copy()
            trusting.entry("guest", "node")["rdma_trust"] = "sim"
            shown = [self.machine_row("its own window, by the daemon", "copy")]
            self.a.apply(trusting)
            shown.append(self.machine_row("a window in common, shared memory", "shared"))
            self.a.apply(wary)
            for way, *figures in (("", "ib_send_lat 8 B", "ib_write_bw 64 KiB"), *shown):
                self.say(f"{way:<36}" + "".join(f"{figure:>21}" for figure in figures))
            if vm.accelerator() != "kvm":
                self.say("node polls without KVM, which is slow: these figures say nothing about Viaduct.")

    def machine_row(self, way, transport):
        """Starts node with the windows that it has now; measures between it and sim1, and shows the queue pair."""
        machine = self.lab.vm(self.a, "node", VerbsVm)
        inside = machine.boot(180).programs
        beside = Verbs(self.guests["sim1"].namespace, self.a, "sim1", self.lab.directory, SIM1)
        kernel, *devices = machine.shell("uname -sr; ls -1 /dev/dax*").stdout.splitlines()
        self.say(f"node: {kernel}, as Debian has it, with {' and '.join(devices)}")
        words = ["-d", "DEVICE", "-x", 1, "-F", "-u", 18]
        lat, bw = "ib_send_lat", "ib_write_bw"
        latency = rows(lat, meet(inside, beside, lat, *words, "-s", 8, "-n", 300, timeout=120))[0].latency
        with Meeting(inside, beside, [bw, *words, "--report_gbits", "-s", 1 << 16, "-D", 2]) as meeting:
            self.queue_pair(transport)
            rate = rows(bw, meeting.expect_success(120))[0].gbps
        machine.stop()
        return way, f"{latency:.1f} us", f"{rate:.2f} Gbit/s"

    def restart(self):
        with self.step("iperf3 goes on while viaductd of host a is killed, then upgraded: web -> sim1, both on host a"):
            web, server, port = self.guests["web"], self.guests["sim1"], 5202
            number = lambda: web.run(["cat", f"/sys/class/net/{web.device}/ifindex"]).stdout.strip()
            before = number()
            listener = server.background(["iperf3", "-s", "-1", "-p", port, "--forceflush"])
            listener.wait_for("listening")
            client = web.background(["iperf3", "-c", SIM1, "-p", port, "-t", 60, "--forceflush"])
            show = self.seconds_of(client)
            show(2)
            begun = time.monotonic()
            self.a.kill()
            self.a.start()
            self.say(f"kill -9, and a new viaductd: ready after {time.monotonic() - begun:.1f} s")
            show(3)
            self.say(f"viaductd --replace, an upgrade: packets waited {self.a.replace():.0f} ms")
            again = sum(show(3))
            if not client.running() or number() != before:
                raise Failed(f"web's interface was number {before}, and is {number()}: {client.describe()}")
            client.stop(signal.SIGINT)
            self.say(f"one connection all the time, never reset, {again} segments sent again; "
                     f"web's interface has number {before}, as before")

    def seconds_of(self, client):
        """Returns a function that prints iperf3's output of each second, until so many more have passed, and returns
        how many segments were sent again in each second so far."""
        shown = []

        def show(count):
            seconds = lambda: re.findall(r"sec .* (\S+ \wbits/sec) +(\d+) ", client.text())
            goal = len(seconds()) + count
            while len(shown) < goal:
                eventually(lambda: len(seconds()) > len(shown) or not client.running(), "iperf3's next second", 20)
                if not client.running():
                    raise Failed(client.describe())
                rate, again = seconds()[len(shown)]
                shown.append(int(again))
                self.say(f"second {len(shown)}: {rate:>15}, segments sent again: {again}")
            return shown

        return show

    def migrate(self):
        """Migrates db. Only now does host b have this guest, too, and host a a route to it there, because without
        virtual machines db is a container, which cannot migrate."""
        with self.step("a virtual machine migrates while it runs: db, from host a to host b"):
            here, there = self.a.config.copy(), self.b.config.copy()
            here.entry("guest", "db")["standby"] = True
            there = there.without("mac", mac=here.entry("guest", "db")["mac"]).add("guest", **here.entry("guest", "db"))
            tunnel = {"tunnel": "mpls-over-udp", "remote": "192.0.2.2", "label": 102}
            self.a.apply(here.add("route", network="blue", prefix=f"{DB}/32", to=[tunnel]))
            self.b.apply(there)
            self.say("db is a guest of both hosts now, on standby where its QEMU is not")
            lines = Lines(self.guests["web"], self.guests["db"], DB)
            echoes = self.guests["web"].background(["ping", "-n", "-i", "0.02", DB], "echoes")
            begun = time.monotonic()
            lines.vm, told = self.lab.migrate(lines.vm, self.b, self.connections_of_db)
            self.guests["db"] = lines.vm
            self.say(f"moved after {time.monotonic() - begun:.1f} s; it stood still {told['downtime']} ms, says QEMU")
            lines.more()
            echoes.stop(signal.SIGINT)
            sent, received = re.search(r"(\d+) packets transmitted, (\d+) received", echoes.text()).groups()
            self.say(f"a TCP stream from web goes on: {lines.received():,} numbered lines arrived, none lost or twice")
            self.say(f"pings from web, 50 a second: {received} of {sent} echoes")
            is_db = lambda vif: vif["name"] == "db" and vif["up"]
            places = [host.name for host in (self.a, self.b) if any(map(is_db, host.viaduct("vif")))]
            if places != ["b"]:
                raise Failed(f"db is connected to hosts {places}")
            self.ping("web", "db", DB)
            self.ping("app", "db", DB)

    def connections_of_db(self):
        """Takes db's connections from host a to host b, as `viaduct guest export | viaduct guest import` does."""
        viaduct = binary("viaduct")
        export, take = (f"{viaduct} --run-dir {host.run_dir} guest" for host in (self.a, self.b))
        told = run(["sh", "-c", f"{export} export db | {take} import db"]).stdout
        self.say(f"viaduct guest export, import: {told.splitlines()[0]}")

    def fabric(self):
        with self.step("hosts e, f and g, with nothing about each other in their files, find each other by BGP"):
            clients = [address for address, *_ in LEAVES.values()]
            at = self.lab.server("rr", f"{REFLECTOR}/24").namespace
            reflector = Frr(at, self.lab.directory / "rr", REFLECTOR, clients)
            self.lab.cleanup.callback(reflector.stop)
            reflector.start()
            hosts = {name: self.leaf(name) for name in LEAVES}
            begun = time.monotonic()
            others = lambda host: [route for route in host.viaduct("rt") if route["owner"] == "bgp"]
            for host in hosts.values():
                eventually(lambda: len(others(host)) == 4, "the routes to both other guests, by IPv4 and IPv6")
            self.say(f"FRR reflects; all routes are there after {time.monotonic() - begun:.1f} s. On host e:")
            self.say(hosts["e"].call("bgp", "routes").stdout)
            for source, target in ("ef", "fg", "ge"):
                address = LEAVES[target][2]
                self.ping(f"leaf-{source}", f"leaf-{target}", address, "BGP, MPLS over UDP" if source == "e" else None)
                self.guests[f"leaf-{source}"].expect_ping(LEAVES[target][3], 2)
            reflector.stop()
            self.ping("leaf-e", "leaf-f", LEAVES["f"][2], note="after FRR has ended: ")

    def leaf(self, name):
        """Starts a host with the file that all leaves have in common."""
        underlay, mac, *addresses = LEAVES[name]
        config = Config.read(HERE / "leaf.toml")
        config.name = config.host["name"] = name
        config.host["tunnel_source"] = underlay
        guest = f"leaf-{name}"
        config.entry("guest", "leaf-e").update(name=guest, device=guest, mac=mac, addresses=addresses)
        self.lab.server(name, f"{underlay}/24")
        host = self.lab.host(config)
        self.guests[guest] = self.lab.container(host, guest)
        return host

    def card(self):
        with self.step("an FPGA card, simulated clock by clock from its SystemVerilog: left -> right, both on host d"):
            host = self.lab.host(Config.read(HERE / "d.toml"))
            self.guests.update({name: self.lab.container(host, name) for name in ("left", "right")})
            self.ping("left", "right", RIGHT, "simulated card")
            card = host.viaduct("status")["card"]
            forwarded, left = card.get("forwarded", 0), {
                row["reason"]: row["packets"] for row in card.get("punted", [])
            }
            self.say(f"viaduct status: {card['received']} packets reached the card: {forwarded} forwarded, "
                     f"{sum(left.values())} left to the host")
            self.say("left to the host: " + ", ".join(f"{reason} {packets}" for reason, packets in left.items()))
            self.say(
                f"{card['busy']:,} clocks of {1000 / card['clock']:g} ns with packets inside, "
                f"{card['busy'] / card['received']:.0f} a packet; the round trip includes the time to simulate them"
            )
            if forwarded < 5:  # of 10 requests: the host handles the first, and the replies
                raise Failed(f"the card forwarded only {forwarded} packets")

    def explain(self):
        with self.step("viaduct explain: what happens to a packet from web to app, without sending it"):
            self.say(self.a.call("explain", "--in", "web", f"{WEB} > {APP} / tcp 40000 > 80").stdout)

    def summary(self):
        with self.step("all of it"):
            self.say(f"{'from':<12}{'to':<14}{'path':<24}{'round trip':>12}{'iperf3':>16}")
            for row in self.table:
                ends = {end: row[end] + "*" * (row[end] in self.translated) for end in ("source", "target")}
                self.say("{source:<12}{target:<14}{path:<24}{latency:>9.3f} ms{rate:>16}".format(**row | ends))
            if self.translated:
                self.say(
                    "\n* a virtual machine that QEMU translates, because there is no KVM: slow, and its figures say "
                    "nothing about Viaduct"
                )

    def ping(self, source, target, address, path=None, note=""):
        self.ping_from(self.guests[source], source, target, address, path, note)

    def ping_from(self, guest, source, target, address, path=None, note=""):
        """Pings ten times; with `path` the result becomes a row of the table."""
        latency = round_trip(guest.expect_ping(address, 10, interval=0.02))
        self.say(f"{note}{source} -> {target} ({address}): 10 of 10 echoes, {latency:.3f} ms")
        if path:
            row = {
                "source": source,
                "target": target,
                "address": address,
                "path": path,
                "latency": latency,
                "rate": "",
            }
            self.table.append(row)

    def run(self):
        self.set_up()
        self.inside_a_host()
        self.across_by_mpls()
        self.across_by_vxlan()
        self.between_networks()
        self.rule()
        self.floating_address()
        self.services()
        self.throughput()
        self.verbs()
        self.sockets()
        self.verbs_in_a_machine()
        self.restart()
        if self.machines:
            self.migrate()
        self.fabric()
        self.card()
        self.explain()
        self.summary()

    def report(self, failure):
        """Prints which step failed, why, and the end of the daemons' logs and drops."""
        print(f"\nFAILED at: {self.at}\n{failure}", file=sys.stderr)
        for name, host in self.lab.hosts.items():
            if host.daemon is None:
                continue
            print(f"\nhost {name}, end of viaductd's log:\n{host.daemon.describe(15)}", file=sys.stderr)
            if host.daemon.running():
                drops = host.call("dropstats", "--log", "5", check=False)
                print(f"\nhost {name}, dropped:\n{drops.stdout}{drops.stderr}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description="The demo; see the top of this file.")
    parser.add_argument("--no-vm", action="store_true", help="containers instead of virtual machines")
    machines = not parser.parse_args().no_vm
    # These signals end it with the same cleanup as ^C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    if machines:
        vm.build_images()
        vm.build_images(vm.RDMA_IMAGES)
    with Lab() as lab:
        demo = Demo(lab, machines)
        try:
            demo.run()
        except Failed as failure:
            demo.report(failure)
            return 1
        except KeyboardInterrupt:
            print(f"\nstopped at: {demo.at}; cleaning up", file=sys.stderr)
            return 130
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            demo.at = "cleaning up"
    print(f"\nAll of it worked, in {time.monotonic() - demo.started:.0f} s; everything is removed again.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
