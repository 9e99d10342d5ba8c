"""BGP speakers of others: FRR, BIRD, and GoBGP."""

import json
import shutil

from .shell import Background, eventually, run

AS = 64512
BGPD = "/usr/lib/frr/bgpd"
FAMILIES = ("ipv4 vpn", "ipv6 vpn", "l2vpn evpn")
GOBGP_FAMILIES = ("l3vpn-ipv4-unicast", "l3vpn-ipv6-unicast", "l2vpn-evpn")


class Frr:
    """FRR's bgpd as a route reflector, without zebra: it needs no tables of the kernel."""

    def __init__(self, namespace, directory, address, clients, peers=(), passwords=None, all_paths=False, rates=None,
                 near=()):
        """`all_paths`: it offers clients to send them all paths of each route. `rates`: Mbit/s by client, which it sets
        as the bandwidths of the client's VPNv4 routes. `near`: neighbours on a link (RFC 5082)."""
        self.namespace, self.directory, self.address, self.rates = namespace, directory, address, rates or {}
        self.clients, self.peers, self.passwords, self.all_paths = clients, peers, passwords or {}, all_paths
        self.near, self.daemon = near, None

    def text(self):
        lines = ["hostname rr", f"router bgp {AS}", f" bgp router-id {self.address}", " no bgp default ipv4-unicast"]
        for neighbour in (*self.clients, *self.peers):
            lines += [f" neighbor {neighbour} remote-as {AS}", f" neighbor {neighbour} timers connect 3"]
        lines += [f" neighbor {neighbour} password {password}" for neighbour, password in self.passwords.items()]
        lines += [f" neighbor {neighbour} ttl-security hops 1" for neighbour in self.near]
        for family in FAMILIES:
            lines.append(f" address-family {family}")
            for neighbour in (*self.clients, *self.peers):
                lines.append(f"  neighbor {neighbour} activate")
            for client in self.clients:
                lines.append(f"  neighbor {client} route-reflector-client")
                lines += [f"  neighbor {client} addpath-tx-all-paths"] if self.all_paths else []
            if family == "ipv4 vpn":
                lines += [f"  neighbor {client} route-map at-{rate} in" for client, rate in self.rates.items()]
            lines.append(" exit-address-family")
        for rate in self.rates.values():
            lines += ["exit", f"route-map at-{rate} permit 1", f" set extcommunity bandwidth {rate}"]
        return "\n".join(lines) + "\n"

    def start(self):
        self.directory.mkdir(exist_ok=True)
        # It is of user frr, who must reach it.
        for above in (self.directory.parent, self.directory):
            above.chmod(0o755)
        (self.directory / "vty").mkdir(exist_ok=True)
        file = self.directory / "frr.conf"
        file.write_text(self.text())
        for path in (self.directory, self.directory / "vty", file):
            shutil.chown(path, "frr", "frr")
        words = [BGPD, "-Z", "-S", "-f", file, "-i", self.directory / "pid", "-l", self.address]
        words += ["--vty_socket", self.directory / "vty", "-P", 0]
        self.daemon = Background(self.namespace.words(words), self.directory / "bgpd.log")
        eventually(lambda: self.ask("show version", check=False).returncode == 0, "bgpd's answer")
        return self

    def ask(self, command, **options):
        """Runs a command of vtysh."""
        words = ["vtysh", "--vty_socket", self.directory / "vty", "-d", "bgpd", "-c", command]
        return run(self.namespace.words(words), **options)

    def stop(self):
        if self.daemon:
            self.daemon.stop()


class Router:
    """FRR's zebra and other daemons: bgpd hears of interfaces and of BFD, and the kernel of the namespace forwards."""

    def __init__(self, namespace, directory, text, names=("bgpd",)):
        self.namespace, self.directory, self.text = namespace, directory, text
        self.names = ("zebra", *names)
        self.daemons = []

    def start(self):
        (self.directory / "vty").mkdir(parents=True)
        self.directory.parent.chmod(0o755)
        file = self.directory / "frr.conf"
        file.write_text(self.text)
        for path in (self.directory, self.directory / "vty", file):
            shutil.chown(path, "frr", "frr")
        for name in self.names:
            words = [f"/usr/lib/frr/{name}", "-f", file, "-i", self.directory / f"{name}.pid", "-P", 0]
            words += ["--vty_socket", self.directory / "vty", "-z", self.directory / "zserv"]
            words += ["--bfdctl", self.directory / "control"] if name == "bfdd" else []
            self.daemons.append(Background(self.namespace.words(words), self.directory / f"{name}.log"))
            answers = lambda name=name: self.ask(name, "show version", check=False).returncode == 0
            eventually(answers, f"{name}'s answer")
        return self

    def ask(self, daemon, command, **options):
        """Runs a command of vtysh."""
        words = ["vtysh", "--vty_socket", self.directory / "vty", "-d", daemon, "-c", command]
        return run(self.namespace.words(words), **options)

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.stop()


