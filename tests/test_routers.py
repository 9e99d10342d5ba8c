"""Routers that run in guests."""

from lab import eventually
from lab.topology import SEATS, tunnel_routes, two_hosts

A1, B1 = SEATS["a1"], SEATS["b1"]


class Bgp:
    """FRR's bgpd in a guest, without zebra: it sends with a TTL of 1, as eBGP does (RFC 4271)."""

    def __init__(self, guest, own, system, peer, peer_system):
        self.guest = guest
        self.directory = guest.namespace.directory / f"bgp-{guest.name}"
        self.directory.mkdir(mode=0o755)
        config = self.directory / "bgpd.conf"
        config.write_text(
            f"router bgp {system}\n bgp router-id {own}\n no bgp ebgp-requires-policy\n"
            f" neighbor {peer} remote-as {peer_system}\n neighbor {peer} timers 1 3\n"
            f" neighbor {peer} timers connect 1\n"
        )
        words = ["/usr/lib/frr/bgpd", "-f", config, "-i", self.directory / "pid", "--vty_socket", self.directory]
        guest.background([*words, "-Z", "-S", "-u", "root", "-g", "root", "-A", "127.0.0.1", "--log", "stdout"], "bgpd")

    def is_established(self):
        shown = self.guest.run(["vtysh", "--vty_socket", self.directory, "-c", "show bgp summary json"], check=False)
        return shown.returncode == 0 and '"state":"Established"' in shown.stdout.replace(" ", "")


def test_bgp_speakers_of_one_subnet_find_each_other(lab):
    """Their packets have a TTL of 1, which the way through the tunnel must not cost."""
    connect = lambda config, *remotes: tunnel_routes(config, "mpls-over-udp", *remotes)
    _, guests = two_hosts(lab, connect)
    guests["a1"].expect_ping(B1.address)
    one = Bgp(guests["a1"], A1.address, 65001, B1.address, 65002)
    other = Bgp(guests["b1"], B1.address, 65002, A1.address, 65001)
    eventually(lambda: one.is_established() and other.is_established(), "an established BGP session")
