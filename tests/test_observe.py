"""Seeing what happens: explain, capture, dropped packets, metrics."""

import re
import urllib.request

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from lab import PATIENCE, RawPort, binary, eventually, expert, fields
from lab.shell import run
from lab.silence import unwanted
from lab.topology import GATEWAY_MAC, SEATS, host_config, tap, tunnel_routes
from lab.traffic import send, send_in_vain

A1, A2, B1 = SEATS["a1"], SEATS["a2"], SEATS["b1"]


@pytest.fixture
def host(lab):
    lab.plug("a")
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2")}, metrics="127.0.0.1:9101")
    tunnel_routes(config, "mpls-over-udp", "b1")
    config.rule("blue", 10, "drop", protocol="udp", ports="7653")
    host = lab.host(config)
    host.a1, host.a2 = lab.container(host, "a1"), lab.container(host, "a2")
    lab.namespace("fabric").ip("addr add 192.0.2.2/24 dev br0")
    return host


# packet, delivered to a2?, word of the explanation
QUESTIONS = {
    "bridged": (Ether(src=A1.mac, dst=A2.mac) / IP(src=A1.address, dst=A2.address) / TCP(dport=80), True, "a2"),
    "rule": (
        Ether(src=A1.mac, dst=A2.mac) / IP(src=A1.address, dst=A2.address) / UDP(sport=9, dport=7653),
        False,
        "rule_drop",
    ),
    "spoofed": (
        Ether(src=A1.mac, dst=A2.mac) / IP(src="10.1.1.77", dst=A2.address) / ICMP(),
        False,
        "address_spoofed",
    ),
    "no route": (
        Ether(src=A1.mac, dst=GATEWAY_MAC) / IP(src=A1.address, dst="172.16.9.9") / ICMP(),
        False,
        "no_route",
    ),
    "tunnel": (Ether(src=A1.mac, dst=GATEWAY_MAC) / IP(src=A1.address, dst=B1.address) / ICMP(), False, str(B1.label)),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_explain_says_what_then_happens(host, question):
    packet, delivered, word = QUESTIONS[question]
    frame = bytes(packet)
    told = host.call("explain", "--in", "a1", frame.hex()).stdout
    assert word in told, told
    assert host.viaduct("explain", "--in", "a1", frame.hex())
    assert host.viaduct("flow") == [], "explain must leave no trace"
    drops = host.drops()
    with RawPort(host.a1.namespace, host.a1.device) as sender, RawPort(host.a2.namespace, host.a2.device) as receiver:
        sender.send(frame)
        its = lambda seen: seen[:34] == frame[:34]
        reasons = lambda: {reason for reason, count in host.drops().items() if count > drops.get(reason, 0)}
        if delivered:
            receiver.expect(its, "frame")
        elif word in ("rule_drop", "address_spoofed", "no_route"):
            eventually(lambda: reasons() == {word}, f"drop {word}")
        assert not unwanted(receiver, A2, its), "not at all, or more than once"


def test_explain_takes_text_and_pcap(host, lab):
    told = host.call("explain", "--in", "a1", f"{A1.address} > {A2.address} / udp 1 > 7653").stdout
    assert "rule_drop" in told, told
    file = lab.directory / "question.pcap"
    wrpcap(str(file), [QUESTIONS["no route"][0]])
    assert "no_route" in host.call("explain", "--in", "a1", file).stdout


def test_explain_completes_what_is_left_out(host):
    verdict = lambda text: host.viaduct("explain", "--in", "a1", text)["verdict"]
    for layer in ("icmp", "udp 53", "tcp 80", "icmp echo 1 1"):
        assert verdict(f"{A1.address} > {A2.address} / {layer}") == "forward", layer
        assert verdict(f"ip4 {A1.address} > {A2.address} / {layer}") == "forward", layer
    assert verdict(f"{A1.address6} > {A2.address6} / icmp6") == "forward"


def test_explain_counts_a_port_that_is_down(host):
    text = f"{A1.address} > {A2.address} / icmp"
    asked = lambda *words: host.call("explain", "--in", "a1", *words, text, check=False)
    assert asked("--exit-code").returncode == 0
    host.a2.namespace.ip("link set", host.a2.device, "down")
    eventually(lambda: host.viaduct("vif", "show", "a2")["state"] == "down", "the tap's state")
    told = host.viaduct("explain", "--in", "a1", text)
    assert (told["verdict"], told["reason"]) == ("drop", "tx_down"), told
    port = next(step for step in told["steps"] if step["table"] == "port")
    assert (port["key"], port["result"]) == ("a2", "down")
    assert asked().returncode == 0 and "tx_down" in asked().stdout
    assert asked("--exit-code").returncode == 4
    # Viaduct answers for its gateway itself, whoever else is down.
    assert host.viaduct("explain", "--in", "a1", f"{A1.address} > 10.1.1.254")["verdict"] == "reply"


def test_explain_exit_code_of_a_packet_that_waits(host):
    text = f"{A1.address} > {B1.address}"
    done = host.call("explain", "--exit-code", "--in", "a1", text, check=False)
    assert (done.returncode, "hold" in done.stdout) == (5, True), done.stdout


def test_explain_from_an_attached_wire(lab):
    """On the wire, the gateway has the wire's MAC, guests have theirs, and the VLAN is that of their network."""
    lab.plug("a")
    config = host_config("a", {"a1": tap("a1")})
    config.add("network", name="lan", vrf=7, gateways=["10.7.7.254/24"], wire="up0", vlan=7)
    config.add("guest", name="l1", network="lan", kind="tap", device="tapl1", mac="02:00:00:00:07:01",
               addresses=["10.7.7.1"])
    host = lab.host(config)
    lab.container(host, "l1")
    told = host.viaduct("explain", "--in", "up0", "10.7.7.9 > 10.7.7.1 / icmp")
    assert "> 02:00:00:00:07:01 vlan 7" in told["packet"] and told["verdict"] == "forward", told
    told = host.viaduct("explain", "--in", "up0", "10.7.7.9 > 10.7.7.254 / icmp")
    assert told["verdict"] in ("reply", "hold"), told


def test_manual_pages_have_the_grammars(lab):
    run([binary("viaduct"), "man", lab.directory])
    explain, capture = ((lab.directory / f"viaduct-{name}.1").read_text() for name in ("explain", "capture"))
    assert "arp request SENDER" in explain and "portrange" in capture


def test_dropped_packets_are_kept_with_reason_and_head(host):
    send_in_vain(host, "rule_drop", host.a1, A2.address, 7653, b"look at me")
    kept = lambda: host.viaduct("dropstats", "--log", "5")["log"]
    eventually(lambda: [one["interface"] for one in kept() if one["reason"] == "rule_drop"] == ["a1"], "the packet")
    assert "rule_drop" in host.call("dropstats", "--log", "5").stdout


def test_dropped_packets_are_filtered(host):
    send(host.a1, A2.address, 7653)
    send(host.a1, "172.16.9.9", 9)
    eventually(lambda: {"rule_drop", "no_route"} <= set(host.drops()), "both drops")
    only = host.viaduct("dropstats", "--reason", "no_route", "--log", "50")
    assert [row["reason"] for row in only["reasons"]] == ["no_route"]
    assert {packet["reason"] for packet in only["log"]} == {"no_route"}
    of_a2 = host.viaduct("dropstats", "-i", "a2", "--log", "50")
    assert not {"rule_drop", "no_route"} & {row["reason"] for row in of_a2["reasons"]}
    of_a1 = {row["reason"]: row["packets"] for row in host.viaduct("dropstats", "--interface", "a1")["reasons"]}
    assert of_a1["rule_drop"] >= 1 and of_a1["no_route"] >= 1
    wrong = host.call("dropstats", "--reason", "no_rout", check=False)
    assert wrong.returncode == 1 and "--explain" in wrong.stderr


def test_every_reason_has_advice(host):
    reasons = host.viaduct("dropstats", "--explain")["reasons"]
    assert len(reasons) > 50 and all(row["advice"] for row in reasons)
    text = host.call("dropstats", "--explain", "--reason", "tx_down").stdout
    assert "viaduct status" in text and "no_route" not in text


def test_a_broadcast_to_who_is_not_there_is_no_drop(lab):
    host = lab.host(host_config("a", {"a1": tap("a1"), "a2": tap("a2"), "b1": {"kind": "vhost", "socket": "b1.sock"}},
                                wire=False))
    a1, _ = lab.container(host, "a1"), lab.container(host, "a2")
    assert host.viaduct("vif", "show", "b1")["state"] == "down"
    before = host.viaduct("vif", "show", "a2")["tx_packets"]
    send(a1, "10.1.1.99", 9)  # nobody has it: ARP asks all
    eventually(lambda: host.viaduct("vif", "show", "a2")["tx_packets"] > before, "the broadcast at a2")
    assert "tx_down" not in host.drops() and host.viaduct("vif", "show", "b1")["tx_drops"] == 0


def test_flows_are_counted_when_they_are_asked_for(host):
    host.a1.expect_ping(A2.address)
    host.call("flow", "flush")
    echoes = 10
    for _ in range(echoes):  # each by itself: one ping of several sends more of them where an echo is late
        assert host.a1.ping(A2.address, 1, options=("-e", 7), timeout=PATIENCE)[0] == 1
    [flow] = host.viaduct("flow", "--match", "icmp")
    assert (flow["packets"], flow["reply_packets"]) == (echoes, echoes), flow


def test_capture_opens_in_tshark_with_names_and_reasons(host, lab):
    file = lab.directory / "seen.pcapng"
    capture = host.background("capture", "-w", file, label="capture")
    eventually(lambda: file.exists() and file.stat().st_size > 0, "the capture's file")
    host.a1.expect_ping(A2.address)
    send(host.a1, B1.address, 9)
    send(host.a1, A2.address, 7653)
    eventually(
        lambda: "rule_drop" in str(fields(file, "udp.dstport == 7653", "frame.comment")), "the reason as a comment"
    )
    eventually(lambda: fields(file, "mpls", "frame.number"), "an encapsulated packet")
    assert capture.stop(2) == 0, capture.describe()
    names = {row[0] for row in fields(file, "icmp", "frame.interface_name")}
    assert {"a1", "a2", "up0"} <= names, names
    assert expert(file) == []


def test_capture_of_one_guest(host, lab):
    file = lab.directory / "one.pcapng"
    capture = host.background("capture", "--guest", "a2", "-w", file, label="capture")
    eventually(lambda: file.exists() and file.stat().st_size > 0, "the capture's file")
    host.a1.expect_ping("10.1.1.254")
    host.a1.expect_ping(A2.address)
    eventually(lambda: fields(file, "icmp.type == 0", "frame.number"), "the echo of a2")
    capture.stop(2)
    assert fields(file, "ip.addr == 10.1.1.254", "frame.number") == []


def test_capture_takes_the_words_of_tcpdump(host, lab):
    file = lab.directory / "words.pcapng"
    words = f"-i a2 -n -w {file} udp and src {A1.address} and not ( dst port 7 or 9 )"
    capture = host.background("capture", *words.split(), label="capture")
    eventually(lambda: file.exists() and file.stat().st_size > 0, "the capture's file")
    host.a1.expect_ping(A2.address)
    for port in (7, 9, 11):
        send(host.a1, A2.address, port)
    eventually(lambda: fields(file, "udp.dstport == 11", "frame.number"), "the datagram to port 11")
    capture.stop(2)
    assert {row[0] for row in fields(file, "udp", "udp.dstport")} == {"11"}
    assert fields(file, "icmp.type == 8", "frame.number") == []
    wrong = host.call("capture", "tcp", "prt", "80", check=False)
    assert wrong.returncode == 1 and "prt" in wrong.stderr, wrong.stderr


def test_metrics(host):
    host.a1.expect_ping(A2.address)
    send(host.a1, A2.address, 7653)

    def scrape():
        with host.namespace.entered():
            with urllib.request.urlopen("http://127.0.0.1:9101/metrics", timeout=PATIENCE) as answer:
                assert answer.headers["Content-Type"].startswith(("text/plain", "application/openmetrics-text"))
                return answer.read().decode()

    text = eventually(lambda: (seen := scrape()) and "rule_drop" in seen and seen, "rule_drop in the metrics")
    rows = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r'[a-z_:][a-z0-9_:]*(\{[^}]*\})? [-+.0-9eE]+|.* (NaN|\+Inf)', row) for row in rows), rows
    dropped = next(row for row in rows if 'rule_drop' in row)
    assert float(dropped.rsplit(" ", 1)[1]) >= 1
    assert any('a1' in row for row in rows)
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            assert line.split()[3] in ("counter", "gauge", "histogram", "summary", "info", "unknown")