class Bird:
    """A bird, whose kernel protocols give its routes to the namespace."""

    def __init__(self, namespace, directory, text):
        self.namespace, self.directory, self.text = namespace, directory, text
        self.daemon = None

    def start(self):
        self.directory.mkdir()
        (self.directory / "bird.conf").write_text(self.text)
        words = ["bird", "-f", "-c", self.directory / "bird.conf", "-s", self.directory / "ctl"]
        words += ["-P", self.directory / "pid"]
        self.daemon = Background(self.namespace.words(words), self.directory / "bird.log")
        eventually(lambda: self.ask("show status", check=False).returncode == 0, "bird's answer")
        return self

    def ask(self, command, **options):
        """Runs a command of birdc."""
        return run(self.namespace.words(["birdc", "-s", self.directory / "ctl", *command.split()]), **options)

    def stop(self):
        if self.daemon:
            self.daemon.stop()


class Bfdd:
    """FRR's bfdd alone, with sessions that its file names: without zebra, bgpd does not hear of them."""

    def __init__(self, namespace, directory, peers):
        """`peers`: lines of the file, as in "192.0.2.1 local-address 192.0.2.9"."""
        self.namespace, self.directory, self.peers = namespace, directory, peers
        self.daemon = None

    def start(self):
        (self.directory / "vty").mkdir(parents=True)
        self.directory.parent.chmod(0o755)
        file = self.directory / "bfdd.conf"
        file.write_text("bfd\n" + "".join(f" peer {peer}\n exit\n" for peer in self.peers) + "exit\n")
        for path in (self.directory, self.directory / "vty", file):
            shutil.chown(path, "frr", "frr")
        words = ["/usr/lib/frr/bfdd", "-f", file, "-i", self.directory / "pid", "--vty_socket", self.directory / "vty"]
        words += ["-P", 0, "-z", self.directory / "no-zebra", "--bfdctl", self.directory / "control"]
        self.daemon = Background(self.namespace.words(words), self.directory / "bfdd.log")
        eventually(lambda: self.ask("show version", check=False).returncode == 0, "bfdd's answer")
        return self

    def ask(self, *commands, **options):
        """Runs commands of vtysh, one after the other."""
        words = ["vtysh", "--vty_socket", self.directory / "vty", "-d", "bfdd"]
        return run(self.namespace.words([*words, *(word for command in commands for word in ("-c", command))]), **options)

    def sessions(self):
        """Returns the sessions by peer."""
        return {session["peer"]: session for session in json.loads(self.ask("show bfd peers json").stdout)}

    def stop(self):
        if self.daemon:
            self.daemon.stop()


class Gobgp:
    """A gobgpd that speaks to one neighbour."""

    def __init__(self, namespace, directory, address, neighbour, more_families=()):
        self.namespace, self.directory, self.address = namespace, directory, address
        self.neighbour, self.families = neighbour, (*GOBGP_FAMILIES, *more_families)
        self.daemon = None

    def text(self):
        families = "".join(
            f'[[neighbors.afi-safis]]\n[neighbors.afi-safis.config]\nafi-safi-name = "{family}"\n'
            for family in self.families
        )
        return (
            f'[global.config]\nas = {AS}\nrouter-id = "{self.address}"\nlocal-address-list = ["{self.address}"]\n'
            f'[[neighbors]]\n[neighbors.config]\nneighbor-address = "{self.neighbour}"\npeer-as = {AS}\n'
            "[neighbors.timers.config]\nconnect-retry = 3\n" + families
        )

    def start(self):
        self.directory.mkdir(exist_ok=True)
        file = self.directory / "gobgp.toml"
        file.write_text(self.text())
        words = ["gobgpd", "-f", file, "--api-hosts=127.0.0.1:50051", "--pprof-disable"]
        self.daemon = Background(self.namespace.words(words), self.directory / "gobgpd.log")
        eventually(lambda: self.ask("global", check=False).returncode == 0, "gobgpd's answer")
        return self

    def ask(self, *words, **options):
        """Runs a command of gobgp."""
        return run(self.namespace.words(["gobgp", *words]), **options)

    def add(self, family, *words):
        """Adds a route of its own."""
        self.ask("global", "rib", "add", "-a", family, *words)

    def remove(self, family, *words):
        """Removes a route of its own."""
        self.ask("global", "rib", "del", "-a", family, *words)

    def routes(self, family):
        """Returns the routes that it has, by what names them."""
        text = self.ask("global", "rib", "-a", family, "-j").stdout
        return json.loads(text or "{}")

    def stop(self):
        if self.daemon:
            self.daemon.stop()
