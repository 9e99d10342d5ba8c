"""OVN on hosts whose Open vSwitch programs Viaduct: switches, routers, DHCP, ACLs, gateways, NAT, load balancers; which
of their flows Viaduct carries out. See lab/switched.py."""

from lab import eventually
from lab.config import Config
from lab.marks import switches
from lab.switched import address, mac, offloaded, only_echoes_by_ovs, pass_by, send, send_past
from lab.topology import tap

pytestmark = switches

# The other switch of the router, where o3 is.
FAR = "10.10.0.3"
# Outside the logical network: a machine, the router's own address, that of o2, and the load balancer's.
PEER, ROUTER, FLOATING, SERVICE = "10.8.0.1", "10.8.0.254", "10.8.0.22", "10.8.0.100"


def router_port(ovn, switch, number, address):
    """Adds a port of the router, in a switch."""
    ovn.nbctl("lrp-add", "router", f"to-{switch}", mac(number), address)
    ovn.nbctl("lsp-add", switch, f"from-{switch}", "--", "lsp-set-type", f"from-{switch}", "router")
    ovn.nbctl("lsp-set-addresses", f"from-{switch}", "router")
    ovn.nbctl("lsp-set-options", f"from-{switch}", f"router-port=to-{switch}")


def network(ovn):
    """Makes two switches, blue with o1 and o2 and red with o3, and a router between them."""
    for switch in ("blue", "red"):
        ovn.nbctl("ls-add", switch)
    for number, switch, at in [(1, "blue", address(1)), (2, "blue", address(2)), (3, "red", FAR)]:
        name = f"o{number}"
        ovn.nbctl("lsp-add", switch, name, "--", "lsp-set-addresses", name, f"{mac(number)} {at}")
    ovn.nbctl("lr-add", "router")
    router_port(ovn, "blue", 0x11, "10.9.0.254/24")
    router_port(ovn, "red", 0x12, "10.10.0.254/24")


def provider(ovn):
    """Makes a switch whose packets are those of the bridges that hosts name "outside". The router is there by chassis
    a."""
    ovn.nbctl("ls-add", "public")
    ovn.nbctl("lsp-add", "public", "provider", "--", "lsp-set-type", "provider", "localnet")
    ovn.nbctl("lsp-set-addresses", "provider", "unknown")
    ovn.nbctl("lsp-set-options", "provider", "network_name=outside")
    router_port(ovn, "public", 0x13, f"{ROUTER}/24")
    ovn.nbctl("lrp-set-gateway-chassis", "to-public", "a")


def container(lab, host, number):
    """Makes a container with its address and route."""
    at = FAR if number == 3 else address(number)
    guest = lab.ovs_container(host, f"o{number}", mac(number), f"{at}/24")
    guest.namespace.ip("route add default via", at.rsplit(".", 1)[0] + ".254")
    return guest


def chassis(lab, ovn, name, *numbers, underlay=None, wire=None):
    """Starts a host with these guests, its Open vSwitch, and an ovn-controller. `underlay`: the wire's address. `wire`:
    the name of a provider network, whose bridge the wire is in."""
    config = Config(name)
    for number in numbers:
        config.add("guest", name=f"o{number}", mode="ovs", **tap(f"o{number}"))
    if underlay or wire:
        lab.plug(name, mtu=1700)
        config.add("wire", name="up0", mode="ovs", driver="af-packet", device="up0", mtu=1700)
    host = lab.host(config)
    guests = [container(lab, host, number) for number in numbers]
    ovs = lab.controller(host)
    if underlay or wire:
        ovs.add_bridge("br-phy")
        ovs.add_port("up0", "br-phy")
    if wire:
        ovs.vsctl("set", "Open_vSwitch", ".", f"external_ids:ovn-bridge-mappings={wire}:br-phy")
    if underlay:
        host.namespace.ip(f"addr add {underlay}/24 dev br-phy")
        host.namespace.ip("link set br-phy up")
    ovn.join(ovs, underlay or "127.0.0.1")
    for guest in guests:
        ovn.bind(ovs, guest.name)
    return host, ovs, guests


def serve(lab, guest):
    """Serves files by HTTP, on port 5001."""
    return guest.background(["python3", "-m", "http.server", "5001", "--directory", lab.directory])


def gets(client, at):
    """Says whether a client gets something by HTTP."""
    get = f"import urllib.request; urllib.request.urlopen('http://{at}', timeout=60)"
    return client.run(["python3", "-c", get], check=False).returncode == 0


def test_switch_router_and_dhcp(lab):
    ovn = lab.ovn()
    network(ovn)
    options = {"server_id": "10.9.0.254", "server_mac": mac(0x11), "lease_time": 3600, "router": "10.9.0.254"}
    words = [f'options:{name}="{value}"' for name, value in options.items()]
    ovn.nbctl("lsp-set-dhcpv4-options", "o1", ovn.nbctl("create", "DHCP_Options", "cidr=10.9.0.0/24", *words).strip())
    _, ovs, (one, *_) = chassis(lab, ovn, "a", 1, 2, 3)
    # Within a switch, and by the router, which sets MACs and TTL.
    one.expect_ping(address(2))
    offloaded(ovs, rf"src={mac(1)},dst={mac(2)}", "0x0800", "actions:o2")
    pass_by(ovs, one, address(2))
    one.expect_ping(FAR)
    by_router = rf"set\(eth\(src={mac(0x12)},dst={mac(3)}\)\),set\(ipv4\(ttl=63\)\),o3"
    offloaded(ovs, r"in_port\(o1\)", "0x0800", by_router)
    pass_by(ovs, one, FAR)
    # The answer comes from ovn-controller, by OVS.
    lease = one.run(["busybox", "udhcpc", "-i", one.device, "-n", "-q", "-f", "-s", "/bin/true"])
    assert f"lease of {address(1)} obtained from 10.9.0.254" in lease.stdout + lease.stderr


