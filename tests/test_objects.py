"""What a host is made of can be seen: every kind of object, who refers to it, and all of it as a file."""

import json

import pytest

from lab import Config, binary, eventually
from lab.shell import run
from lab.topology import SEATS, bridge_entries, host_config, tap, tunnel_routes

A1, B1 = SEATS["a1"], SEATS["b1"]


@pytest.fixture(scope="module")
def host(shared_lab):
    lab = shared_lab
    lab.plug("a")
    config = host_config("a", {"a1": tap("a1"), "a2": tap("a2")}, socket_dirs=["/run/openvswitch"])
    bridge_entries(tunnel_routes(config, "mpls-over-udp", "b1"), "b2")
    config.add("network", name="public", vrf=9, gateways=["203.0.113.254/24"], wire="up0", vlan=7)
    config.add("network", name="green", vrf=12)
    config.add("nexthop", name="spine", to=[{"tunnel": "mpls-over-udp", "remote": "192.0.2.2", "label": 100}])
    config.add("route", network="blue", prefix="10.9.0.0/16", to={"nexthop": "spine"})
    config.add("route", network="blue", prefix="10.9.3.0/24", to="drop")
    config.add("route", network="blue", prefix="0.0.0.0/0", to={"network": "public"})
    config.add("nat", network="blue", inside=A1.address, outside="203.0.113.7", outside_network="public")
    config.add("default", network="blue", action="drop")
    config.add("guest", name="o1", mode="ovs", **tap("o1"))
    config.rule("blue", 10, "allow", source={"guest": "a1"}, protocol="icmp")
    config.rule("blue", 20, "police:100", protocol="tcp", ports="80-443")
    host = lab.host(config)
    host.a1 = lab.container(host, "a1")
    return host


def test_an_export_is_what_apply_takes(host, lab):
    host.call("rt", "add", "--network", "blue", "10.60.0.0/16", "--to", "drop")
    try:
        file = host.call("export").stdout
        assert "# owner: api" in file and 'name = "spine"' in file
        assert "learning" not in file, "a default is written out"
        for words in (("apply", "--dry-run", "-"), ("apply", "-"), ("diff", "-")):
            changes = [entry for entry in host.viaduct(*words, stdin=file) if entry["what"] != "warning"]
            assert changes == [], words
        # A host that starts with it is the same one.
        assert run([binary("viaduct"), "check", "/dev/stdin"], stdin=file).returncode == 0
        changed = file.replace('prefix = "10.60.0.0/16"', 'prefix = "10.61.0.0/16"')
        assert [entry["what"] for entry in host.viaduct("apply", "--dry-run", "-", stdin=changed)] == ["add"]
    finally:
        host.call("rt", "del", "--network", "blue", "10.60.0.0/16")


