"""The speaker alone, with FRR as reflector or GoBGP as the only peer: routes of all kinds go both ways."""

import subprocess

import pytest

from lab import eventually
from lab.bgp import AS, Frr, Gobgp
from lab.host import REPOSITORY
from lab.shell import run

ADDRESS = {"me": "198.51.100.1", "go": "198.51.100.3", "rr": "198.51.100.9"}
RD, TARGET = f"{AS}:7", f"{AS}:5001"
MAC, OWN_MAC, ROUTER_MAC = "02:00:00:00:01:02", "02:00:00:00:00:07", "02:aa:00:00:00:12"
VPN, EVPN = f"rd {RD} rt {TARGET} nexthop {{go}}", f"rd {RD} rt {TARGET} encap vxlan {{extra}} nexthop {{go}}"
WITH_MAC = EVPN.replace("{extra}", f"router-mac {ROUTER_MAC}")
# What GoBGP announces, and what the speaker says of it.
THEIRS = [
    ("vpnv4", f"10.9.0.0/16 label 2000 {VPN} encap mpls-in-udp", "route 7 10.9.0.0/16: {go} mpls-over-udp 2000"),
    ("vpnv4", f"10.8.0.0/16 label 2002 {VPN} encap gre", "route 7 10.8.0.0/16: {go} mpls-over-gre 2002"),
    ("vpnv6", f"fd00:9::/64 label 2001 {VPN}", "route 7 fd00:9::/64: {go} mpls-over-udp 2001"),
    (
        "evpn",
        f"macadv {MAC} 10.1.1.6 esi 0 etag 0 label 5001,5002 {WITH_MAC}",
        f"mac 7 {MAC}: {{go}} vxlan 5001 moved 0",
    ),
    (
        "evpn",
        "multicast {go} etag 0 " + EVPN.replace("{extra}", "pmsi ingress-repl 5001 {go}"),
        "flood 7: {go} vxlan 5001",
    ),
    (
        "evpn",
        f"prefix 10.1.3.0/24 etag 0 gw 0.0.0.0 label 5003 {WITH_MAC}",
        "route 7 10.1.3.0/24: {go} vxlan 5003",
    ),
]
# What the speaker announces, and the family and text by which GoBGP shows it.
OURS = [
    (f"vpn {RD} 10.7.0.0/24 1007 {TARGET}", "vpnv4", "10.7.0.0/24"),
    (f"vpn {RD} fd00:7::/64 1008 {TARGET}", "vpnv6", "fd00:7::/64"),
    (f"prefix {RD} 10.6.0.0/24 6001 {TARGET} {ROUTER_MAC}", "evpn", "10.6.0.0/24"),
    (f"prefix {RD} fd00:6::/64 6001 {TARGET} {ROUTER_MAC}", "evpn", "fd00:6::/64"),
    (f"mac {RD} {OWN_MAC} 10.7.0.7 5001 {TARGET} 3", "evpn", OWN_MAC),
    (f"flood {RD} 5001 {TARGET}", "evpn", f"[ip:{ADDRESS['me']}]"),
]


@pytest.fixture(scope="module")
def program():
    words = ["cargo", "build", "--profile", "checked", "--locked", "-p", "bgp", "--example", "speaker"]
    run(words, timeout=600)
    return REPOSITORY / "target/checked/examples/speaker"


def plug(lab, name):
    namespace = lab.plug(name, "ctl0", fabric="control")
    namespace.ip("addr add", f"{ADDRESS[name]}/24", "dev ctl0")
    return namespace


class Speaker:
    """The example program of the crate."""

    def __init__(self, lab, program, namespace, peer):
        self.log = lab.directory / "speaker.log"
        words = namespace.words([program, ADDRESS["me"], AS, ADDRESS[peer], AS, 7, TARGET])
        with open(self.log, "wb") as output:
            self.process = subprocess.Popen(
                [str(word) for word in words], stdin=subprocess.PIPE, stdout=output, stderr=output, text=True
            )
        lab.cleanup.callback(self.process.kill)

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def expect(self, text):
        eventually(lambda: text.format(**ADDRESS) in self.log.read_text() or self.process.poll() is not None, text)
        assert self.process.poll() is None, self.log.read_text()


def has(go, family, text):
    return text in go.ask("global", "rib", "-a", family).stdout


@pytest.mark.nightly
@pytest.mark.parametrize("by", ["rr", "go"])
def test_routes_of_all_kinds_go_both_ways(lab, program, by):
    me = plug(lab, "me")
    # FRR knows no route target constraint.
    neighbour, more = (ADDRESS["rr"], []) if by == "rr" else (ADDRESS["me"], ["rtc"])
    go = Gobgp(plug(lab, "go"), lab.directory / "go", ADDRESS["go"], neighbour, more)
    if by == "rr":
        reflector = Frr(plug(lab, "rr"), lab.directory / "rr", ADDRESS["rr"], [ADDRESS["me"], ADDRESS["go"]])
        lab.cleanup.callback(reflector.stop)
        reflector.start()
    lab.cleanup.callback(go.stop)
    go.start()
    with lab.capture("me", device="ctl0", expression="tcp port 179") as seen:
        speaker = Speaker(lab, program, me, by)
        for route, _, _ in OURS:
            speaker.say(f"+ {route}")
        others = THEIRS[0][1].replace("10.9.", "10.99.").replace("label 2000", "label 2999").replace(TARGET, f"{AS}:9999")
        go.add("vpnv4", *others.format(**ADDRESS).split())
        for family, words, _ in THEIRS:
            go.add(family, *words.format(**ADDRESS).split())
        for _, _, expected in THEIRS:
            speaker.expect(expected)
        speaker.expect(f"neighbour 7 10.1.1.6: {MAC}")
        # GoBGP marks no end of its routes; after half a minute its silence does.
        speaker.expect("Synchronized")
        for route, family, text in OURS:
            eventually(lambda: has(go, family, text), text)
            speaker.say(f"- {route}")
            eventually(lambda: not has(go, family, text), f"no {text}")
        go.remove("vpnv4", *THEIRS[0][1].format(**ADDRESS).split())
        speaker.expect("route 7 10.9.0.0/16: \n")
    assert seen.expert() == []
    assert any("1007 (bottom)" in field for [field] in seen.fields("bgp.label_stack", "bgp.label_stack"))
    # Another tenant's route came only where the peer could not know that it is not wanted.
    assert bool(seen.fields('bgp.label_stack contains "2999"', "frame.number")) == (by == "rr")