def test_acls(lab):
    """ACLs without state are flows that Viaduct carries out; one with state keeps its whole switch in software."""
    ovn = lab.ovn()
    network(ovn)
    ovn.nbctl("acl-add", "blue", "from-lport", "1000", 'inport == "o1" && udp.dst == 1009', "drop")
    host, ovs, (one, two) = chassis(lab, ovn, "a", 1, 2)
    one.expect_ping(address(2))
    with lab.capture("o2", "tapo2", "udp") as seen:
        send(one, 1009)
        offloaded(ovs, "udp.*dst=1009", "actions:drop")
        send_past(ovs, one, 1009)
        seen.wait_for("udp.dstport == 1010", send_past(ovs, one, 1010))
    assert seen.fields("udp.dstport == 1009", "frame.number") == []
    assert host.drops()["ovs_drop"] >= 20
    ovn.nbctl("acl-add", "blue", "to-lport", "1000", 'outport == "o2" && tcp.dst == 5001', "allow-related")
    ovn.nbctl("--wait=hv", "sync")
    server = serve(lab, two)
    eventually(lambda: gets(one, f"{address(2)}:5001"), "an answer")
    server.stop()
    assert ovs.flows("proto=6", "ct") and not ovs.offloaded("proto=6")


def test_two_chassis(lab):
    """With Geneve between them, packets go in by flows that Viaduct carries out, and come out by OVS."""
    ovn = lab.ovn()
    network(ovn)
    _, ovs, (one,) = chassis(lab, ovn, "a", 1, underlay="10.8.0.1")
    chassis(lab, ovn, "b", 2, 3, underlay="10.8.0.2")
    lab.segment("a", "b")
    for to in (address(2), FAR):
        one.expect_ping(to)
        offloaded(ovs, r"in_port\(o1\)", "0x0800", "tnl_push.*geneve", *(["ttl=63"] if to == FAR else []))
        only_echoes_by_ovs(ovs, one, to)
    with lab.capture("b", "up0", "src host 10.8.0.1 and udp port 6081") as seen:
        send_past(ovs, one, 1001)
        seen.wait_for("geneve && udp.dstport == 1001", 20)
    assert seen.expert() == []


def test_gateway_nat_and_load_balancer(lab):
    """A router with a port on a provider network: its flows are Viaduct's until it translates addresses. Then there is
    ct() in its flows, and the others look at connections' marks, so that OVS keeps all to itself."""
    ovn = lab.ovn()
    network(ovn)
    provider(ovn)
    peer = lab.server("peer", f"{PEER}/24")
    peer.namespace.ip("route add 10.9.0.0/24 via", ROUTER)
    _, ovs, (one, two, three) = chassis(lab, ovn, "a", 1, 2, 3, wire="outside")
    lab.segment("peer", "a")
    # OVN asks for its MAC first.
    eventually(lambda: one.reaches(PEER), "the machine outside")
    offloaded(ovs, r"in_port\(o1\)", "0x0800", r"actions:set\(eth.*,set\(ipv4\(ttl=63\)\),up0")
    pass_by(ovs, one, PEER)
    # All of a switch by one address, and a guest by one of its own, both ways.
    peer.namespace.ip("route del 10.9.0.0/24")
    ovn.nbctl("lr-nat-add", "router", "snat", ROUTER, "10.9.0.0/24")
    ovn.nbctl("lr-nat-add", "router", "dnat_and_snat", FLOATING, address(2), "o2", mac(0x22))
    ovn.nbctl("lb-add", "web", f"{SERVICE}:80", f"{FAR}:5001")
    ovn.nbctl("lr-lb-add", "router", "web")
    ovn.nbctl("--wait=hv", "sync")
    with lab.capture("peer", "up0", "icmp") as seen:
        for guest, to in ((one, PEER), (two, PEER), (peer, FLOATING)):
            eventually(lambda guest=guest, to=to: guest.reaches(to), f"echoes from {to}")
        for source in (ROUTER, FLOATING):
            seen.wait_for(f"icmp.type == 8 && ip.src == {source} && ip.dst == {PEER}", 1)
    server = serve(lab, three)
    peer.namespace.ip("route add 10.10.0.0/24 via", ROUTER)
    eventually(lambda: gets(peer, SERVICE), "an answer by the load balancer")
    server.stop()
    # Also within the switch, where nothing is translated.
    one.expect_ping(address(2))
    assert ovs.flows("0x0800", "ct_(state|mark).0/0x[^)]*[1-9a-f]", "actions:o2") and not ovs.offloaded("0x0800")