KINDS = {
    "nat": ({"network": "blue", "inside": A1.address, "outside": "203.0.113.7", "guest": "a1"}, A1.address),
    "flood": ({"network": "blue"}, "blue"),
    "default": ({"network": "blue", "action": "drop"}, "blue"),
    "nexthop": ({"name": "spine", "user_count": 1}, "spine"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_listed_and_shown(host, kind):
    wanted, key = KINDS[kind]
    rows = host.viaduct(kind)
    assert any(wanted.items() <= row.items() for row in rows), rows
    network = ("--network", "blue") if kind == "nat" else ()
    assert wanted.items() <= host.viaduct(kind, "show", key, *network).items()
    assert key in host.call(kind).stdout


def test_what_nobody_configured_is_shown_as_well(host):
    assert {row["network"]: row["action"] for row in host.viaduct("default")} == {
        "blue": "drop",
        "public": "allow",
        "green": "allow",
    }


def test_objects_come_and_go_by_the_command_line(host):
    host.call("nat", "add", "--network", "blue", "10.1.1.2", "--outside", "203.0.113.8", "--outside-network", "public")
    host.call("nat", "del", "--network", "blue", "10.1.1.2")
    host.call("flood", "add", "green", "--to", "vxlan:192.0.2.2:7")
    host.call("flood", "del", "green")
    host.call("default", "add", "public", "--action", "reject")
    assert host.viaduct("default", "show", "public")["action"] == "reject"
    host.call("default", "del", "public")
    refused = host.call("default", "del", "blue", check=False)
    assert refused.returncode == 1 and "host's file" in refused.stderr


def test_who_refers_to_it_is_told(host):
    users = host.viaduct("network", "show", "public")["users"]
    assert f'nat "{A1.address}" of network "blue"' in users and 'route "0.0.0.0/0" of network "blue"' in users
    assert any(user.startswith("rule") for user in host.viaduct("guest", "show", "a1")["users"])
    assert host.viaduct("wire", "show", "up0")["users"] == ['network "public"']
    spine = next(row for row in host.viaduct("nh") if "spine" in row["names"])
    assert spine["users"] == ['route "10.9.0.0/16" of network "blue"'] and spine["user_count"] == 1


def test_neighbours_are_listed(host, shared_lab):
    shared_lab.namespace("fabric").ip("addr replace 192.0.2.2/24 dev br0")
    asked = lambda: host.a1.ping(B1.address, 1, timeout=1)
    known = lambda: [row for row in host.viaduct("neigh") if row["address"] == "192.0.2.2" and row["mac"]]
    row = eventually(lambda: asked() and known(), "the neighbour on the wire")[0]
    assert row["scope"] == "up0" and f'route "{B1.address}/32" of network "blue"' in row["users"], row
    assert host.viaduct("neigh", "show", "192.0.2.2")["mac"] == row["mac"]
    assert host.call("neighbours").returncode == 0
    missing = host.call("neigh", "show", "192.0.2.77", check=False)
    assert missing.returncode == 1 and "192.0.2.77" in missing.stderr


def test_a_route_is_found_by_an_address(host):
    shown = lambda addr: host.viaduct("rt", "show", addr, "--network", "blue")["prefix"]
    assert shown("10.9.3.4") == "10.9.3.0/24"
    assert shown("10.9.4.4") == "10.9.0.0/16"
    assert shown("8.8.8.8") == "0.0.0.0/0"
    assert shown("10.9.3.0/24") == "10.9.3.0/24"


def test_the_words_that_hands_type(host):
    guests = host.viaduct("guest")
    for words in ("guests", "guest ls", "guests list"):
        assert host.viaduct(*words.split()) == guests
    assert json.loads(host.call("guest", "-o", "json").stdout) == guests
    assert host.viaduct("route", "get", "10.9.3.4", "--network", "blue")["prefix"] == "10.9.3.0/24"
    host.call("route", "add", "10.70.0.0/16", "--to", "drop", "--network", "blue")
    host.call("routes", "delete", "10.70.0.0/16", "--network", "blue")


def test_the_only_network_need_not_be_named(host, lab):
    several = host.call("rt", "show", "10.9.3.4", check=False)
    assert several.returncode == 2 and "blue" in several.stderr and "public" in several.stderr
    config = Config("b").add("network", name="only", vrf=1, gateways=["10.1.1.254/24"])
    other = lab.host(config)
    other.call("rt", "add", "10.9.0.0/16", "--to", "drop")
    assert other.viaduct("rt", "show", "10.9.1.1")["network"] == "only"
    other.call("guest", "add", "g1", "--kind", "tap", "--device", "tapg1")
    assert other.viaduct("guest", "show", "g1")["network"] == "only"
    other.call("rt", "del", "10.9.0.0/16")


@pytest.mark.parametrize(
    "words, status", [("guest show nobody", 1), ("gest", 2), ("rt show 10.9.3.4", 2), ("rule del 999", 1)]
)
def test_errors_are_json_where_output_is(host, words, status):
    done = host.call("--json", *words.split(), check=False)
    said = json.loads(done.stderr)
    assert (done.returncode, said["status"], done.stdout) == (status, status, "") and said["error"]


def test_a_daemon_that_is_not_there_is_json_too(lab):
    done = run([binary("viaduct"), "--run-dir", lab.directory, "-o", "json", "status"], check=False)
    assert (done.returncode, json.loads(done.stderr)["status"]) == (3, 3)


def completed(host, line):
    """Returns the words that bash offers for the last word of a line."""
    program = f"""
        source <({binary('viaduct')} completion bash)
        viaduct() {{ {binary('viaduct')} "$@"; }}
        PATH={binary('viaduct').parent}:$PATH
        COMP_WORDS=({line} ''); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_TYPE=9
        function=$(complete -p viaduct | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        $function viaduct '' ''
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return set(run(["bash", "-c", program]).stdout.split())


def test_bash_completes_names_of_this_host(host):
    viaduct = f"viaduct --run-dir {host.run_dir}"
    assert {"a1", "a2"} <= completed(host, f"{viaduct} guest show")
    assert {"blue", "public"} <= completed(host, f"{viaduct} rt --network")
    assert {"a1", "a2", "up0"} <= completed(host, f"{viaduct} explain --in")
    assert {"10.9.0.0/16"} <= completed(host, f"{viaduct} rt show")
    ports = completed(host, f"{viaduct} ovs flows --port")
    assert "o1" in ports and not {"a1", "up0"} & ports, "only ports of Open vSwitch"
    assert {"export", "dropstats"} <= completed(host, "viaduct")
