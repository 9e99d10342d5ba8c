"""The command line: every list as JSON with stable keys, and exit codes that scripts rely on."""

import json
import re

import pytest

from lab import binary
from lab.host import REPOSITORY
from lab.page import blocks
from lab.shell import run
from lab.topology import SEATS, bridge_entries, host_config, tap, tunnel_routes

A1, A2, B1 = SEATS["a1"], SEATS["a2"], SEATS["b1"]

# Keys that scripts read: one may be added, none may go.
LISTS = {
    "vif": {"name", "kind", "network", "mtu"},
    "guest": {"name", "kind", "network", "mac", "addresses", "state", "mode", "rdma", "window_mb"},
    "wire": {"name", "driver", "device", "addresses", "mtu", "mode"},
    "network": {"name", "vrf", "gateways", "vni"},
    "nh": {"id", "kind"},
    "rt --network blue": {"prefix", "nexthop", "owner"},
    "bridge --network blue": {"mac", "nexthop"},
    "mpls": {"label", "nexthop"},
    "vxlan": {"vni", "network"},
    "rule": {"network", "priority", "action", "packets"},
    "flow": {"source", "destination", "protocol", "packets"},
}


@pytest.fixture(scope="module")
def host(shared_lab):
    lab = shared_lab
    lab.plug("a")
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2")})
    bridge_entries(tunnel_routes(config, "mpls-over-udp", "b1"), "b2")
    config.rule("blue", 10, "allow", protocol="icmp")
    host = lab.host(config)
    a1, _ = lab.container(host, "a1"), lab.container(host, "a2")
    a1.expect_ping(A2.address)
    return host


@pytest.mark.parametrize("command", LISTS)
def test_lists(host, command):
    rows = host.viaduct(*command.split())
    assert isinstance(rows, list) and rows, command
    for row in rows:
        assert LISTS[command] <= set(row), f"{command}: {sorted(LISTS[command] - set(row))} missing in {row}"


@pytest.mark.parametrize("command", LISTS)
def test_lists_for_people(host, command):
    table = host.call(*command.split()).stdout
    rows = host.viaduct(*command.split())
    assert len(table.splitlines()) >= len(rows), table


def test_status_and_statistics(host):
    assert host.viaduct("status")["name"] == "a"
    assert "a1" in host.call("status").stdout
    stats = host.viaduct("stats")
    assert stats["workers"] and stats["workers"][0]["packets"] > 0
    assert isinstance(host.viaduct("dropstats")["reasons"], list)
    assert host.viaduct("flow", "rate") is not None


def test_a_default_mode_is_shown(host):
    assert host.viaduct("guest", "show", "a1")["mode"] == host.viaduct("wire", "show", "up0")["mode"] == "vrouter"


def test_show_one(host):
    assert host.viaduct("guest", "show", "a1")["mac"] == A1.mac
    assert host.viaduct("rt", "show", f"{B1.address}/32", "--network", "blue")["prefix"] == f"{B1.address}/32"
    assert host.viaduct("wire", "show", "up0")["device"] == "up0"
    known = host.call("wire", "show", "nothing-like-it", check=False)
    assert "there are: up0" in known.stderr


def test_add_and_delete(host):
    host.call("rt", "add", "10.50.0.0/16", "--network", "blue", "--to", "drop")
    assert "10.50.0.0/16" in {row["prefix"] for row in host.viaduct("rt", "--network", "blue")}
    host.call("rt", "del", "10.50.0.0/16", "--network", "blue")
    assert "10.50.0.0/16" not in {row["prefix"] for row in host.viaduct("rt", "--network", "blue")}


def test_targets_have_weights(host):
    """One of two tunnels takes three of four flows; `explain` and the lists say so, and `export` writes it."""
    tunnels = [f"mpls-over-udp:192.0.2.{n}:100" for n in (77, 78)]
    host.call("nexthop", "add", "uplinks", "--to", tunnels[0] + ",weight=3", "--to", tunnels[1])
    host.call("rt", "add", "10.50.0.0/16", "--network", "blue", "--to", "nexthop:uplinks")
    [route] = [row for row in host.viaduct("rt", "--network", "blue") if row["prefix"] == "10.50.0.0/16"]
    assert route["text"].count("(weight 3)") == 1 and "192.0.2.78" in route["text"], route
    explained = host.call("explain", "--in", "a1", f"{A1.address} > 10.50.0.1 / udp 1 > 2").stdout
    assert "ecmp of 2 nexthops with weights" in explained, explained
    assert "weight = 3" in host.call("export").stdout
    refused = host.call("nexthop", "add", "more", "--to", tunnels[0] + ",weight=65", check=False)
    assert refused.returncode == 1 and "use 1 to 64" in refused.stderr
    host.call("rt", "del", "10.50.0.0/16", "--network", "blue")
    host.call("nexthop", "del", "uplinks")


def test_flows_match_and_flush(host, shared_lab):
    matched = host.viaduct("flow", "--match", f"{A1.address} & icmp")
    assert matched and all(A1.address in (row["source"], row["destination"]) for row in matched)
    assert host.viaduct("flow", "--match", "203.0.113.99 & tcp & port 80") == []
    host.call("flow", "flush")
    assert host.viaduct("flow") == []


def test_exit_codes(host, lab):
    assert host.call("status").returncode == 0
    refused = host.call("guest", "show", "nobody", check=False)
    assert refused.returncode == 1 and "nobody" in refused.stderr
    assert host.call("gest", check=False).returncode == 2
    assert host.call("rt", "add", "10.50.0.0/16", check=False).returncode == 2
    nobody = run([binary("viaduct"), "--run-dir", lab.directory, "status"], check=False)
    assert nobody.returncode == 3 and str(lab.directory) in nobody.stderr


def test_refusal_as_json_is_still_an_exit_code(host):
    refused = host.call("--json", "guest", "show", "nobody", check=False)
    assert refused.returncode == 1 and json.loads(refused.stderr)["status"] == 1


def test_check_needs_no_daemon(host, lab):
    done = run([binary("viaduct"), "--run-dir", lab.directory, "check", host.file], check=False)
    assert done.returncode == 0, done.stderr


def test_guest_image_prints_what_the_page_shows():
    page = (REPOSITORY / "docs/rdma.md").read_text()
    text = run([binary("viaduct"), "guest-image"]).stdout
    assert text.startswith("#cloud-config\n")
    comments = re.compile(r"^# .*\n", flags=re.M)
    assert comments.sub("", text) in blocks(page, "yaml")
    assert json.loads(run([binary("viaduct"), "--json", "guest-image"]).stdout) == {"cloud_config": text}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(host, shell):
    script = run([binary("viaduct"), "completion", shell]).stdout
    assert "COMPLETE" in script and "viaduct" in script


def test_help_names_every_command():
    text = run([binary("viaduct"), "--help"]).stdout
    for command in (
        "apply",
        "diff",
        "check",
        "status",
        "top",
        "explain",
        "capture",
        *(name.split()[0] for name in LISTS),
    ):
        assert command in text


def test_closed_output_is_no_error(host):
    pipe = run(["sh", "-c", f"{binary('viaduct')} --run-dir {host.run_dir} rt --network blue | head -1"])
    assert "panicked" not in pipe.stderr and "rror" not in pipe.stderr


def test_json_is_one_document(host):
    for command in ("status", "stats", "dropstats"):
        json.loads(host.call("--json", command).stdout)
