"""A BGP session by a wire that is Viaduct's own: from an address that it lends to the host."""

from lab import Server, eventually
from lab.bgp import Frr
from lab.topology import SEATS, UNDERLAY
from test_bgp import bgp_config, has_route

A1, B1 = SEATS["a1"], SEATS["b1"]
REFLECTOR = "192.0.2.250"
LENT = {"a": "192.0.2.101", "b": "192.0.2.102"}


def lending(name):
    """Configures a host that has nothing but the wire, and an interface of the kernel's by it."""
    config = bgp_config(name, [f"{name}1"], REFLECTOR)
    config.add("network", name="lan", vrf=9, gateways=[f"{UNDERLAY[name]}/24"], wire="up0", bgp=False)
    mac = f"02:00:00:00:0a:0{ord(name) - ord('a')}"
    config.add("guest", name="node", network="lan", kind="host", device="vd0", mac=mac, addresses=[LENT[name]])
    return config


def test_a_session_runs_from_an_address_that_is_lent_to_the_host(lab):
    rr = lab.plug("rr")
    rr.ip(f"addr add {REFLECTOR}/24 dev up0")
    reflector = Frr(rr, lab.directory / "rr", REFLECTOR, list(LENT.values()))
    lab.cleanup.callback(reflector.stop)
    reflector.start()
    hosts, guests = {}, {}
    for name in "ab":
        lab.plug(name)
        hosts[name] = lab.host(lending(name))
        guests[name] = lab.container(hosts[name], f"{name}1")
    for name, seat in (("a", B1), ("b", A1)):
        eventually(lambda: has_route(hosts[name], f"{seat.address}/32"), "the other's route")
    guests["a"].expect_ping(B1.address)
    Server(hosts["a"].namespace).expect_ping(LENT["b"])
    # It stays while the daemon is replaced.
    hosts["a"].replace()
    guests["a"].expect_ping(B1.address)
    eventually(lambda: hosts["a"].viaduct("bgp")["peers"][0]["state"] == "Established", "the new daemon's session")
    guests["a"].expect_ping(B1.address)
